//go:build unix

package s3suite

import (
	"context"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/suites/s3/gateway"
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
	if err != nil {
		t.Fatal(err)
	}
	o, err := b.Objects(s3fence.Sealed, nil)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func claim(token guard.Token) guard.Claim {
	return guard.Claim{Resource: "tenant_123:billing-close:2026-04", Token: token, LeaseID: "lease-" + token.String()}
}
