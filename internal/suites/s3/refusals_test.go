//go:build unix

package s3suite

import (
	"errors"
	"strings"
	"testing"

	"github.com/fencepost-go/fencepost/guard"
)

// What a store on a file system can never hold is refused at once, with the reason,
// and not tried again as if another writer had been there.
func TestNamesThatCannotBe(t *testing.T) {
	g := startGateway(t)
	p := newProxy(t, g)
	o := openSealed(t, gatewayClient(g, p.URL))
	for _, name := range []string{"dir/object", "file"} {
		if err := o.Put(t.Context(), claim(5), name, []byte("x"), nil); err != nil {
			t.Fatal(err)
		}
	}
	for what, name := range map[string]string{
		"a folder": "dir", "below an object": "file/object", "a segment of 256 bytes": "long/" + strings.Repeat("n", 256), "a segment of 300 bytes": strings.Repeat("n", 300),
	} {
		err := o.Put(t.Context(), claim(5), name, []byte("x"), nil)
		t.Logf("%s: %v", what, err)
		if !errors.Is(err, guard.ErrUnavailable) || errors.Is(err, guard.ErrOutcomeUnknown) {
			t.Errorf("%s: %v, want unavailable", what, err)
		}
	}
}
