package etcd_test

import (
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencepost-go/fencepost/lockclient/driver"
)

// line returns the keys of a resource's line, the longest waiting first.
func line(t testing.TB, c *clientv3.Client, resource string) (keys []string) {
	t.Helper()
	resp, err := c.Get(t.Context(), "fencepost/queue/"+resource+"\x00", clientv3.WithPrefix(), clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend))
	if err != nil {
		t.Fatal(err)
	}
	for _, kv := range resp.Kvs {
		keys = append(keys, string(kv.Key))
	}
	return keys
}

// TestWatchingAgainKeepsThePlace: the first in line ends its watch and watches
// again, as a client does every few seconds. It keeps its place and is woken first.
func TestWatchingAgainKeepsThePlace(t *testing.T) {
	addr, _ := startNode(t, t.TempDir())
	holder, first, second, c := issuer(t, addr), issuer(t, addr), issuer(t, addr), connect(t, addr)
	held := acquire(t, holder, "r", "holder")
	woken := make(chan string, 10)
	watch := func(i driver.Issuer, name string) driver.Watching {
		t.Helper()
		w, err := i.Watch(t.Context(), driver.Watch{Resource: "r", LeaseID: name}, func() { woken <- name })
		if err != nil || w.Held == nil {
			t.Fatalf("%+v, %v", w, err)
		}
		t.Cleanup(w.Stop)
		return w
	}
	w := watch(first, "first")
	watch(second, "second")
	before := line(t, c, "r")
	for range 3 {
		time.Sleep(200 * time.Millisecond) // until it watches the lease
		w.Stop()
		w = watch(first, "first")
	}
	time.Sleep(500 * time.Millisecond)
	if now := line(t, c, "r"); len(before) != 2 || strings.Join(now, " ") != strings.Join(before, " ") {
		t.Errorf("the line was %q and is %q", before, now)
	}
	release(t, holder, held)
	if name := <-woken; name != "first" {
		t.Errorf("the %s in line was woken before the other", name)
	}
}

// TestCloseLeavesTheLine: an issuer that is closed gives up its places in line, so
// that nobody waits for them to run out.
func TestCloseLeavesTheLine(t *testing.T) {
	addr, _ := startNode(t, t.TempDir())
	i, c := issuer(t, addr), connect(t, addr)
	for _, resource := range []string{"r", "s"} {
		acquire(t, i, resource, "holder")
		if _, err := i.Watch(t.Context(), driver.Watch{Resource: resource, LeaseID: "waiter"}, func() {}); err != nil {
			t.Fatal(err)
		}
		if places := line(t, c, resource); len(places) != 1 {
			t.Fatalf("%s: the line is %q", resource, places)
		}
	}
	if err := i.Close(); err != nil {
		t.Fatal(err)
	}
	for _, resource := range []string{"r", "s"} {
		if places := line(t, c, resource); len(places) > 0 {
			t.Errorf("%s: after Close the line is %q", resource, places)
		}
	}
}
