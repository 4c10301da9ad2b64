//go:build unix

package s3suite

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

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
