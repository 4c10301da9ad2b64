package s3fence_test

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/s3fence"
	"github.com/fencepost-go/fencepost/s3fence/s3test"
)

func list(t *testing.T, o *s3fence.Objects, opts *s3fence.ListOptions) (keys []string) {
	t.Helper()
	for e, err := range o.List(t.Context(), opts) {
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, e.Key)
	}
	return keys
}

// Neither tombstones nor internals are listed; an object that happens to be as
// long as a tombstone is.
func TestListHides(t *testing.T) {
	eachMode(t, func(t *testing.T, mode s3fence.Mode) {
		server := newServer(t, &s3test.Options{ETags: s3test.ETagOpaque})
		b := open(t, server, &s3fence.Options{Prefix: "state"})
		o := objects(t, b, mode, nil)
		if _, err := b.Store().Admit(t.Context(), claim(5, "a")); err != nil {
			t.Fatal(err)
		}
		for i := range 6 {
			k := fmt.Sprintf("a/%d", i)
			if err := o.Put(t.Context(), claim(5, "a"), k, strings.NewReader("x"), nil); err != nil {
				t.Fatal(err)
			}
			if i%2 == 0 {
				if err := o.Delete(t.Context(), claim(5, "a"), k); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := o.Raise(t.Context(), claim(5, "a"), "a/raised"); err != nil {
			t.Fatal(err)
		}
		bypass(t, server, "b/unfenced", bytes.Repeat([]byte("x"), 1277), nil)
		if got := list(t, o, nil); !slices.Equal(got, []string{"a/1", "a/3", "a/5", "b/unfenced"}) {
			t.Errorf("listed: %q", got)
		}
		if got := list(t, o, &s3fence.ListOptions{Prefix: "a/", After: "a/1"}); !slices.Equal(got, []string{"a/3", "a/5"}) {
			t.Errorf("listed: %q", got)
		}
		for e, err := range o.List(t.Context(), nil) { // and stops when told
			if err != nil || e.Key != "a/1" || e.ETag == "" || e.StoredSize == 0 || e.LastModified.IsZero() {
				t.Errorf("%+v, %v", e, err)
			}
			break
		}
		for _, err := range o.List(t.Context(), &s3fence.ListOptions{Prefix: "\xff"}) {
			invalid(t, err, "ListOptions.Prefix")
		}
		server.Close()
		for _, err := range o.List(t.Context(), nil) {
			refused(t, err, guard.ReasonUnavailable)
		}
	})
}

func TestListPages(t *testing.T) {
	_, _, o := setup(t, s3fence.Sealed, 0)
	for i := range 1100 {
		if err := o.Put(t.Context(), claim(5, "a"), fmt.Sprintf("%04d", i), nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	if got := list(t, o, nil); len(got) != 1100 || !slices.IsSorted(got) {
		t.Errorf("%d listed", len(got))
	}
}
