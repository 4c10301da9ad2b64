package lockhttp_test

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/driver/memory"
)

// TestPlaceIsKept: clients watch again from time to time, before or after the
// server notices that the old watch has ended. Each keeps its place, and one that
// comes back to the first place is woken before the one that had it meanwhile.
func TestPlaceIsKept(t *testing.T) {
	for name, again := range map[string]func(stop, watch func()){
		"once":            func(_, _ func()) {},
		"stops, watches":  func(stop, watch func()) { stop(); time.Sleep(100 * time.Millisecond); watch() },
		"watches at once": func(stop, watch func()) { stop(); watch() },
		"watches, stops":  func(stop, watch func()) { watch(); stop() },
	} {
		t.Run(name, func(t *testing.T) {
			issuer := &counting{Issuer: memory.NewServer().Issuer()}
			web, _ := serve(t, issuer, everybody, nil)
			holder := connect(t, web.URL)
			g, err := holder.Acquire(t.Context(), driver.Request{Resource: "r", LeaseID: "held", Owner: "o", TTL: time.Minute, Timeout: time.Minute})
			if err != nil {
				t.Fatal(err)
			}
			var mu sync.Mutex
			var woken []string
			clients := map[string]driver.Issuer{"1": connect(t, web.URL), "2": connect(t, web.URL), "3": connect(t, web.URL)}
			stops := map[string]func(){}
			watch := func(id string) {
				var stopped sync.Once
				over := make(chan struct{})
				w, err := clients[id].Watch(t.Context(), driver.Watch{Resource: "r", LeaseID: id}, func() {
					select {
					case <-over:
					default:
						mu.Lock()
						defer mu.Unlock()
						woken = append(woken, id)
					}
				})
				if err != nil {
					t.Fatal(err)
				}
				stops[id] = func() { stopped.Do(func() { close(over) }); w.Stop() }
			}
			for _, id := range []string{"1", "2", "3"} {
				watch(id)
				time.Sleep(50 * time.Millisecond)
			}
			for _, id := range []string{"2", "1"} {
				again(stops[id], func() { watch(id) })
				time.Sleep(50 * time.Millisecond)
			}
			until(t, func() bool { return issuer.watching.Load() == 1 })
			if _, err := holder.Release(t.Context(), guard.Claim{Resource: "r", LeaseID: "held", Token: g.Token}); err != nil {
				t.Fatal(err)
			}
			// Nobody takes the lease, so each is woken in its turn.
			until(t, func() bool { mu.Lock(); defer mu.Unlock(); return len(woken) == 3 })
			if !slices.Equal(woken, []string{"1", "2", "3"}) {
				t.Errorf("woken in the order %v", woken)
			}
			for _, stop := range stops {
				stop()
			}
		})
	}
}
