package lockclient

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/internal/pause"
)

// answering is an issuer whose answers the test gives. What the test leaves out
// succeeds, except for watches: there are none. It records what it was asked.
type answering struct {
	simulation
	limits  driver.Limits
	acquire func(context.Context, driver.Request) (driver.Grant, error)
	renew   func(context.Context, []driver.Renewal, []driver.Renewed)
	release func(context.Context, guard.Claim) (bool, error)
	watch   func(context.Context, driver.Watch, func()) (driver.Watching, error)
	close   func() error

	mu       sync.Mutex
	acquired []driver.Request
	renewed  []driver.Renewal
	released []guard.Claim
	watched  []driver.Watch
	stopped  int // watches
	closed   int
	wake     func() // of the last watch
}

// client returns a client of i with the bubble's clock.
func (i *answering) client(t *testing.T, opts *Options) *Client {
	t.Helper()
	if i.clock == nil {
		i.clock = drifting(0)
	}
	c := simulate(t, i, opts)
	t.Cleanup(func() { c.Close(context.Background()) })
	return c
}

func (i *answering) Limits() driver.Limits { return i.limits }

func (i *answering) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	i.mu.Lock()
	i.acquired = append(i.acquired, r)
	token := guard.Token(len(i.acquired))
	i.mu.Unlock()
	if i.acquire != nil {
		return i.acquire(ctx, r)
	}
	return driver.Grant{Token: token, From: i.clock()}, nil
}

func (i *answering) Renew(ctx context.Context, renewals []driver.Renewal, results []driver.Renewed) {
	i.mu.Lock()
	i.renewed = append(i.renewed, renewals...)
	i.mu.Unlock()
	if i.renew != nil {
		i.renew(ctx, renewals, results)
		return
	}
	for n := range results {
		results[n] = driver.Renewed{State: driver.Extended, From: i.clock()}
	}
}

func (i *answering) Release(ctx context.Context, claim guard.Claim) (bool, error) {
	i.mu.Lock()
	i.released = append(i.released, claim)
	i.mu.Unlock()
	if i.release != nil {
		return i.release(ctx, claim)
	}
	return true, nil
}

func (i *answering) Watch(ctx context.Context, w driver.Watch, wake func()) (driver.Watching, error) {
	i.mu.Lock()
	i.watched, i.wake = append(i.watched, w), wake
	i.mu.Unlock()
	if i.watch == nil {
		return driver.Watching{}, driver.ErrNoWatch
	}
	watching, err := i.watch(ctx, w, wake)
	watching.Stop = func() {
		i.mu.Lock()
		defer i.mu.Unlock()
		i.stopped++
	}
	return watching, err
}

func (i *answering) Close() error {
	i.mu.Lock()
	i.closed++
	i.mu.Unlock()
	if i.close != nil {
		return i.close()
	}
	return nil
}

// counts returns how many acquires, watches and releases were asked for.
func (i *answering) counts() (acquires, watches, releases int) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return len(i.acquired), len(i.watched), len(i.released)
}

func (i *answering) renewals() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return len(i.renewed)
}

// failure checks that err is a FailedError for the reason, that it wraps causes
// and names the resource, and returns its claim.
func failure(t *testing.T, err, reason error, resource string, causes ...error) guard.Claim {
	t.Helper()
	var failed *guard.FailedError
	if !errors.As(err, &failed) || !errors.Is(failed.Reason.Err(), reason) || failed.Claim.Resource != resource {
		t.Errorf("got %v, want %v for %q", err, reason, resource)
		return guard.Claim{}
	}
	for _, cause := range causes {
		if !errors.Is(err, cause) {
			t.Errorf("%v is not in %v", cause, err)
		}
	}
	return failed.Claim
}

var minute = &AcquireOptions{TTL: time.Minute}

// TestIssuersLimits: what the issuer cannot take is refused before it is asked.
// The whole name counts, with the namespace; an engine that counts in whole seconds
// is never asked for a part of one.
func TestIssuersLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := &answering{limits: driver.Limits{ResourceBytes: 4, MetadataBytes: 2, TTLStep: time.Second, MaxTTL: time.Minute}}
		client, confined := i.client(t, nil), i.client(t, &Options{Namespace: "n"})
		for _, test := range []struct {
			client                      *Client
			resource, metadata          string
			ttl                         time.Duration
			field, value, says, granted string
		}{
			{client, "1234", "", time.Minute, "", "", "", "1234"},
			{client, "12345", "", time.Minute, "resource", "12345", "is 5 bytes long, this issuer takes 4", ""},
			{confined, "12", "", time.Minute, "", "", "", "n:12"},
			{confined, "123", "", time.Minute, "resource", "n:123", "is 5 bytes long, this issuer takes 4", ""},
			{client, "a", "12", time.Minute, "", "", "", "a"},
			{client, "b", "123", time.Minute, "Metadata", "123", "is 3 bytes long, at most 2 are allowed", ""},
			{client, "c", "", 2 * time.Second, "", "", "", "c"},
			{client, "d", "", 1500 * time.Millisecond, "TTL", "1.5s", "must be a multiple of 1s", ""},
			{client, "e", "", 61 * time.Second, "TTL", "1m1s", "must be 100ms to 1m0s", ""},
		} {
			before, _, _ := i.counts()
			lease, err := test.client.TryAcquire(t.Context(), test.resource, &AcquireOptions{TTL: test.ttl, Metadata: test.metadata})
			after, _, _ := i.counts()
			if test.field == "" {
				if err != nil || lease.Resource() != test.granted {
					t.Errorf("%q: got %v, %v", test.resource, lease, err)
				}
				continue
			}
			var invalid *guard.InvalidError
			if !errors.As(err, &invalid) || invalid.Field != test.field || invalid.Value != test.value || invalid.Problem != test.says || after != before {
				t.Errorf("%q: got %v after %d requests", test.resource, err, after-before)
			}
		}
	})
}

// TestLateGrant: a grant that came too late is released. If that fails, the
// outcome is unknown, and the error says why. The caller waits for the release
// for a moment.
func TestLateGrant(t *testing.T) {
	for name, test := range map[string]struct {
		early   time.Duration // before the last moment at which the answer is in time
		release func(context.Context, *Client) error
		closes  bool // while the acquire is under way, and does not wait for it
		reason  error
		causes  []error
		took    time.Duration
	}{
		"in time":              {early: 1},
		"released":             {reason: guard.ErrUnavailable, causes: []error{errLate}},
		"the release hangs":    {release: func(ctx context.Context, _ *Client) error { <-ctx.Done(); return ctx.Err() }, reason: guard.ErrOutcomeUnknown, causes: []error{errLate}, took: pause.Grace},
		"Close ends the tries": {release: failsUntilClose, reason: guard.ErrOutcomeUnknown, causes: []error{errLate, errSimulated, context.Canceled}},
		"closed":               {closes: true, reason: guard.ErrOutcomeUnknown, causes: []error{ErrClosed}},
	} {
		testkit.Bubble(t, name, func(t *testing.T) {
			i := &answering{}
			client := i.client(t, nil)
			i.acquire = func(_ context.Context, r driver.Request) (driver.Grant, error) {
				if test.closes {
					closeAtOnce(client)
				}
				return driver.Grant{Token: 7, From: i.clock() - deadline(0, r.TTL) + test.early}, nil
			}
			if test.release != nil {
				i.release = func(ctx context.Context, _ guard.Claim) (bool, error) { return false, test.release(ctx, client) }
			}
			began := time.Now()
			lease, err := client.TryAcquire(t.Context(), "r", minute)
			if test.reason == nil {
				if err != nil || !lease.Valid() {
					t.Errorf("got %v, %v", lease, err)
				}
				return
			}
			claim := failure(t, err, test.reason, "r", test.causes...)
			if took := time.Since(began); claim.Token != 7 || claim.LeaseID == "" || took != test.took {
				t.Errorf("%+v after %v", claim, took)
			}
			if says := err != nil && strings.Contains(err.Error(), "releasing the lease failed"); says != (test.closes || len(test.causes) > 1) {
				t.Errorf("got %v", err)
			}
			settled(client) // the release goes on
			for _, c := range i.released {
				if c != (guard.Claim{Resource: "r", LeaseID: claim.LeaseID}) {
					t.Errorf("released %+v", c)
				}
			}
			if (len(i.released) == 0) != test.closes {
				t.Errorf("released %+v", i.released)
			}
		})
	}
}

// failsUntilClose is a release that fails, and a Close that does not wait.
func failsUntilClose(_ context.Context, c *Client) error {
	closeAtOnce(c)
	return guard.Unavailable("release", guard.Claim{}, errSimulated)
}

// closeAtOnce closes a client without waiting for what is in flight.
func closeAtOnce(c *Client) {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	go c.Close(ended)
	synctest.Wait()
}

// TestAbandonGoesOn: the release of a grant that nobody got is tried until the
// lease has run out in any case, and is then reported once.
func TestAbandonGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rec := &recorder{}
		var last time.Time
		i := &answering{
			acquire: func(_ context.Context, r driver.Request) (driver.Grant, error) {
				return driver.Grant{}, guard.OutcomeUnknown("acquire", r.Claim(), errSimulated)
			},
			release: func(context.Context, guard.Claim) (bool, error) {
				last = time.Now()
				return false, guard.Unavailable("release", guard.Claim{}, errSimulated)
			},
		}
		client := i.client(t, &Options{OpTimeout: time.Second, Observer: rec})
		ended, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Millisecond, cancel)
		_, err := client.TryAcquire(ended, "r", minute)
		claim := failure(t, err, guard.ErrOutcomeUnknown, "r", errSimulated, context.Canceled)
		gaveUp := time.Now()
		settled(client)
		if tried, took := last.Sub(gaveUp), time.Since(gaveUp); tried < time.Minute-maxBackoff || took != time.Minute+time.Second {
			t.Errorf("tried for %v, given up after %v", tried, took)
		}
		events, _ := rec.Take(t)
		if e := events[len(events)-1]; len(events) != 2 || e.Op != guard.OpRelease || e.Claim != claim || !errors.Is(e.Err, errSimulated) {
			t.Errorf("%+v", events)
		}
	})
}

// TestCloseOnce: the issuer is closed once and its error returned. A later Close
// waits for the same and returns the same, and says so if it stops waiting.
func TestCloseOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := &answering{close: func() error { return errSimulated }}
		client := i.client(t, nil)
		if err := client.Close(t.Context()); err != errSimulated {
			t.Errorf("first: %v", err)
		}
		if err := client.Close(t.Context()); err != errSimulated || i.closed != 1 {
			t.Errorf("second: %v; closed %d times", err, i.closed)
		}
		i = &answering{}
		client = i.client(t, nil)
		leave, left := make(chan struct{}), make(chan error)
		go func() {
			left <- client.Hold(context.Background(), "r", &AcquireOptions{TTL: time.Minute}, func(context.Context) error { <-leave; return nil })
		}()
		synctest.Wait()
		for n := range 2 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			failure(t, client.Close(ctx), guard.ErrUnavailable, "", context.DeadlineExceeded)
			cancel()
			if synctest.Wait(); i.closed != 1 {
				t.Errorf("Close %d: closed %d times", n+1, i.closed)
			}
		}
		close(leave)
		<-left
		if err := client.Close(t.Context()); err != nil {
			t.Errorf("once the function has returned: %v", err)
		}
		i = &answering{close: func() error { time.Sleep(time.Minute); return nil }}
		client = i.client(t, nil)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		if failure(t, client.Close(ctx), guard.ErrUnavailable, "", context.DeadlineExceeded); time.Since(began) != time.Second {
			t.Errorf("an issuer that closes slowly: waited %v", time.Since(began))
		}
		time.Sleep(time.Minute)
	})
}

// TestHoldRefusesToBegin: if the client was closed while the lease was granted,
// or the lease is too short to be renewed, the function is not called and the
// lease is released.
func TestHoldRefusesToBegin(t *testing.T) {
	for name, closes := range map[string]bool{"closed": true, "a grant of two milliseconds": false} {
		testkit.Bubble(t, name, func(t *testing.T) {
			i := &answering{release: func(context.Context, guard.Claim) (bool, error) { return false, nil }} // as if it were lost
			client := i.client(t, nil)
			i.acquire = func(context.Context, driver.Request) (driver.Grant, error) {
				if closes {
					go client.Close(context.Background())
					synctest.Wait()
					return driver.Grant{Token: 7, From: i.clock()}, nil
				}
				return driver.Grant{Token: 7, From: i.clock(), TTL: 2 * time.Millisecond}, nil
			}
			err := client.Hold(t.Context(), "r", &AcquireOptions{TTL: time.Minute}, func(context.Context) error {
				t.Error("the function was called")
				return nil
			})
			synctest.Wait() // for the rest of Close
			id := i.acquired[0].LeaseID
			if closes {
				if claim := failure(t, err, guard.ErrUnavailable, "r", ErrClosed); claim.LeaseID != id {
					t.Errorf("the claim is %+v", claim)
				}
			} else if invalid := (*guard.InvalidError)(nil); !errors.As(err, &invalid) || invalid.Field != "every" || invalid.Value != "666.666µs" {
				t.Errorf("got %v", err)
			}
			if errors.Is(err, ErrLeaseLost) {
				t.Errorf("a function that was not called has lost nothing: %v", err)
			}
			token := guard.Token(7)
			if closes {
				token = guard.NoToken // the lease ID is spent
			}
			if !slices.Equal(i.released, []guard.Claim{{Resource: "r", Token: token, LeaseID: id}}) {
				t.Errorf("released %+v", i.released)
			}
			if len(client.keeper.leases) != 0 {
				t.Error("the client still has the lease")
			}
		})
	}
}

// TestGrantedAfterClose: Close waits for an acquire that is in flight and gives
// back what it is granted; under a lease ID of the caller's, who may ask again with
// another client, it does not.
func TestGrantedAfterClose(t *testing.T) {
	for _, id := range []string{"", "mine"} {
		synctest.Test(t, func(t *testing.T) {
			i := &answering{}
			client := i.client(t, nil)
			closed := make(chan error, 1)
			i.acquire = func(context.Context, driver.Request) (driver.Grant, error) {
				go func() { closed <- client.Close(context.Background()) }()
				synctest.Wait()
				if i.closed != 0 {
					t.Error("the issuer was closed under an acquire")
				}
				return driver.Grant{Token: 7, From: i.clock()}, nil
			}
			_, err := client.TryAcquire(t.Context(), "r", &AcquireOptions{TTL: time.Minute, LeaseID: id})
			reason, released := guard.ErrUnavailable, 1
			if id != "" {
				reason, released = guard.ErrOutcomeUnknown, 0
			}
			failure(t, err, reason, "r", ErrClosed)
			if err := <-closed; err != nil || len(i.released) != released || len(client.keeper.leases) != 0 {
				t.Errorf("%v; released %v, %d leases are watched", err, i.released, len(client.keeper.leases))
			}
		})
	}
}

// explaining is an issuer that says why a lease is over.
type explaining struct {
	*answering
	why func(context.Context, guard.Claim) error
}

func (e explaining) Why(ctx context.Context, claim guard.Claim) error { return e.why(ctx, claim) }

// TestWhyLost: the cause of a loss is what the issuer says, if it does.
func TestWhyLost(t *testing.T) {
	unlocked := &ForceUnlockedError{Actor: "me", Reason: "a test"}
	for _, says := range []error{unlocked, nil} {
		synctest.Test(t, func(t *testing.T) {
			i := &answering{simulation: simulation{drifting(0)}, renew: func(_ context.Context, _ []driver.Renewal, results []driver.Renewed) {
				results[0].State = driver.Over
			}}
			var asked guard.Claim
			var within time.Duration
			client := simulate(t, explaining{i, func(ctx context.Context, claim guard.Claim) error {
				until, _ := ctx.Deadline()
				asked, within = claim, time.Until(until)
				return says
			}}, nil)
			defer client.Close(t.Context())
			lease := mustTry(t, client, "r", time.Minute)
			want := says
			if want == nil {
				want = errGone
			}
			var lost *LostError
			if err := lease.Renew(t.Context()); !errors.As(err, &lost) || lost.Cause != want {
				t.Errorf("got %v", err)
			}
			if asked != lease.Claim() || within != whyTimeout {
				t.Errorf("asked about %+v, within %v", asked, within)
			}
		})
	}
}

// TestRenewalLeftOut: a renewal that the issuer leaves out has an unknown
// outcome, and is repeated.
func TestRenewalLeftOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := &answering{renew: func(context.Context, []driver.Renewal, []driver.Renewed) {}}
		client := i.client(t, nil)
		lease := mustTry(t, client, "r", time.Minute)
		err := lease.Renew(t.Context())
		if claim := failure(t, err, guard.ErrOutcomeUnknown, "r"); claim != lease.Claim() || !strings.Contains(fmt.Sprint(err), "the issuer sent no response for this lease") {
			t.Errorf("got %v", err)
		}
		if len(i.renewed) < 2 || !lease.Valid() {
			t.Errorf("%d renewals, %v", len(i.renewed), lease.Err())
		}
	})
}

// TestRenewTooLate: a lease whose deadline passes before the request is sent is
// not renewed.
func TestRenewTooLate(t *testing.T) {
	var now time.Duration
	reads := -1 // until the clock jumps; negative if it does not
	i := &answering{simulation: simulation{func() time.Duration {
		if reads--; reads == 0 {
			now += time.Hour
		}
		return now
	}}}
	for at := 1; at < 4; at++ {
		client := i.client(t, nil)
		client.keeper.running = true // else it would, and read the clock
		lease := mustTry(t, client, "r", time.Minute)
		reads = at
		if err := lease.Renew(t.Context()); !errors.Is(err, ErrLeaseLost) || len(i.renewed) != 0 {
			t.Errorf("at %d: %v, renewed %v", at, err, i.renewed)
		}
	}
}

// TestKeepAliveEndsMeanwhile: a lease that ends while KeepAlive begins is not
// watched any more.
func TestKeepAliveEndsMeanwhile(t *testing.T) {
	i := &answering{simulation: simulation{driver.Now}}
	client := i.client(t, nil)
	lease, k := mustTry(t, client, "r", time.Minute), &client.keeper
	k.mu.Lock() // KeepAlive waits for it, after it has found the lease valid
	kept := make(chan error)
	go func() { kept <- lease.KeepAlive(0) }()
	testkit.Eventually(t, "KeepAlive has begun", func() bool { return lease.kept() > 0 })
	k.leases.Pop()
	lease.mu.Lock()
	lease.err = ErrReleased
	lease.mu.Unlock()
	k.mu.Unlock()
	if err := <-kept; err != ErrReleased {
		t.Errorf("got %v", err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.leases) != 0 {
		t.Error("the lease is watched")
	}
}
