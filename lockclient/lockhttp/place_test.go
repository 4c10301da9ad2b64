package lockhttp_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/driver/memory"
	"github.com/fencepost-go/fencepost/lockclient/lockhttp"
)

// TestPlaceIsKept: clients watch again from time to time, before or after the
// server notices that the old watch has ended. Each keeps its place, and one that
// comes back to the first place is woken before the one that had it meanwhile.
func TestPlaceIsKept(t *testing.T) {
	t.Parallel()
	for name, again := range map[string]func(stop, watch func()){
		"once":            func(_, _ func()) {},
		"stops, watches":  func(stop, watch func()) { stop(); time.Sleep(100 * time.Millisecond); watch() },
		"watches at once": func(stop, watch func()) { stop(); watch() },
		"watches, stops":  func(stop, watch func()) { watch(); stop() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { keepsPlace(t, again) })
		})
	}
}

func keepsPlace(t *testing.T, again func(stop, watch func())) {
	issuer := &counting{Issuer: memory.NewServer().Issuer()}
	_, connect := serveInBubble(t, issuer)
	holder := connect()
	g, err := holder.Acquire(t.Context(), driver.Request{Resource: "r", LeaseID: "held", Owner: "o", TTL: time.Minute, Timeout: time.Minute})
	testkit.Must(t, err)
	var mu sync.Mutex
	var woken []string
	clients := map[string]driver.Issuer{"1": connect(), "2": connect(), "3": connect()}
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
		testkit.Must(t, err)
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
	testkit.Eventually(t, "one watch at the issuer", func() bool { return issuer.watching.Load() == 1 })
	if _, err := holder.Release(t.Context(), guard.Claim{Resource: "r", LeaseID: "held", Token: g.Token}); err != nil {
		t.Fatal(err)
	}
	// Nobody takes the lease, so each is woken in its turn.
	testkit.Eventually(t, "that each is woken", func() bool { mu.Lock(); defer mu.Unlock(); return len(woken) == 3 })
	if !slices.Equal(woken, []string{"1", "2", "3"}) {
		t.Errorf("woken in the order %v", woken)
	}
	for _, stop := range stops {
		stop()
	}
}

// TestOneQueue: requests that wait in the server and Go clients, which watch and are
// notified to ask, are granted in the order in which they came.
func TestOneQueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := memory.NewServer()
		h, connect := serveInBubble(t, server.Issuer())
		held := server.Steal("r", "holder", time.Hour)
		var mu sync.Mutex
		var order []int
		var wg sync.WaitGroup
		granted := func(n int) {
			mu.Lock()
			defer mu.Unlock()
			order = append(order, n)
		}
		for n := range 8 {
			if n%2 == 0 {
				c, err := lockclient.New(connect(), "worker", &lockclient.Options{Logger: testkit.Logger(t)})
				testkit.Must(t, err)
				wg.Go(func() {
					defer c.Close(context.Background())
					lease, err := c.Acquire(t.Context(), "r", &lockclient.AcquireOptions{TTL: time.Minute})
					if err != nil {
						t.Error(err)
						return
					}
					granted(n)
					testkit.Check(t, lease.Release(t.Context()))
				})
			} else {
				wg.Go(func() {
					id := fmt.Sprint("id-", n)
					got := record(h, "POST", "/v1/locks/acquire", "", `{"resource":"r","ttlSeconds":60,"waitSeconds":60,"leaseId":"`+id+`"}`)
					if got.Code != 200 {
						t.Errorf("%d: %s", n, got.Body)
					}
					granted(n)
					record(h, "DELETE", "/v1/locks/"+id+"?resource=r", "", "")
				})
			}
			time.Sleep(time.Second)
		}
		record(h, "DELETE", "/v1/locks/"+held.LeaseID+"?resource=r", "", "")
		wg.Wait()
		if !slices.IsSorted(order) || len(order) != 8 {
			t.Errorf("granted in the order %v", order)
		}
	})
}

// serveInBubble runs a lock server in a bubble, and returns what makes clients with
// connections of their own.
func serveInBubble(t *testing.T, issuer driver.Issuer) (h *lockhttp.Server, connect func() driver.Issuer) {
	t.Helper()
	h = open(t, issuer, everybody, &lockhttp.Options{Timeout: usual})
	server, listener := &http.Server{Handler: h}, &pipes{make(chan net.Conn), make(chan struct{})}
	go server.Serve(listener)
	t.Cleanup(func() {
		testkit.Check(t, h.Close(context.Background()))
		server.Close()
	})
	return h, func() driver.Issuer {
		i, err := lockhttp.NewIssuer("http://h", &http.Client{Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
			near, far := net.Pipe()
			listener.conns <- far
			return near, nil
		}}})
		testkit.Must(t, err)
		t.Cleanup(func() { i.Close() })
		return i
	}
}

// TestNobodyPassesTheCalled: while a client that was notified has its first try, a
// request that waits under a lease ID of its own is not granted. The control waits for
// longer than the try is reserved.
func TestNobodyPassesTheCalled(t *testing.T) {
	t.Parallel()
	for wait, want := range map[string]int{"0.5": 409, "5": 200} {
		synctest.Test(t, func(t *testing.T) {
			server := memory.NewServer()
			h, connect := serveInBubble(t, server.Issuer())
			held := server.Steal("r", "holder", time.Hour)
			woken := make(chan struct{})
			if _, err := connect().Watch(t.Context(), driver.Watch{Resource: "r", LeaseID: "called"}, func() { close(woken) }); err != nil {
				t.Fatal(err)
			}
			record(h, "DELETE", "/v1/locks/"+held.LeaseID+"?resource=r", "", "")
			<-woken
			got := record(h, "POST", "/v1/locks/acquire", "", `{"resource":"r","ttlSeconds":60,"leaseId":"other","waitSeconds":`+wait+`}`)
			if got.Code != want {
				t.Errorf("after %s s: %d %s", wait, got.Code, got.Body)
			}
		})
	}
}

// TestRepeatedWhileOthersWait: a request that is repeated under its lease ID gets its lease
// again at once, although others wait for it and although it may wait too.
func TestRepeatedWhileOthersWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := open(t, memory.NewServer().Issuer(), everybody, &lockhttp.Options{Timeout: usual})
		acquire := func(leaseID string) (code int, body string) {
			got := record(h, "POST", "/v1/locks/acquire", "", `{"resource":"r","ttlSeconds":600,"waitSeconds":50,"leaseId":"`+leaseID+`"}`)
			return got.Code, got.Body.String()
		}
		acquire("mine")
		var others sync.WaitGroup
		for n := range 3 {
			others.Go(func() {
				if code, body := acquire(fmt.Sprint("other-", n)); code != 409 {
					t.Errorf("another: %d %s", code, body)
				}
			})
			time.Sleep(time.Second)
		}
		began := time.Now()
		if code, body := acquire("mine"); code != 200 || !strings.Contains(body, `"token":"1"`) || time.Since(began) > time.Second {
			t.Errorf("%d %s after %v", code, body, time.Since(began))
		}
		others.Wait()
		h.Close(t.Context())
	})
}
