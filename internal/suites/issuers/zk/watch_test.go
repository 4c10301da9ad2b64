package zk_test

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient/driver"
)

// TestWatchesOfFreeResources: a watch of a resource that nobody leases leaves
// nothing behind when it is stopped, and an onlooker still sees the next grant.
func TestWatchesOfFreeResources(t *testing.T) {
	z := startServers(t, 1)
	i := issuer(t, nil, z.Addrs()...)
	look := func(resource, id string) {
		t.Helper()
		w, err := i.Watch(t.Context(), driver.Watch{Resource: resource, LeaseID: id}, func() {})
		if err != nil {
			t.Fatal(err)
		}
		w.Stop()
	}
	look("warm", "")
	before := runtime.NumGoroutine()
	for n := range 200 {
		look(fmt.Sprint("onlooker-", n), "")
		look(fmt.Sprint("waiter-", n), "w")
	}
	testkit.Eventually(t, "the end of the goroutines of the watches, each of which was stopped", func() bool { return runtime.NumGoroutine() <= before+20 })
	seen := make(chan struct{})
	w, err := i.Watch(t.Context(), driver.Watch{Resource: "r"}, func() { close(seen) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Stop)
	acquire(t, i, "r", "a")
	testkit.Receive(t, "the grant that the onlooker of a free resource sees", seen)
}
