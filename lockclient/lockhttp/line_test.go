package lockhttp_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
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

// TestHastyWaiter: the first in line has less time than the server gives an
// attempt, and the issuer does not answer in that time. Only the first gets
// that error; the other waits on and is granted.
func TestHastyWaiter(t *testing.T) {
	t.Parallel()
	server := memory.NewServer()
	first := &first{impatient: impatient{server.Issuer()}}
	handler, err := lockhttp.New(first, everybody, &lockhttp.Options{Timeout: time.Minute, MaxWait: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	defer handler.Close(t.Context())
	server.Steal("r", "holder", time.Hour)
	first.then = make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		got := record(handler, "POST", "/v1/locks/acquire", "", `{"resource":"r","ownerId":"hasty","ttlSeconds":20,"waitSeconds":600}`)
		if got.Code != 500 || !strings.Contains(got.Body.String(), "outcome_unknown") {
			t.Errorf("the hasty one: %d %s", got.Code, got.Body)
		}
	})
	waiting := func(n int) func() bool {
		return func() bool {
			return strings.Contains(record(handler, "GET", "/v1/locks/r", "", "").Body.String(), fmt.Sprintf(`"waiting":%d`, n))
		}
	}
	until(t, waiting(1))
	wg.Go(func() {
		got := record(handler, "POST", "/v1/locks/acquire", "", `{"resource":"r","ownerId":"patient","ttlSeconds":600,"waitSeconds":600}`)
		if got.Code != 200 || !strings.Contains(got.Body.String(), `"acquired":true`) {
			t.Errorf("the patient one: %d %s", got.Code, got.Body)
		}
	})
	until(t, waiting(2))
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
	const clients, rounds = 40, 5
	for _, kind := range []string{"released", "run out"} {
		t.Run(kind, func(t *testing.T) {
			server := memory.NewServer()
			issuer := &counting{Issuer: server.Issuer()}
			web, _ := serve(t, issuer, everybody, &lockhttp.Options{Timeout: time.Minute})
			server.Steal("r", "holder", time.Hour)
			var wg sync.WaitGroup
			for n := range clients {
				i, err := lockhttp.NewIssuer(web.URL, &http.Client{Transport: &http.Transport{}})
				if err != nil {
					t.Fatal(err)
				}
				c, err := lockclient.NewWith(i, fmt.Sprint("worker-", n), nil)
				if err != nil {
					t.Fatal(err)
				}
				wg.Go(func() {
					defer i.Close()
					defer c.Close(context.WithoutCancel(t.Context()))
					for range rounds {
						lease, err := c.Acquire(t.Context(), "r", &lockclient.AcquireOptions{TTL: time.Minute})
						if err != nil {
							t.Error(err)
							return
						}
						if kind == "run out" {
							server.Expire("r")
							continue
						}
						if err := lease.Release(t.Context()); err != nil {
							t.Error(err)
						}
					}
				})
			}
			until(t, func() bool { return issuer.acquires.Load() >= clients })
			time.Sleep(100 * time.Millisecond)
			t.Logf("%d watches of %d clients that wait, %d attempts", issuer.watching.Load(), clients, issuer.acquires.Load())
			if n := issuer.watching.Load(); n > 2 {
				t.Errorf("%d watches at the issuer", n)
			}
			server.Expire("r")
			wg.Wait()
			grants := issuer.granted.Load()
			t.Logf("%d attempts for %d grants, %d watches", issuer.acquires.Load(), grants, issuer.watches.Load())
			if n := issuer.acquires.Load(); grants < clients*rounds || n > 5*grants/2 {
				t.Errorf("%d attempts for %d grants", n, grants)
			}
		})
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
