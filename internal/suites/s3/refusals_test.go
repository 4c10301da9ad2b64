//go:build unix

package s3suite

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/suites/s3/gateway"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/s3fence"
)

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
