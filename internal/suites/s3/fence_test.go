//go:build unix

package s3suite

import (
	"bytes"
	"context"
	"iter"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/suites/s3/gateway"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/s3fence"
)

const key = "tenant_123/2026-04.csv"

// gatewayClient returns the SDK's client for g, at g itself or at a proxy in
// front.
func gatewayClient(g *gateway.Gateway, endpoint string, change ...func(*s3.Options)) *s3.Client {
	return s3.New(s3.Options{
		BaseEndpoint: aws.String(endpoint), UsePathStyle: true, Region: g.Region,
		RequestChecksumCalculation: aws.RequestChecksumCalculationWhenSupported,
		ResponseChecksumValidation: aws.ResponseChecksumValidationWhenSupported,
		Retryer:                    retry.NewStandard(func(o *retry.StandardOptions) { o.MaxBackoff = 20 * time.Millisecond }),
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: g.AccessKeyID, SecretAccessKey: g.SecretAccessKey}, nil
		}),
	}, change...)
}

// anyResource is for objects without a template.
var anyResource = &s3fence.ObjectsOptions{InsecureAnyResource: true}

// handle is what Objects and Pointers have in common.
type handle interface {
	Put(context.Context, guard.Claim, string, []byte, *s3fence.Headers) error
	Get(context.Context, string) (*s3fence.Object, error)
	Mark(context.Context, string) (guard.Mark, error)
	Raise(context.Context, guard.Claim, string) error
	Delete(context.Context, guard.Claim, string) error
	InsecureDelete(context.Context, string) error
	List(context.Context, string) iter.Seq2[s3fence.Entry, error]
}

// pointerHandle is Pointers with bodies in memory.
type pointerHandle struct{ *s3fence.Pointers }

func (p pointerHandle) Put(ctx context.Context, claim guard.Claim, key string, body []byte, h *s3fence.Headers) error {
	return p.Pointers.Put(ctx, claim, key, bytes.NewReader(body), h)
}

// pointers stands for Pointers in a list of modes.
const pointers s3fence.Mode = 250

func nameOf(m s3fence.Mode) string {
	if m == pointers {
		return "pointer"
	}
	return m.String()
}

// in returns the objects of a mode. In Plain the bodies must not repeat.
func in(b *s3fence.Bucket, m s3fence.Mode) (handle, error) {
	if m == pointers {
		p, err := b.Pointers(anyResource)
		return pointerHandle{p}, err
	}
	return b.Objects(m, &s3fence.ObjectsOptions{InsecureAnyResource: true, BodiesNeverRepeat: m == s3fence.Plain})
}

func createBucket(t testing.TB, client *s3.Client) {
	t.Helper()
	if _, err := client.CreateBucket(t.Context(), &s3.CreateBucketInput{Bucket: aws.String(bucket)}); err != nil {
		t.Fatal(err)
	}
}

// startGateway starts a correct store with an empty bucket.
func startGateway(t testing.TB) *gateway.Gateway {
	t.Helper()
	g := gateway.Start(t, gateway.Versitygw)
	createBucket(t, gatewayClient(g, g.URL))
	return g
}

// openSealed returns one process's handle. The probe has tests of its own.
func openSealed(t testing.TB, client *s3.Client) *s3fence.Objects {
	t.Helper()
	b, err := s3fence.Open(t.Context(), client, bucket, &s3fence.Options{InsecureSkipProbe: true})
	testkit.Must(t, err)
	o, err := b.Objects(s3fence.Sealed, anyResource)
	testkit.Must(t, err)
	return o
}

func claim(token guard.Token) guard.Claim {
	return guard.Claim{Resource: "tenant_123:billing-close:2026-04", Token: token, LeaseID: "lease-" + token.String()}
}
