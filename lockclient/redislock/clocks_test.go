package redislock

import (
	"context"
	"testing"

	"github.com/fencepost-go/fencepost/internal/testkit"
)

// TestSlots: a resource's server is the slot of its keys; the numbers are what
// CLUSTER KEYSLOT says of the keys.
func TestSlots(t *testing.T) {
	i, err := New(func(context.Context, ...any) (any, error) { return nil, nil }, &Options{Cluster: true})
	testkit.Must(t, err)
	for resource, want := range map[string]uint16{"123456789": 12739, "foo": 12182, "a{b}": 8914} {
		if got := i.server(resource); got != want {
			t.Errorf("%s, as in %s: slot %d; want %d", resource, i.key(resource, "lease"), got, want)
		}
	}
}
