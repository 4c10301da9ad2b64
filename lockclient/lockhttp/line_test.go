package lockhttp_test

import (
	"context"
	"fmt"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
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

// impatient is an issuer that does not answer attempts with a short timeout.
type impatient struct{ *memory.Issuer }

func (i impatient) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if r.Owner == "hasty" && r.Waiting && r.Timeout < 30*time.Second {
		return driver.Grant{}, guard.OutcomeUnknown("acquire", r.Claim(), context.DeadlineExceeded)
	}
	return i.Issuer.Acquire(ctx, r)
}

// TestFailureOfTheFirst: the first in the queue has less time than the server gives an
// attempt, and the issuer does not answer in that time. Only the first gets
// that error; the other waits on and is granted.
func TestFailureOfTheFirst(t *testing.T) {
	t.Parallel()
	server := memory.NewServer()
	first := &first{impatient: impatient{server.Issuer()}}
	handler := open(t, first, everybody, &lockhttp.Options{MaxWait: time.Hour})
	defer handler.Close(t.Context())
	server.Steal("r", "holder", time.Hour)
	first.then = make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		got := record(handler, "POST", "/v1/locks/acquire", "", `{"resource":"r","ownerId":"hasty","ttlSeconds":20,"waitSeconds":600}`)
		if got.status != 500 || !strings.Contains(got.text, "outcome_unknown") {
			t.Errorf("the hasty one: %d %s", got.status, got.text)
		}
	})
	waiting := func(n int) func() bool {
		return func() bool {
			return strings.Contains(record(handler, "GET", "/v1/resources/r", "", "").text, fmt.Sprintf(`"waiting":%d`, n))
		}
	}
	testkit.Eventually(t, "the hasty one waits", waiting(1))
	wg.Go(func() {
		got := record(handler, "POST", "/v1/locks/acquire", "", `{"resource":"r","ownerId":"patient","ttlSeconds":600,"waitSeconds":600}`)
		if got.status != 200 || !strings.Contains(got.text, `"acquired":true`) {
			t.Errorf("the patient one: %d %s", got.status, got.text)
		}
	})
	testkit.Eventually(t, "both wait", waiting(2))
	close(first.then)
	server.Expire("r")
	wg.Wait()
}

// first answers the first attempt with a refusal, which lets it join the line,
// and the second when it is told to.
type first struct {
	impatient
	calls atomic.Int64
	then  chan struct{}
}

func (f *first) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	switch f.calls.Add(1) {
	case 1:
		return driver.Grant{}, &driver.HeldError{Resource: r.Resource, Remaining: time.Hour}
	case 2:
		<-f.then
	}
	return f.impatient.Acquire(ctx, r)
}

// TestClientsInLine: many Go clients, each a process of its own, wait through one
// server for one resource. However they are woken, the issuer is asked about
// twice per grant, and only one of them watches there.
func TestClientsInLine(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"released", "run out"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { clientsInLine(t, kind == "run out") })
		})
	}
}

func clientsInLine(t *testing.T, runOut bool) {
	const clients, rounds = 40, 5
	server := memory.NewServer()
	issuer := &counting{Issuer: server.Issuer()}
	_, connect := serveInBubble(t, issuer)
	server.Steal("r", "holder", time.Hour)
	var wg sync.WaitGroup
	for n := range clients {
		c, err := lockclient.New(connect(0), fmt.Sprint("worker-", n), &lockclient.Options{Logger: testkit.Logger(t)})
		testkit.Must(t, err)
		wg.Go(func() {
			defer c.Close(context.WithoutCancel(t.Context()))
			for range rounds {
				lease, err := c.Acquire(t.Context(), "r", &lockclient.AcquireOptions{TTL: time.Minute})
				if err != nil {
					t.Error(err)
					return
				}
				if runOut {
					server.Expire("r")
					continue
				}
				testkit.Check(t, lease.Release(t.Context()))
			}
		})
	}
	time.Sleep(100 * time.Millisecond)
	if n := issuer.watching.Load(); n != 1 || issuer.acquires.Load() < clients {
		t.Errorf("%d watches at the issuer of %d clients, after %d attempts", n, clients, issuer.acquires.Load())
	}
	server.Expire("r")
	wg.Wait()
	grants, attempts := issuer.granted.Load(), issuer.acquires.Load()
	t.Logf("%d attempts for %d grants, %d watches", attempts, grants, issuer.watches.Load())
	if grants < clients*rounds || attempts > 5*grants/2 {
		t.Errorf("%d attempts for %d grants", attempts, grants)
	}
}

// counting counts the requests to an issuer.
type counting struct {
	*memory.Issuer
	acquires, granted, watches, watching atomic.Int64
}

func (c *counting) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	c.acquires.Add(1)
	g, err := c.Issuer.Acquire(ctx, r)
	if err == nil {
		c.granted.Add(1)
	}
	return g, err
}

func (c *counting) Watch(ctx context.Context, w driver.Watch, wake func()) (driver.Watching, error) {
	c.watches.Add(1)
	watching, err := c.Issuer.Watch(ctx, w, wake)
	if err != nil {
		return watching, err
	}
	c.watching.Add(1)
	stop := watching.Stop
	watching.Stop = sync.OnceFunc(func() { c.watching.Add(-1); stop() })
	return watching, nil
}

// failing is an issuer that does not respond, or is busy, while the test says so, and
// counts how many ask at once.
type failing struct {
	counting
	down, busy, once atomic.Bool
	asking, most     atomic.Int64
}

func (f *failing) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	n := f.asking.Add(1)
	defer f.asking.Add(-1)
	for most := f.most.Load(); n > most && !f.most.CompareAndSwap(most, n); most = f.most.Load() {
	}
	switch {
	case f.down.Load():
		<-ctx.Done()
		return driver.Grant{}, guard.OutcomeUnknown("acquire", r.Claim(), context.Cause(ctx))
	case f.busy.Load():
		f.acquires.Add(1)
		return driver.Grant{}, guard.Unavailable("acquire", r.Claim(), driver.ErrBusy)
	}
	time.Sleep(time.Millisecond)
	if f.once.CompareAndSwap(true, false) {
		return driver.Grant{}, guard.OutcomeUnknown("acquire", r.Claim(), context.DeadlineExceeded)
	}
	return f.counting.Acquire(ctx, r)
}

func (f *failing) Watch(ctx context.Context, w driver.Watch, wake func()) (driver.Watching, error) {
	switch {
	case f.down.Load():
		<-ctx.Done()
		return driver.Watching{}, context.Cause(ctx)
	case f.busy.Load():
		return driver.Watching{}, driver.ErrNoWatch
	}
	return f.counting.Watch(ctx, w, wake)
}

// TestIssuerFailsTheQueue: what those that wait together get when the issuer stops
// responding, fails once, or is busy.
func TestIssuerFailsTheQueue(t *testing.T) {
	t.Parallel()
	start := func(t *testing.T) (*memory.Server, *failing, *lockhttp.Server) {
		server := memory.NewServer()
		server.Steal("r", "holder", time.Hour)
		issuer := &failing{counting: counting{Issuer: server.Issuer()}}
		h := open(t, issuer, everybody, &lockhttp.Options{Timeout: usual})
		return server, issuer, h
	}
	waits := func(h *lockhttp.Server, seconds int) int {
		return record(h, "POST", "/v1/locks/acquire", "", fmt.Sprintf(`{"resource":"r","ttlSeconds":60,"waitSeconds":%d}`, seconds)).status
	}
	testkit.Bubble(t, "no response", func(t *testing.T) {
		_, issuer, h := start(t)
		var wg sync.WaitGroup
		for n := range 20 { // Go clients stand before the others
			wg.Go(func() { record(h, "GET", fmt.Sprintf("/v1/watch?resource=r&leaseId=w%d", n), "", "") })
			time.Sleep(time.Millisecond)
		}
		for range 30 {
			wg.Go(func() {
				began := time.Now()
				if code := waits(h, 50); code != 500 || time.Since(began) > 15*time.Second {
					t.Errorf("%d after %v", code, time.Since(began))
				}
			})
		}
		time.Sleep(time.Second)
		issuer.down.Store(true)
		wg.Wait()
		h.Close(context.Background())
	})
	testkit.Bubble(t, "one failure", func(t *testing.T) {
		server, issuer, h := start(t)
		var wg sync.WaitGroup
		var failed atomic.Int64
		for range 200 {
			wg.Go(func() {
				if waits(h, 20) == 500 {
					failed.Add(1)
				}
			})
		}
		time.Sleep(3 * time.Second)
		issuer.most.Store(0)
		issuer.once.Store(true)
		server.Expire("r")
		server.Steal("r", "holder", time.Hour)
		wg.Wait()
		if failed.Load() != 1 || issuer.most.Load() > 3 {
			t.Errorf("%d of 200 failed, and %d asked at once", failed.Load(), issuer.most.Load())
		}
		h.Close(context.Background())
	})
	testkit.Bubble(t, "busy", func(t *testing.T) {
		_, issuer, h := start(t)
		issuer.busy.Store(true)
		if code := waits(h, 10); code != 503 || issuer.acquires.Load() > 250 {
			t.Errorf("%d after %d attempts in ten seconds", code, issuer.acquires.Load())
		}
		h.Close(context.Background())
	})
	testkit.Bubble(t, "overtaken", func(t *testing.T) {
		_, issuer, h := start(t)
		ctx, cancel := context.WithCancel(t.Context())
		watch := func(ctx context.Context) {
			h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, "GET", "/v1/watch?resource=r&leaseId=w", nil))
		}
		go watch(ctx)
		time.Sleep(time.Millisecond)
		var wg sync.WaitGroup
		wg.Go(func() { waits(h, 30) })
		time.Sleep(time.Millisecond)
		cancel()
		time.Sleep(time.Millisecond)
		wg.Go(func() { watch(t.Context()) }) // it has its first place again
		time.Sleep(5 * time.Second)
		if n := issuer.watching.Load(); n != 1 {
			t.Errorf("%d watches at the issuer, the first alone needs one", n)
		}
		wg.Wait()
		h.Close(context.Background())
	})
}

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
	holder := connect(0)
	g, err := holder.Acquire(t.Context(), driver.Request{Resource: "r", LeaseID: "held", Owner: "o", TTL: time.Minute, Timeout: time.Minute})
	testkit.Must(t, err)
	var mu sync.Mutex
	var woken []string
	clients := map[string]driver.Issuer{"1": connect(0), "2": connect(0), "3": connect(0)}
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
				c, err := lockclient.New(connect(0), "worker", &lockclient.Options{Logger: testkit.Logger(t)})
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
					if got.status != 200 {
						t.Errorf("%d: %s", n, got.text)
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
			if _, err := connect(0).Watch(t.Context(), driver.Watch{Resource: "r", LeaseID: "called"}, func() { close(woken) }); err != nil {
				t.Fatal(err)
			}
			record(h, "DELETE", "/v1/locks/"+held.LeaseID+"?resource=r", "", "")
			<-woken
			got := record(h, "POST", "/v1/locks/acquire", "", `{"resource":"r","ttlSeconds":60,"leaseId":"other","waitSeconds":`+wait+`}`)
			if got.status != want {
				t.Errorf("after %s s: %d %s", wait, got.status, got.text)
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
			return got.status, got.text
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
