package lockclient

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/internal/pglease"
)

// marked is a server with one lease, a wake mark and a network, for bubbles of
// testing/synctest. Every step takes a time drawn from rng, so that the waiter's
// steps and the release come in every order. flaw is what a mutant does wrong.
type marked struct {
	rng   *rand.Rand
	clock clock
	flaw  string
	order string // when the release comes, of [orders]; "" is a time drawn from rng
	began sync.Once

	mu    sync.Mutex
	held  bool
	mark  bool
	deaf  bool // LISTEN has not committed, or the connection is broken
	up    chan struct{}
	sub   *subscription
	token guard.Token
}

func (m *marked) delay() {
	m.mu.Lock()
	d := time.Duration(m.rng.Int64N(int64(3 * time.Millisecond)))
	m.mu.Unlock()
	time.Sleep(d)
}

func (m *marked) acquire(_ context.Context, r request) (answer, error) {
	sent := m.clock()
	m.delay()
	defer m.delay()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.held {
		return answer{held: m.holder()}, nil
	}
	m.held = true
	m.token++
	return answer{granted: true, token: m.token, sent: sent}, nil
}

func (m *marked) holder() *HeldError {
	return &HeldError{Resource: "r", Token: m.token, Remaining: time.Hour}
}

func (m *marked) renew(context.Context, guard.Claim, time.Duration, time.Duration) (time.Duration, bool, error) {
	return 0, false, errSimulated
}

func (m *marked) release(context.Context, guard.Claim, time.Duration) (bool, error) {
	m.delay()
	defer m.delay()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.held = false
	if m.mark && !m.deaf && m.sub != nil {
		s := m.sub
		time.AfterFunc(time.Millisecond, s.ring)
	}
	return true, nil
}

func (m *marked) close() {}

func (m *marked) watch(context.Context, request) (*HeldError, bool, error) {
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
		m.releaseNow() // as built it waits for the row's lock
	}
	if m.flaw == "looks before it marks" {
		m.mu.Unlock()
		time.Sleep(50 * time.Millisecond)
		m.mu.Lock()
	}
	defer m.mu.Unlock()
	if !held {
		return nil, false, nil
	}
	m.mark = m.flaw != "no mark"
	return m.holder(), true, nil
}

// subscribe connects; the connection breaks after a while and comes back.
func (m *marked) subscribe(string) *subscription {
	s := &subscription{rung: make(chan struct{}, 1)}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sub, m.deaf = s, true
	if m.flaw == "marks before it listens" {
		m.up = make(chan struct{}) // says that it listens
	}
	if m.order != "" {
		go m.story()
		return s
	}
	go func() {
		m.delay()
		m.delay()
		m.mu.Lock()
		m.deaf = false
		if m.up == nil {
			m.up = make(chan struct{})
		}
		m.mu.Unlock()
		if m.flaw == "marks before it listens" {
			return // no break saves it
		}
		m.delay()
		m.delay()
		m.delay()
		m.mu.Lock()
		m.deaf = true
		if m.flaw != "the break is not noticed" {
			close(m.up)
			m.up = nil
		}
		m.mu.Unlock()
		m.delay()
		m.mu.Lock()
		m.deaf = false
		if m.up == nil {
			m.up = make(chan struct{})
		}
		m.mu.Unlock()
	}()
	return s
}

func (m *marked) unsubscribe(*subscription) {}

func (m *marked) listening() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.up
}

// TestNoLostWakeUp: in every order of the mark, the release, LISTEN, and the
// break of the listening connection, the waiter is granted soon after the
// release. Each step left out must be noticed when the release comes at its worst
// moment for that, at which the waiter as built is granted as well.
func TestNoLostWakeUp(t *testing.T) {
	seed := seed(t)
	run := func(t *testing.T) (slept int) {
		for i := range schedules {
			synctest.Test(t, func(t *testing.T) {
				rng := rand.New(rand.NewPCG(seed, uint64(i)))
				server := &marked{rng: rng, clock: drifting(0), held: true, token: 1}
				set, _ := (&Options{PollInterval: 10 * time.Millisecond}).settings()
				client := newClient(server, "o", set, server.clock, events{})
				told := make(chan time.Time, 1)
				var granted time.Time
				after := time.Duration(rng.Int64N(int64(25 * time.Millisecond)))
				go func() {
					time.Sleep(after)
					server.release(t.Context(), guard.Claim{}, 0)
					told <- time.Now()
				}()
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				lease, err := client.Acquire(ctx, "r", &AcquireOptions{TTL: time.Hour})
				if granted = time.Now(); err == nil {
					lease.end(ErrReleased)
				}
				synctest.Wait()
				time.Sleep(time.Second) // let the connection's story end
				if granted.Sub(<-told) > 50*time.Millisecond {
					slept++
				}
				client.Close()
			})
		}
		return slept
	}
	t.Run("as built", func(t *testing.T) {
		if n := run(t); n != 0 {
			t.Errorf("%d of %d waiters slept through the release", n, schedules)
		}
	})
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

// TestMarkAgainstRelease is the same on the server: whichever of the two has
// the row's lock first, the release notifies or the mark finds nothing held.
func TestMarkAgainstRelease(t *testing.T) {
	pool := migrated(t)
	client := newTestClient(t, pool, nil)
	pg := client.issuer.(*postgres)
	r := request{resource: "r", leaseID: "waiter", timeout: patience}
	var token int64
	var synced string
	var quiet bool

	// The release is first and has not committed.
	lease := mustTry(t, client, "r", time.Minute)
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := tx.QueryRow(t.Context(), releaseSQL, "r", lease.ID(), int64(lease.Token()), "60000", pglease.Topic("r")).
		Scan(&token, &synced, &quiet); err != nil || !quiet {
		t.Fatalf("quiet %t, %v", quiet, err)
	}
	type seen struct {
		held   *HeldError
		marked bool
		err    error
	}
	watched := make(chan seen)
	go func() {
		held, marked, err := pg.watch(context.Background(), r)
		watched <- seen{held, marked, err}
	}()
	waiting(t, pool, 1) // the mark, for the release
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s := <-watched; s.err != nil || s.marked {
		t.Errorf("the mark after the release: %+v", s)
	}

	// The mark is first and has not committed.
	lease.end(ErrReleased)
	lease = mustTry(t, client, "r", time.Minute)
	if tx, err = pool.Begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), watchSQL, "r", "waiter", wakeFor.Microseconds(), "60000"); err != nil {
		t.Fatal(err)
	}
	told := make(chan error)
	go func() {
		told <- pool.QueryRow(context.Background(), releaseSQL, "r", lease.ID(), int64(lease.Token()), "60000", pglease.Topic("r")).
			Scan(&token, &synced, &quiet)
	}()
	waiting(t, pool, 1) // the release, for the mark
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-told; err != nil || quiet {
		t.Errorf("the release after the mark: quiet %t, %v", quiet, err)
	}
	lease.end(ErrReleased)
}
