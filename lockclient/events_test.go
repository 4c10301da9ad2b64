package lockclient

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/internal/leasetest"
	"github.com/fencepost-go/fencepost/lockclient/internal/report"
)

// stuck is a logger and an observer that block from some time on, as on a full pipe.
type stuck struct {
	slog.Handler
	on   atomic.Bool
	gate chan struct{}
	hits atomic.Int64
}

func (s *stuck) block() {
	if s.on.Load() {
		s.hits.Add(1)
		<-s.gate
	}
}

func (s *stuck) Enabled(context.Context, slog.Level) bool  { s.block(); return true }
func (s *stuck) Handle(context.Context, slog.Record) error { s.block(); return nil }
func (s *stuck) Observe(context.Context, guard.Event)      { s.block() }
func (s *stuck) options(logs bool) (o *Options) {
	if logs {
		return &Options{Logger: slog.New(s)}
	}
	return &Options{Logger: slog.New(slog.DiscardHandler), Observer: s}
}

// TestLossIsKnownWhileLoggerBlocks is P7 with a logger, or an observer, that blocks: all
// holders learn of the loss of their leases by their deadlines, those whose renewals
// fail as well as those whose renewals get no response.
func TestLossIsKnownWhileLoggerBlocks(t *testing.T) {
	const holders, ttl = 20, 30 * time.Second
	for _, logs := range []bool{true, false} {
		for _, hangs := range []bool{true, false} {
			testkit.Bubble(t, fmt.Sprintf("logs=%t/hangs=%t", logs, hangs), func(t *testing.T) {
				s := &stuck{gate: make(chan struct{})}
				i := &answering{limits: driver.Limits{Batch: 100}}
				i.renew = func(ctx context.Context, renewals []driver.Renewal, results []driver.Renewed) {
					for n, r := range renewals {
						results[n] = driver.Renewed{State: driver.Extended, From: i.clock()}
						if s.on.Load() {
							results[n] = driver.Renewed{Err: guard.Unavailable("renew", r.Claim, errSimulated)}
						}
					}
					if s.on.Load() && hangs {
						<-ctx.Done()
					}
				}
				client := i.client(t, s.options(logs))
				var lost atomic.Int64
				var wg sync.WaitGroup
				for n := range holders {
					wg.Go(func() {
						client.Hold(context.Background(), fmt.Sprint("r", n), &AcquireOptions{TTL: ttl}, func(ctx context.Context) error {
							<-ctx.Done()
							if errors.Is(context.Cause(ctx), ErrLeaseLost) {
								lost.Add(1)
							}
							return nil
						})
					})
				}
				time.Sleep(time.Minute) // they are renewed
				if n := lost.Load(); n != 0 {
					t.Errorf("%d of %d were lost before", n, holders)
				}
				s.on.Store(true)
				time.Sleep(ttl)
				if n := lost.Load(); n != holders || s.hits.Load() == 0 {
					t.Errorf("%d of %d holders know of their loss by the deadline; blocked %d times", n, holders, s.hits.Load())
				}
				s.on.Store(false)
				close(s.gate)
				wg.Wait()
			})
		}
	}
}

// TestExtendedWhileLoggerBlocks: leases that the issuer has extended, late enough for a
// warning, are extended for their holders although the warning blocks.
func TestExtendedWhileLoggerBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stuck{gate: make(chan struct{})}
		i := &answering{limits: driver.Limits{Batch: 100}}
		var slow atomic.Bool
		i.renew = func(_ context.Context, renewals []driver.Renewal, results []driver.Renewed) {
			from := i.clock()
			if slow.CompareAndSwap(true, false) {
				time.Sleep(15 * time.Second)
				from = i.clock()
			}
			for n := range renewals {
				results[n] = driver.Renewed{State: driver.Extended, From: from}
			}
		}
		client := i.client(t, s.options(true))
		var leases []*Lease
		for n := range 20 {
			lease := mustTry(t, client, fmt.Sprint("r", n), 30*time.Second)
			testkit.Must(t, lease.KeepAlive(0))
			leases = append(leases, lease)
		}
		time.Sleep(time.Minute)
		s.on.Store(true)
		slow.Store(true)
		time.Sleep(10 * time.Minute)
		for _, l := range leases {
			testkit.Check(t, l.Err())
		}
		if s.hits.Load() == 0 {
			t.Error("nothing blocked: the test shows nothing")
		}
		s.on.Store(false)
		close(s.gate)
		for _, l := range leases {
			testkit.Check(t, l.Release(t.Context()))
		}
	})
}

// TestCallsWhileLoggerBlocks: no call waits for a logger that blocks, and what it does not
// get is counted once it goes on.
func TestCallsWhileLoggerBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stuck{gate: make(chan struct{})}
		s.on.Store(true)
		var dropped atomic.Int64
		s.Handler = slog.DiscardHandler
		client := (&answering{}).client(t, &Options{Logger: slog.New(counts{s, &dropped})})
		began := time.Now()
		mustTry(t, client, "first", time.Minute).Release(t.Context())
		synctest.Wait() // its first event is no longer in the queue
		for n := range report.Most {
			lease := mustTry(t, client, fmt.Sprint("r", n), time.Minute)
			testkit.Must(t, errors.Join(lease.Renew(t.Context()), lease.Release(t.Context())))
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("the calls took %v", took)
		}
		if err := client.Close(t.Context()); err != nil || time.Since(began) != reportTimeout {
			t.Errorf("closed after %v: %v", time.Since(began), err)
		}
		s.on.Store(false)
		close(s.gate)
		synctest.Wait()
		if want := int64(2*report.Most + 1); dropped.Load() != want { // three events each, and one that was in the queue
			t.Errorf("%d events were dropped, want %d", dropped.Load(), want)
		}
	})
}

// counts adds up what lock_events_dropped says.
type counts struct {
	slog.Handler
	n *atomic.Int64
}

func (c counts) Handle(ctx context.Context, r slog.Record) error {
	if r.Message == "lock_events_dropped" {
		r.Attrs(func(a slog.Attr) bool {
			if a.Key == "count" {
				c.n.Add(a.Value.Int64())
			}
			return true
		})
	}
	return c.Handler.Handle(ctx, r)
}

// TestRenewedAfterItsEnd: a lease that ends between the response to its renewal and what
// the keeper does about that is not looked at any more. Otherwise the keeper would look
// at it without a pause until its deadline.
func TestRenewedAfterItsEnd(t *testing.T) {
	i := &answering{simulation: simulation{driver.Now}}
	client := i.client(t, nil)
	lease, k := mustTry(t, client, "r", time.Hour), &client.keeper
	hold := make(chan struct{})
	i.renew = func(_ context.Context, _ []driver.Renewal, results []driver.Renewed) {
		<-hold
		results[0] = driver.Renewed{State: driver.Extended, From: driver.Now()}
	}
	testkit.Must(t, lease.KeepAlive(20*time.Millisecond))
	testkit.Eventually(t, "a renewal", func() bool { return i.renewals() > 0 })
	k.mu.Lock() // which what follows the renewal waits for
	close(hold)
	testkit.Eventually(t, "the response", func() bool {
		lease.mu.Lock()
		defer lease.mu.Unlock()
		return !lease.renewing
	})
	lease.mu.Lock() // as Release ends it
	lease.err = ErrReleased
	close(lease.done)
	lease.mu.Unlock()
	k.leases.Pop()
	k.mu.Unlock()
	k.wg.Wait() // what follows the renewal has ended
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.leases) != 0 {
		t.Error("a lease that has ended is watched")
	}
}

// TestLeaseContext: the context of a lease carries it, and ends with the lease and with
// the context that it comes from.
func TestLeaseContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := (&answering{}).client(t, nil)
		lease := mustTry(t, client, "r", time.Minute)
		ctx := lease.Context(t.Context())
		if held, ok := guard.LeaseFrom(ctx); !ok || held != guard.Lease(lease) || ctx.Err() != nil {
			t.Errorf("it carries %v, %v", held, ctx.Err())
		}
		outer, cancel := context.WithCancel(t.Context())
		inner := lease.Context(outer)
		cancel()
		if inner.Err() == nil || ctx.Err() != nil || !lease.Valid() {
			t.Error("the end of the outer context ended the lease or another context, or not its own")
		}
		time.Sleep(time.Minute)
		if <-ctx.Done(); !errors.Is(context.Cause(ctx), ErrLeaseLost) {
			t.Errorf("the cause is %v", context.Cause(ctx))
		}
		if late := lease.Context(t.Context()); !errors.Is(context.Cause(late), ErrLeaseLost) {
			t.Errorf("of a lost lease, the cause is %v", context.Cause(late))
		}
		lease = mustTry(t, client, "r", time.Minute)
		ctx = lease.Context(t.Context())
		if err := lease.Release(t.Context()); err != nil || context.Cause(ctx) != ErrReleased {
			t.Errorf("after the release, %v, the cause is %v", err, context.Cause(ctx))
		}
	})
}

// TestDefaultOptions: without options a lease lasts for half a minute, or what the issuer
// allows that is next to it.
func TestDefaultOptions(t *testing.T) {
	for _, test := range []struct {
		limits driver.Limits
		want   time.Duration
	}{
		{driver.Limits{}, 30 * time.Second},
		{driver.Limits{MinTTL: time.Minute}, time.Minute},
		{driver.Limits{MaxTTL: 20 * time.Second}, 20 * time.Second},
		{driver.Limits{TTLStep: 7 * time.Second}, 28 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			client := (&answering{limits: test.limits}).client(t, nil)
			for _, opts := range []*AcquireOptions{nil, {}} {
				err := client.Hold(t.Context(), "r", opts, func(ctx context.Context) error {
					if lease := leaseFrom(ctx); lease.TTL() != test.want || lease.kept() != test.want/3 {
						t.Errorf("%+v: TTL %v, renewed every %v", test.limits, lease.TTL(), lease.kept())
					}
					return nil
				})
				testkit.Check(t, err)
			}
		})
	}
}

// TestP8CallersDeadline: an attempt ends for the issuer when its caller's context does.
func TestP8CallersDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := &answering{}
		client := i.client(t, nil)
		for limit, want := range map[time.Duration]time.Duration{50 * time.Millisecond: 50 * time.Millisecond, time.Minute: 5 * time.Second} {
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			for _, acquire := range []func(context.Context, string, *AcquireOptions) (*Lease, error){client.TryAcquire, client.Acquire} {
				lease, err := acquire(ctx, "r", nil)
				testkit.Must(t, err)
				lease.Release(t.Context())
				if got := i.acquired[len(i.acquired)-1].Timeout; got != want {
					t.Errorf("with %v left the issuer is given %v, want %v", limit, got, want)
				}
			}
			cancel()
		}
	})
}

// overdue is a context whose deadline has passed and that does not say so yet, as while its
// timer is late.
type overdue struct{ context.Context }

func (overdue) Deadline() (time.Time, bool) { return time.Now().Add(-1), true }

// TestOverdue: nothing is asked for after the deadline of the context.
func TestOverdue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := &answering{}
		_, err := i.client(t, nil).TryAcquire(overdue{t.Context()}, "r", nil)
		if failure(t, err, guard.ErrUnavailable, "r", context.DeadlineExceeded); len(i.acquired) != 0 {
			t.Errorf("asked for %+v", i.acquired)
		}
	})
}

// TestWhereaboutsStayInside: leases without metadata say where their holder runs, but not
// to other tenants, which are told when they are refused.
func TestWhereaboutsStayInside(t *testing.T) {
	for namespace, want := range map[string]string{"": whereabouts(), "tenant": ""} {
		synctest.Test(t, func(t *testing.T) {
			i := &answering{limits: driver.Limits{MetadataBytes: 1000}}
			mustTry(t, i.client(t, &Options{Namespace: namespace}), "r", time.Minute)
			if got := i.acquired[0].Metadata; got != want {
				t.Errorf("namespace %q: metadata %q, want %q", namespace, got, want)
			}
		})
	}
}

// TestWaitGoesOn: a wait goes on over refused connections and lost responses, with
// growing pauses, and logs the first. What no retry cures ends it.
func TestWaitGoesOn(t *testing.T) {
	for name, test := range map[string]struct {
		err  error
		ends bool
	}{
		"refused": {guard.Unavailable("acquire", guard.Claim{}, errSimulated), false},
		"lost":    {guard.OutcomeUnknown("acquire", guard.Claim{}, errSimulated), false},
		"setup":   {guard.Setup("acquire", guard.Claim{}, errSimulated), true},
	} {
		testkit.Bubble(t, name, func(t *testing.T) {
			rec := &recorder{}
			i := &answering{}
			began := time.Now()
			i.acquire = func(_ context.Context, r driver.Request) (driver.Grant, error) {
				if time.Since(began) > time.Minute {
					return driver.Grant{Token: 7, From: i.clock()}, nil
				}
				return driver.Grant{}, test.err
			}
			client := i.client(t, &Options{Logger: slog.New(slog.NewJSONHandler(rec, nil))})
			lease, err := client.Acquire(t.Context(), "r", nil)
			if test.ends {
				if !errors.Is(err, guard.ErrSetup) || time.Since(began) > time.Second {
					t.Errorf("after %v: %v", time.Since(began), err)
				}
				return
			}
			if err != nil || lease.Token() != 7 {
				t.Fatal(err)
			}
			if asked, _, _ := i.counts(); name == "refused" && (asked < 50 || asked > 150) {
				t.Errorf("asked %d times in a minute", asked)
			}
			synctest.Wait()
			if n := rec.Count("lock_acquire_retried"); n != 1 {
				t.Errorf("logged %d times", n)
			}
			limited, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			i.acquire = func(context.Context, driver.Request) (driver.Grant, error) { return driver.Grant{}, test.err }
			if _, err := client.Acquire(limited, "s", nil); !errors.Is(err, context.DeadlineExceeded) || guard.ReasonOf(err) != guard.ReasonOf(test.err) {
				t.Errorf("ended: %v", err)
			}
		})
	}
}

// TestFailedRenewalsSlowDown: renewals that fail are tried again, in the last part of
// their TTL too, and not several times a second for a day.
func TestFailedRenewalsSlowDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := &answering{}
		i.renew = func(_ context.Context, renewals []driver.Renewal, results []driver.Renewed) {
			results[0].Err = guard.Unavailable("renew", renewals[0].Claim, errSimulated)
		}
		lease := mustTry(t, i.client(t, nil), "r", 24*time.Hour)
		testkit.Must(t, lease.KeepAlive(0))
		time.Sleep(9 * time.Hour)
		before := i.renewals()
		time.Sleep(time.Hour)
		if n := i.renewals() - before; n < 360 || n > 720 {
			t.Errorf("%d renewals in an hour, want one each 5 to 10 s", n)
		}
		<-lease.Done()
	})
}

// TestLogLines: every attribute of every event, and what is observed and
// counted besides.
func TestLogLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const slow = 2 * time.Second // each request
		var log leasetest.Text
		var mu sync.Mutex
		var seen []guard.Event
		i := &answering{}
		i.acquire = func(_ context.Context, r driver.Request) (driver.Grant, error) {
			from := i.clock()
			time.Sleep(slow)
			switch r.Resource {
			case "held":
				return driver.Grant{}, &HeldError{Resource: r.Resource, Owner: "another", Token: 9, Remaining: 1500 * time.Millisecond}
			case "down":
				return driver.Grant{}, guard.Unavailable("acquire", r.Claim(), errSimulated)
			}
			return driver.Grant{Token: 7, From: from, Reclaimed: r.Resource == "reclaimed"}, nil
		}
		i.renew = func(_ context.Context, renewals []driver.Renewal, results []driver.Renewed) {
			from := i.clock()
			time.Sleep(slow)
			switch len(i.renewed) {
			case 1, 4:
				results[0] = driver.Renewed{State: driver.Extended, From: from}
			case 6:
				results[0] = driver.Renewed{State: driver.Over}
			default:
				results[0] = driver.Renewed{Err: guard.Unavailable("renew", renewals[0].Claim, errSimulated)}
			}
		}
		i.release = func(_ context.Context, claim guard.Claim) (bool, error) {
			if time.Sleep(slow); claim.Resource == "stuck" {
				return false, guard.Unavailable("release", claim, errSimulated)
			}
			return true, nil
		}
		client := i.client(t, &Options{
			Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
				if a.Key == slog.TimeKey {
					return slog.Attr{}
				}
				return a
			}})),
			Observer: guard.ObserverFunc(func(_ context.Context, e guard.Event) {
				mu.Lock()
				defer mu.Unlock()
				seen = append(seen, e)
			}),
		})
		try := func(resource string) *Lease {
			l, _ := client.TryAcquire(t.Context(), resource, &AcquireOptions{TTL: time.Minute, LeaseID: "id"})
			return l
		}
		reset := func() {
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			log.Reset()
			seen = nil
		}
		expect := func(step string, line string, ops ...guard.Event) {
			t.Helper()
			synctest.Wait()
			if got := strings.TrimSuffix(log.String(), "\n"); got != line {
				t.Errorf("%s: logged\n%s, want\n%s", step, got, line)
			}
			log.Reset()
			mu.Lock()
			defer mu.Unlock()
			if len(seen) != len(ops) {
				t.Fatalf("%s: observed %+v", step, seen)
			}
			for n, want := range ops {
				got := seen[n]
				if got.Err == nil != (want.Reason == guard.ReasonOf(nil)) {
					t.Errorf("%s: error %v", step, got.Err)
				}
				got.Err, want.Surface = nil, guard.SurfaceLock
				if got != want {
					t.Errorf("%s: observed\n%+v, want\n%+v", step, got, want)
				}
			}
			seen = nil
		}
		claim := func(resource string, token guard.Token) guard.Claim {
			return guard.Claim{Resource: resource, Token: token, LeaseID: "id"}
		}
		held, down, ok := guard.ReasonOf(ErrHeld), guard.ReasonUnavailable, guard.ReasonOf(nil)
		attrs := func(resource, token string) string {
			return ` resource=` + resource + ` ownerId=o leaseId=id fencingToken=` + token
		}
		failed := ` error="fencepost: `

		lease := try("r")
		expect("granted", "level=INFO msg=lock_acquired"+attrs("r", "7")+" ttlSeconds=60 waitedSeconds=2",
			guard.Event{Op: guard.OpAcquire, Claim: claim("r", 7), Reason: ok, Duration: slow})
		renewed := "level=DEBUG msg=lock_renewed" + attrs("r", "7") + " ttlSeconds=60 renewalSeconds=2"
		notRenewed := "level=WARN msg=lock_renew_failed" + attrs("r", "7") + ` ttlSeconds=60` + failed + `renew: ` + guard.ErrUnavailable.Error() + `: token 7 for \"r\": simulated"`
		for n, line := range []string{renewed, notRenewed, "", renewed, notRenewed} {
			reason := down
			if line == renewed {
				reason = ok
			}
			lease.Renew(t.Context())
			expect(fmt.Sprint("renewal ", n), line, guard.Event{Op: guard.OpRenew, Claim: claim("r", 7), Reason: reason, Duration: slow})
		}
		lease.Release(t.Context())
		expect("released", "level=INFO msg=lock_released"+attrs("r", "7")+" ttlSeconds=60 heldSeconds=12",
			guard.Event{Op: guard.OpRelease, Claim: claim("r", 7), Reason: ok, Duration: 12 * time.Second})
		lease = try("cut")
		reset()
		lease.Renew(t.Context())
		cut := failed + ErrLeaseLost.Error() + `: token 7 for \"cut\": ` + errGone.Error() + `"`
		expect("lost at a renewal", "level=WARN msg=lock_lost"+attrs("cut", "7")+` ttlSeconds=60 heldSeconds=2`+cut+"\nlevel=WARN msg=lock_renew_failed"+attrs("cut", "7")+` ttlSeconds=60`+cut,
			guard.Event{Op: guard.OpLost, Claim: claim("cut", 7), Reason: guard.ReasonLeaseLost, Duration: slow},
			guard.Event{Op: guard.OpRenew, Claim: claim("cut", 7), Reason: guard.ReasonLeaseLost, Duration: slow})
		lease.Release(t.Context())
		expect("released after it was lost", "level=INFO msg=lock_released"+attrs("cut", "7")+" ttlSeconds=60 heldSeconds=4",
			guard.Event{Op: guard.OpRelease, Claim: claim("cut", 7), Reason: ok, Duration: 4 * time.Second})
		try("held")
		expect("held", "level=INFO msg=lock_contended"+attrs("held", "0")+" ttlSeconds=60 holderId=another holderToken=9 remainingSeconds=1.5",
			guard.Event{Op: guard.OpContend, Claim: claim("held", 0), Reason: held}, guard.Event{Op: guard.OpAcquire, Claim: claim("held", 0), Reason: held, Duration: slow})
		notGranted := "level=WARN msg=lock_acquire_failed" + attrs("down", "0") + ` ttlSeconds=60` + failed + `acquire: ` + guard.ErrUnavailable.Error() + `: for \"down\": simulated"`
		once := guard.Event{Op: guard.OpAcquire, Claim: claim("down", 0), Reason: down, Duration: slow}
		try("down")
		expect("not granted", notGranted, once)
		waiting, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		_, err := client.Acquire(waiting, "held", &AcquireOptions{TTL: time.Minute, LeaseID: "id"})
		cancel()
		synctest.Wait()
		if lines := log.String(); strings.Count(lines, "\n") != 2 || !strings.Contains(lines, "lock_contended") || !strings.Contains(lines, "lock_acquire_failed") || len(seen) != 2 || !errors.Is(err, ErrHeld) {
			t.Errorf("waited in vain: %v, logged\n%s, observed %+v", err, lines, seen)
		}
		reset()
		try("reclaimed").Release(t.Context())
		expect("reclaimed", "level=INFO msg=lock_acquired"+attrs("reclaimed", "7")+" ttlSeconds=60 waitedSeconds=2\n"+
			"level=INFO msg=lock_released"+attrs("reclaimed", "7")+" ttlSeconds=60 heldSeconds=2",
			guard.Event{Op: guard.OpReclaim, Claim: claim("reclaimed", 7), Reason: ok, Duration: slow},
			guard.Event{Op: guard.OpAcquire, Claim: claim("reclaimed", 7), Reason: ok, Duration: slow},
			guard.Event{Op: guard.OpRelease, Claim: claim("reclaimed", 7), Reason: ok, Duration: slow})
		lease = try("stuck")
		synctest.Wait()
		reset()
		lease.Release(t.Context())
		expect("not released", "level=WARN msg=lock_release_failed"+attrs("stuck", "7")+` ttlSeconds=60`+failed+`release: `+guard.ErrUnavailable.Error()+`: for \"stuck\": simulated"`,
			guard.Event{Op: guard.OpRelease, Claim: claim("stuck", 7), Reason: down, Duration: slow})
		try("lost")
		synctest.Wait()
		reset()
		time.Sleep(time.Hour)
		synctest.Wait()
		expect("lost", "level=WARN msg=lock_lost"+attrs("lost", "7")+` ttlSeconds=60 heldSeconds=57.94`+failed+ErrLeaseLost.Error()+`: token 7 for \"lost\": `+errUnkept.Error()+`"`,
			guard.Event{Op: guard.OpLost, Claim: claim("lost", 7), Reason: guard.ReasonLeaseLost, Duration: 57940 * time.Millisecond})
	})
}
