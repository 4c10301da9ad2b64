package lockhttp_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/driver/memory"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin"
	"github.com/fencepost-go/fencepost/lockclient/lockhttp"
)

// far is a transport whose requests take a while to arrive.
type far struct {
	http.RoundTripper
	takes time.Duration
}

func (f far) RoundTrip(r *http.Request) (*http.Response, error) {
	time.Sleep(f.takes)
	return f.RoundTripper.RoundTrip(r)
}

// TestFarClients: clients whose requests take longer than the shortest time that a first
// try is reserved for are all granted, although some before them were called and never
// asked.
func TestFarClients(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		dead, clients int
		takes         time.Duration
	}{{3, 3, 150 * time.Millisecond}, {2, 6, 300 * time.Millisecond}, {4, 10, 150 * time.Millisecond}} {
		synctest.Test(t, func(t *testing.T) {
			server := memory.NewServer()
			h, connect := serveInBubble(t, server.Issuer())
			held := server.Steal("r", "holder", time.Hour)
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			for n := range c.dead {
				if _, err := connect(0).Watch(ctx, driver.Watch{Resource: "r", LeaseID: fmt.Sprint("dead", n)}, func() {}); err != nil {
					t.Fatal(err)
				}
				time.Sleep(10 * time.Millisecond)
			}
			done := make(chan error, c.clients)
			for range c.clients {
				time.Sleep(7 * time.Millisecond)
				client := guard.Must(lockclient.New(connect(c.takes), "worker", &lockclient.Options{Logger: testkit.Logger(t)}))
				go func() {
					defer client.Close(context.Background())
					lease, err := client.Acquire(ctx, "r", &lockclient.AcquireOptions{TTL: time.Minute})
					if err == nil {
						err = lease.Release(context.Background())
					}
					done <- err
				}()
			}
			time.Sleep(2 * time.Second)
			record(h, "DELETE", "/v1/locks/"+held.LeaseID+"?resource=r", "", "")
			for range c.clients {
				if err := <-done; err != nil {
					t.Errorf("%+v: %v", c, err)
				}
			}
			cancel()
			time.Sleep(time.Minute)
		})
	}
}

// admin is an operator of one lease.
type admin struct {
	lockadmin.Admin // nil: the lock server has no more requests than these
	get             func() (lockadmin.LeaseInfo, error)
	unlock          func(*lockadmin.ForceUnlockOptions) (lockadmin.ForceUnlocked, error)
}

func (a admin) List(context.Context, string, *lockadmin.ListOptions) iter.Seq2[lockadmin.LeaseInfo, error] {
	return func(yield func(lockadmin.LeaseInfo, error) bool) { yield(a.get()) }
}

func (a admin) Get(context.Context, string) (lockadmin.LeaseInfo, error) { return a.get() }

func (a admin) ForceUnlock(_ context.Context, _, _, _ string, o *lockadmin.ForceUnlockOptions) (lockadmin.ForceUnlocked, error) {
	return a.unlock(o)
}

func (a admin) Audit(context.Context, string, *lockadmin.AuditOptions) iter.Seq2[lockadmin.AuditRecord, error] {
	return func(func(lockadmin.AuditRecord, error) bool) {}
}

// halting does not carry out one renewal, and says so when all others are.
type halting struct {
	*memory.Issuer
	others  atomic.Int64 // that are not yet
	carried chan struct{}
	alone   atomic.Bool // they were not in time
}

func (h *halting) Renew(ctx context.Context, renewals []driver.Renewal, results []driver.Renewed) {
	if renewals[0].Claim.Resource == "r0" {
		select {
		case <-h.carried:
		case <-ctx.Done():
			h.alone.Store(true)
		}
		results[0].Err = guard.OutcomeUnknown("renew", renewals[0].Claim, errors.New("halted"))
		return
	}
	h.Issuer.Renew(ctx, renewals, results)
	if h.others.Add(-1) == 0 {
		close(h.carried)
	}
}

// TestStuckRenewalDelaysNoOther: a renewal that the issuer does not carry out keeps no other of the
// Go client's from being carried out meanwhile.
func TestStuckRenewalDelaysNoOther(t *testing.T) {
	t.Parallel()
	server := memory.NewServer()
	issuer := &halting{Issuer: server.Issuer(), carried: make(chan struct{})}
	web, _ := serve(t, issuer, everybody, nil)
	client := connect(t, web.URL)
	var renewals []driver.Renewal
	for n := range client.Limits().Batch {
		renewals = append(renewals, driver.Renewal{Claim: server.Steal(fmt.Sprint("r", n), "a", time.Hour), TTL: time.Hour})
	}
	issuer.others.Store(int64(len(renewals) - 1))
	results := make([]driver.Renewed, len(renewals))
	client.Renew(t.Context(), renewals, results)
	for n, got := range results {
		if n == 0 && !errors.Is(got.Err, guard.ErrOutcomeUnknown) || n > 0 && got.State != driver.Extended {
			t.Errorf("%d: %+v", n, got)
		}
	}
	if issuer.alone.Load() {
		t.Error("the others waited for it")
	}
}

// TestNamedStates (P6): what no retry cures is named so, wherever it is seen.
func TestNamedStates(t *testing.T) {
	t.Parallel()
	setup := guard.Setup("x", guard.Claim{}, errors.New("no schema"))
	web, _ := serve(t, failed{memory.NewServer().Issuer(), setup}, everybody, &lockhttp.Options{Admin: admin{
		get: func() (lockadmin.LeaseInfo, error) { return lockadmin.LeaseInfo{}, setup },
	}})
	if got := ask(t, web.URL, "", "GET", "/readyz", ""); got.status != 500 || got.problem() != "setup" || got.header.Get("Retry-After") != "" {
		t.Errorf("readiness: %d %s", got.status, got.text)
	}
	if got := ask(t, web.URL, "", "GET", "/v1/locks", ""); got.status != 500 || !strings.Contains(got.text, "An operator must repair") {
		t.Errorf("the list: %d %s", got.status, got.text)
	}
	i := connect(t, web.URL+"/wrong")
	_, acquired := i.Acquire(t.Context(), driver.Request{Resource: "r", LeaseID: "L", Owner: "o", TTL: time.Minute, Timeout: time.Minute})
	_, released := i.Release(t.Context(), guard.Claim{Resource: "r", LeaseID: "L", Token: 1})
	if guard.ReasonOf(acquired) != guard.ReasonSetup || guard.ReasonOf(released) != guard.ReasonSetup {
		t.Errorf("a wrong path: %v, %v", acquired, released)
	}
	web, _ = serve(t, failed{memory.NewServer().Issuer(), driver.ErrNoWatch}, everybody, nil)
	for _, path := range []string{"/v1/watch?resource=r", "/v1/resources/r"} {
		ask(t, web.URL, "", "GET", path, "").want(t, 501)
	}
}
