//go:build unix

package s3suite

import (
	"bytes"
	"context"
	"errors"
	"io"
	"iter"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/suites/s3/gateway"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/s3fence"
)

// What an object goes through in its life, on a real store, in each mode that
// is safe there, with a long body.
func TestObjects(t *testing.T) {
	g := startGateway(t)
	client := gatewayClient(g, g.URL)
	b, err := s3fence.Open(t.Context(), client, bucket, &s3fence.Options{GracePeriod: time.Nanosecond})
	testkit.Must(t, err)
	if _, err := b.Objects(s3fence.Plain, anyResource); !errors.Is(err, guard.ErrInvalid) {
		t.Errorf("Plain on a store whose ETags are those of bodies: %v", err)
	}
	large := bytes.Repeat([]byte("0123456789abcdef"), 12<<16) // 12 MiB
	for _, mode := range []s3fence.Mode{s3fence.Sealed, pointers} {
		t.Run(nameOf(mode), func(t *testing.T) {
			o, err := in(b, mode)
			testkit.Must(t, err)
			name := nameOf(mode) + "/é 日本.csv"
			put := func(token guard.Token, body []byte) error {
				return o.Put(t.Context(), claim(token), name, body, &s3fence.Headers{ContentType: "text/csv", CacheControl: "no-store", Metadata: map[string]string{"tenant": "123"}})
			}
			want := func(body []byte, token guard.Token) {
				t.Helper()
				object, err := o.Get(t.Context(), name)
				testkit.Must(t, err)
				defer object.Body.Close()
				got, err := io.ReadAll(object.Body)
				h := object.Headers
				if err != nil || !bytes.Equal(got, body) || object.Mark.Token != token ||
					h.ContentType != "text/csv" || h.CacheControl != "no-store" || h.Metadata["tenant"] != "123" {
					t.Errorf("%d bytes at %d, %+v, %v, want %d at %d", len(got), object.Mark.Token, h, err, len(body), token)
				}
			}
			stale := func(err error) {
				t.Helper()
				if !errors.Is(err, guard.ErrStale) {
					t.Errorf("got %v, want stale", err)
				}
			}
			for token, body := range [][]byte{1: {}, 2: []byte("small"), 3: large} {
				if token == 0 {
					continue
				}
				testkit.Must(t, put(guard.Token(token), body))
				want(body, guard.Token(token))
			}
			testkit.Must(t, o.Raise(t.Context(), claim(4), name))
			want(large, 4)
			stale(put(3, []byte("stale")))
			if mode == pointers {
				deleted := int64(0)
				testkit.Eventually(t, "the store's clock to go on", func() bool { // its times are whole seconds
					done, err := o.(pointerHandle).Collect(t.Context(), nameOf(mode))
					if err != nil || done.Pointers != 1 {
						t.Fatalf("collected %+v, %v", done, err)
					}
					deleted += done.Deleted
					return deleted > 0
				})
				if deleted != 2 {
					t.Errorf("%d deleted, want the data of 1 and 2", deleted)
				}
				want(large, 4)
			}
			listed := func() (n int) {
				for e, err := range o.List(t.Context(), nameOf(mode)) {
					if err != nil || e.Key != name {
						t.Errorf("%+v, %v", e, err)
					}
					n++
				}
				return n
			}
			if n := listed(); n != 1 {
				t.Errorf("%d are listed", n)
			}
			testkit.Must(t, o.Delete(t.Context(), claim(5), name))
			if _, err := o.Get(t.Context(), name); !errors.Is(err, guard.ErrNotFound) {
				t.Errorf("after deletion: %v", err)
			}
			if n := listed(); n != 0 {
				t.Errorf("%d tombstones are listed", n)
			}
			stale(put(4, []byte("stale")))
			// An object that another program wrote stays as it is until it is
			// adopted.
			foreign := nameOf(mode) + "/foreign"
			_, err = client.PutObject(t.Context(), &s3.PutObjectInput{
				Bucket: aws.String(bucket), Key: aws.String(foreign), Body: strings.NewReader("theirs"),
			})
			testkit.Must(t, err)
			if err := o.Put(t.Context(), claim(6), foreign, nil, nil); !errors.Is(err, guard.ErrUnfenced) {
				t.Errorf("got %v, want unfenced", err)
			}
			objects, ok := o.(*s3fence.Objects)
			if !ok {
				return
			}
			testkit.Must(t, objects.Adopt(t.Context(), claim(6), foreign))
			stale(o.Put(t.Context(), claim(5), foreign, nil, nil))
		})
	}
}

// A real store's responses to configurations that cannot work.
func TestAccess(t *testing.T) {
	g := startGateway(t)
	testkit.Must(t, openSealed(t, gatewayClient(g, g.URL)).Put(t.Context(), claim(5), key, nil, nil))
	for name, c := range map[string]struct {
		change func(*gateway.Gateway)
		bucket string
		says   string
	}{
		"unknown user": {func(g *gateway.Gateway) { g.AccessKeyID = "nobody" }, bucket, "credentials were refused"},
		"wrong secret": {func(g *gateway.Gateway) { g.SecretAccessKey = "wrong" }, bucket, "signature was refused"},
		"wrong region": {func(g *gateway.Gateway) { g.Region = "us-west-2" }, bucket, "another region"},
		"wrong bucket": {func(*gateway.Gateway) {}, "another", "does not exist"},
	} {
		t.Run(name, func(t *testing.T) {
			wrong := &gateway.Gateway{URL: g.URL, Region: g.Region, AccessKeyID: g.AccessKeyID, SecretAccessKey: g.SecretAccessKey}
			c.change(wrong)
			client := gatewayClient(wrong, g.URL)
			_, opened := s3fence.Open(t.Context(), client, c.bucket, nil)
			b, err := s3fence.Open(t.Context(), client, c.bucket, &s3fence.Options{InsecureSkipProbe: true})
			testkit.Must(t, err)
			o, err := b.Objects(s3fence.Sealed, anyResource)
			testkit.Must(t, err)
			_, got := o.Get(t.Context(), key)
			for call, err := range map[string]error{
				"open": opened, "get": got, "put": o.Put(t.Context(), claim(6), key, nil, nil), "raise": o.Raise(t.Context(), claim(6), key),
			} {
				if !errors.Is(err, guard.ErrSetup) || !strings.Contains(err.Error(), c.says) {
					t.Errorf("%s: %v, want a setup error because %q", call, err, c.says)
				}
			}
		})
	}
	if mark, err := openSealed(t, gatewayClient(g, g.URL)).Mark(t.Context(), key); err != nil || mark.Token != 5 {
		t.Errorf("the object is at %+v, %v: it was written", mark, err)
	}
}

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

// versioned is versitygw with a bucket that has versioning.
var versioned = realStore{"versitygw v1.8.0 with versioning", false, func(t *testing.T) func(http.RoundTripper) *s3.Client {
	client := product(gateway.VersionedVersitygw, false).start(t)
	_, err := client(nil).PutBucketVersioning(t.Context(), &s3.PutBucketVersioningInput{
		Bucket: aws.String(bucket), VersioningConfiguration: &types.VersioningConfiguration{Status: types.BucketVersioningStatusEnabled},
	})
	testkit.Must(t, err)
	return client
}}

// Each store with the first check that refuses it; "" for one that is accepted, on
// which a key can be written again after its mark was forgotten.
func TestStoresAndRefusals(t *testing.T) {
	all := append(stores(), versioned, product(gateway.VersionedVersitygw, true))
	for _, store := range all {
		check, known := map[string]string{
			gateway.Versitygw.Name: "", "s3test": "", gateway.MinIO.Name: "", gateway.VersionedVersitygw.Name: "",
			versioned.name:               "If-Match without an object: a write was accepted",
			gateway.Rclone.Name:          "416",
			gateway.RcloneFullCache.Name: "416",
			gofakes3Store.name:           "416",
		}[store.name]
		if !known {
			continue // it races, which one check in a row does not show
		}
		t.Run(store.name, func(t *testing.T) {
			t.Parallel()
			client := store.start(t)
			b, err := s3fence.Open(t.Context(), client(nil), bucket, nil)
			if check != "" {
				if !errors.Is(err, s3fence.ErrUnsuitableStore) || !strings.Contains(err.Error(), check) {
					t.Errorf("Open = %v, want it to refuse the store by %q", err, check)
				}
				return
			}
			testkit.Must(t, err)
			o, err := b.Objects(s3fence.Sealed, anyResource)
			testkit.Must(t, err)
			for token := guard.Token(9); token > 6; token-- { // the mark is forgotten, so lower ones are admitted
				testkit.Must(t, o.Put(t.Context(), claim(token), key, []byte("x"), nil))
				testkit.Must(t, o.InsecureDelete(t.Context(), key))
			}
		})
	}
}

// A bucket that gets versioning after it was opened: a key with a delete marker cannot
// be written again there, which a write reports at once, with the reason. Whether nothing
// was written is not known: a cache of absence in front of a store looks the same.
func TestVersioningAfterwards(t *testing.T) {
	o := openSealed(t, versioned.start(t)(nil)) // without a probe
	testkit.Must(t, o.Put(t.Context(), claim(5), key, []byte("x"), nil))
	testkit.Must(t, o.InsecureDelete(t.Context(), key))
	err := o.Put(t.Context(), claim(6), key, []byte("y"), nil)
	if !errors.Is(err, guard.ErrOutcomeUnknown) || !strings.Contains(err.Error(), "delete marker") {
		t.Errorf("Put over a delete marker = %v", err)
	}
}

// What a store on a file system can never hold is refused at once, with the reason,
// and not tried again as if another writer had been there.
func TestNamesThatCannotBe(t *testing.T) {
	g := startGateway(t)
	p := newProxy(t, g)
	o := openSealed(t, gatewayClient(g, p.URL))
	for _, name := range []string{"dir/object", "file"} {
		testkit.Must(t, o.Put(t.Context(), claim(5), name, []byte("x"), nil))
	}
	for what, name := range map[string]string{
		"a folder": "dir", "below an object": "file/object", "a segment of 256 bytes": "long/" + strings.Repeat("n", 256), "a segment of 300 bytes": strings.Repeat("n", 300),
	} {
		err := o.Put(t.Context(), claim(5), name, []byte("x"), nil)
		if !errors.Is(err, guard.ErrSetup) {
			t.Errorf("%s: %v, want a setup error", what, err)
		}
	}
}
