package zk_test

import (
	"fmt"
	"runtime"
	"testing"
	"time"

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
	after := 0
	for began := time.Now(); time.Since(began) < 20*time.Second; time.Sleep(100 * time.Millisecond) {
		if after = runtime.NumGoroutine(); after <= before+20 {
			break
		}
	}
	if after > before+20 {
		t.Errorf("every watch was stopped: %d goroutines before, %d after", before, after)
	}
	seen := make(chan struct{})
	w, err := i.Watch(t.Context(), driver.Watch{Resource: "r"}, func() { close(seen) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Stop)
	acquire(t, i, "r", "a")
	select {
	case <-seen:
	case <-time.After(20 * time.Second):
		t.Error("the onlooker of a free resource did not see the grant")
	}
}
