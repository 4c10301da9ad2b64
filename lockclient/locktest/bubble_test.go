package locktest_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient"
	"github.com/fencepost-go/fencepost/lockclient/driver/memory"
)

// TestNothingStaysBehind: a client that has released its leases has no goroutine
// left, whether it is closed or not. A test in a bubble fails if one is.
func TestNothingStaysBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, err := lockclient.New(memory.NewServer().Issuer(), "owner", nil)
		testkit.Must(t, err)
		lease, err := client.TryAcquire(t.Context(), "r", &lockclient.AcquireOptions{TTL: time.Minute})
		testkit.Must(t, err)
		testkit.Check(t, lease.Release(t.Context()))
	})
}
