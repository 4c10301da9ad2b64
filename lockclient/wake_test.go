package lockclient

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/internal/waiting"
)

// marked is a server with one lease, a wake mark, a listening connection and a
// network, for bubbles of testing/synctest: an issuer whose Watch takes the steps
// of PostgreSQL's. Every step takes a time drawn from rng, so that the waiter's
// steps and the release happen in every order. flaw is what a mutant does wrong.
type marked struct {
	simulation
	rng   *rand.Rand
	flaw  string
	order string // when the release comes, of [orders]; "" is a time drawn from rng
	began sync.Once
	opens sync.Once

	mu    sync.Mutex
	held  bool
	mark  bool
	deaf  bool // LISTEN has not committed, or the connection is broken
	up    bool // it is believed to listen
	sub   *func()
	token guard.Token
}

// The worst moments for a release.
const (
	beforeLook         = "before the mark looks"
	betweenLookAndMark = "between the look and the mark"
	beforeReturn       = "after the mark and before Watch returns"
	whileAsleep        = "while the waiter sleeps"
	beforeListen       = "after the mark and before LISTEN"
	afterBreak         = "after the connection broke"
)

// orders has, for each step that a mutant omits, the moment that reveals it.
var orders = map[string]string{
	"no mark":                             whileAsleep,
	"the mark does not look":              beforeLook,
	"looks before it marks":               betweenLookAndMark,
	"a wake-up before the return is lost": beforeReturn,
	"marks before it listens":             beforeListen,
	"the break is not noticed":            afterBreak,
}

func newMarked(rng *rand.Rand, flaw, order string) *marked {
	return &marked{simulation: simulation{drifting(0)}, rng: rng, flaw: flaw, order: order, held: true, token: 1, deaf: true}
}

func (m *marked) delay() {
	m.mu.Lock()
	d := time.Duration(m.rng.Int64N(int64(3 * time.Millisecond)))
	m.mu.Unlock()
	time.Sleep(d)
}

// Acquire implements driver.Issuer.
func (m *marked) Acquire(context.Context, driver.Request) (driver.Grant, error) {
	from := m.clock()
	m.delay()
	defer m.delay()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.held {
		return driver.Grant{}, m.holder()
	}
	m.held = true
	m.token++
	return driver.Grant{Token: m.token, From: from}, nil
}

func (m *marked) holder() *HeldError {
	return &HeldError{Resource: "r", Token: m.token, Remaining: time.Hour}
}

// Release implements driver.Issuer.
func (m *marked) Release(context.Context, guard.Claim) (bool, error) {
	m.delay()
	defer m.delay()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.held = false
	if m.mark && !m.deaf && m.sub != nil {
		time.AfterFunc(time.Millisecond, *m.sub)
	}
	return true, nil
}

// releaseNow begins the release, once.
func (m *marked) releaseNow() {
	m.began.Do(func() { go m.Release(context.Background(), guard.Claim{}) })
}

// Watch implements driver.Issuer. It subscribes, checks that it listens, and
// marks.
func (m *marked) Watch(_ context.Context, _ driver.Watch, wake func()) (driver.Watching, error) {
	if m.flaw == "a wake-up before the return is lost" {
		var mu sync.Mutex
		returned, real := false, wake
		wake = func() {
			mu.Lock()
			defer mu.Unlock()
			if returned {
				real()
			}
		}
		defer func() {
			mu.Lock()
			defer mu.Unlock()
			returned = true
		}()
	}
	sub := &wake
	m.mu.Lock()
	m.sub = sub
	if m.flaw == "marks before it listens" {
		m.up = true
	}
	m.mu.Unlock()
	m.opens.Do(func() { go m.connection() })
	stop := func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.sub == sub {
			m.sub = nil
		}
	}
	m.mu.Lock()
	up := m.up
	m.mu.Unlock()
	if !up {
		stop()
		return driver.Watching{}, driver.ErrNoWatch
	}
	held := m.setMark()
	if held == nil {
		return driver.Watching{Stop: stop}, nil
	}
	if m.order == beforeReturn {
		m.releaseNow()
		time.Sleep(50 * time.Millisecond)
	}
	return driver.Watching{Held: held, Stop: stop}, nil
}

func (m *marked) setMark() *HeldError {
	m.delay()
	defer m.delay()
	if m.order == beforeLook {
		m.releaseNow()
		time.Sleep(50 * time.Millisecond)
	}
	m.mu.Lock()
	held := m.held
	if m.flaw == "the mark does not look" {
		held = true
	}
	if m.order == betweenLookAndMark {
		m.releaseNow() // in PostgreSQL it waits for the row's lock
	}
	if m.flaw == "looks before it marks" {
		m.mu.Unlock()
		time.Sleep(50 * time.Millisecond)
		m.mu.Lock()
	}
	defer m.mu.Unlock()
	if !held {
		return nil
	}
	m.mark = m.flaw != "no mark"
	return m.holder()
}

// set sets whether the connection listens from now on.
func (m *marked) set(deaf bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.deaf = deaf
	switch {
	case !deaf:
		m.up = true
	case m.flaw != "the break is not noticed":
		m.up = false
		if m.sub != nil {
			(*m.sub)()
		}
	}
}

// connection opens the connection, breaks it after a while and restores it. In
// an order, the waiter has finished its steps by the end of each long sleep.
func (m *marked) connection() {
	if m.order == "" {
		m.delay()
		m.delay()
		m.set(false)
		if m.flaw == "marks before it listens" {
			return // no break saves it
		}
		m.delay()
		m.delay()
		m.delay()
		m.set(true)
		m.delay()
		m.set(false)
		return
	}
	if m.order == beforeListen {
		time.Sleep(100 * time.Millisecond)
		m.releaseNow()
		time.Sleep(100 * time.Millisecond)
	}
	m.set(false)
	time.Sleep(100 * time.Millisecond)
	if m.order == afterBreak {
		m.set(true)
		time.Sleep(20 * time.Millisecond)
		m.releaseNow()
		time.Sleep(100 * time.Millisecond)
		m.set(false)
	}
	if m.order == whileAsleep {
		m.releaseNow()
	}
}

// TestNoLostWakeUp: in every order of the mark, the release, LISTEN, and the
// break of the listening connection, the waiter is granted soon after the
// release. Each omitted step must be noticed when the release comes at the worst
// moment for it, at which the unmodified waiter is granted too. Package pglease
// tests what PostgreSQL does in these orders.
func TestNoLostWakeUp(t *testing.T) {
	seed := seed(t)
	slept := 0
	for i := range schedules {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, uint64(i)))
			server := newMarked(rng, "", "")
			client := simulate(t, server, &Options{PollInterval: 10 * time.Millisecond, Logger: slog.New(slog.DiscardHandler)})
			told := make(chan time.Time, 1)
			after := time.Duration(rng.Int64N(int64(25 * time.Millisecond)))
			go func() {
				time.Sleep(after)
				server.Release(t.Context(), guard.Claim{})
				told <- time.Now()
			}()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			lease, err := client.Acquire(ctx, "r", &AcquireOptions{TTL: time.Hour})
			granted := time.Now()
			if err == nil {
				lease.end(ErrReleased)
			}
			synctest.Wait()
			time.Sleep(time.Second) // let the connection's story end
			if granted.Sub(<-told) > 50*time.Millisecond {
				slept++
			}
			client.Close(t.Context())
		})
	}
	if slept != 0 {
		t.Errorf("%d of %d waiters slept through the release", slept, schedules)
	}
	for flaw, order := range orders {
		t.Run("in order/"+flaw, func(t *testing.T) {
			for f, want := range map[string]bool{"": false, flaw: true} {
				if slept := sleepsThrough(t, f, order); slept != want {
					t.Errorf("the release comes %s, flaw %q: slept through it: %t", order, f, slept)
				}
			}
		})
	}
}

// sleepsThrough reports whether the waiter is granted only when it asks on its
// own, if ever.
func sleepsThrough(t *testing.T, flaw, order string) (slept bool) {
	synctest.Test(t, func(t *testing.T) {
		client := simulate(t, newMarked(rand.New(rand.NewPCG(1, 1)), flaw, order), &Options{PollInterval: 10 * time.Millisecond, Logger: slog.New(slog.DiscardHandler)})
		ctx, cancel := context.WithTimeout(t.Context(), waiting.Look/2)
		defer cancel()
		lease, err := client.Acquire(ctx, "r", &AcquireOptions{TTL: time.Hour})
		if slept = err != nil; !slept {
			lease.end(ErrReleased)
		}
		time.Sleep(time.Second) // let the connection's story end
		client.Close(t.Context())
	})
	return slept
}
