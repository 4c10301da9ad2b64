package etcd_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/etcdlock"
)

// TestNoPlaceAfterClose: a watch that begins beside Close, or after it, leaves no
// place in line, which those behind it would wait for.
func TestNoPlaceAfterClose(t *testing.T) {
	addr, stop := startNode(t, t.TempDir())
	defer stop()
	c := connect(t, addr)
	beside := 0
	for round := range 30 {
		i, err := etcdlock.New(c, nil)
		if err != nil {
			t.Fatal(err)
		}
		var watches sync.WaitGroup
		for n := range 4 {
			watches.Go(func() {
				i.Watch(t.Context(), driver.Watch{Resource: fmt.Sprint("r", n), LeaseID: "x"}, func() {})
			})
		}
		time.Sleep(time.Duration(round) * 200 * time.Microsecond)
		if err := i.Close(); err != nil {
			t.Error(err)
		}
		watches.Wait()
		if _, err := i.Watch(t.Context(), driver.Watch{Resource: "r", LeaseID: "x"}, func() {}); !errors.Is(err, guard.ErrUnavailable) {
			t.Errorf("after Close: %v", err)
		}
		testkit.Eventually(t, fmt.Sprintf("the end of the places of round %d", round), func() bool {
			places, err := c.Get(t.Context(), "fencepost/queue/", clientv3.WithPrefix())
			if err != nil {
				t.Fatal(err)
			}
			if places.Count > 0 {
				beside++
			}
			for _, place := range places.Kvs { // it does not run out by itself
				c.KeepAliveOnce(t.Context(), clientv3.LeaseID(place.Lease))
			}
			return places.Count == 0
		})
	}
	t.Logf("places were seen %d times", beside)
}
