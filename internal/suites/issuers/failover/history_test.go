// Package failover_test takes down, disconnects and stops the issuers' servers
// while processes hold leases, and checks what the processes believed.
package failover_test

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/pprof"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient"
	"github.com/fencepost-go/fencepost/lockclient/driver"
)

// grant is a lease as its holder saw it. Times are readings of one clock, the
// machine's, which all holders share.
type grant struct {
	token  guard.Token
	holder int // the contender's number
	// answered is when the holder learned of the grant, which came before.
	answered time.Duration
	// valid is when the holder last found it valid.
	valid time.Duration
}

// history is all grants.
type history struct {
	mu     sync.Mutex
	grants []*grant
}

// overlaps returns the leases that their holder still found valid after another
// had been granted under a higher token, which is the servers' own order. A
// grant counts from its answer, so that a reported overlap is certain.
func (h *history) overlaps() (out []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, a := range h.grants {
		for _, b := range h.grants {
			if a.token < b.token && a.valid > b.answered {
				out = append(out, fmt.Sprintf("token %v was valid %v after token %v was granted", a.token, a.valid-b.answered, b.token))
			}
		}
	}
	return out
}

// disorder returns which tokens repeated or fell: a grant requested after
// another was answered must have the higher token.
func (h *history) disorder() (out []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	sorted := slices.Clone(h.grants)
	slices.SortFunc(sorted, func(a, b *grant) int { return int(a.answered - b.answered) })
	last := guard.NoToken
	for _, g := range sorted {
		if g.token <= last {
			out = append(out, fmt.Sprintf("token %v after %v", g.token, last))
		}
		last = g.token
	}
	return out
}

func (h *history) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.grants)
}

// holder returns who was last granted the lease.
func (h *history) holder() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.grants[len(h.grants)-1].holder
}

// contend holds one resource in turns until ctx ends: it acquires, keeps the
// lease alive for a while, checks it all the time, and releases it.
func (h *history) contend(ctx context.Context, t *testing.T, issuer driver.Issuer, n int, ttl time.Duration) {
	locks, err := lockclient.New(issuer, fmt.Sprint("contender-", n), &lockclient.Options{
		OpTimeout: 2 * time.Second, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Error(err)
		return
	}
	for ctx.Err() == nil {
		lease, err := locks.Acquire(ctx, "r", &lockclient.AcquireOptions{TTL: ttl})
		if err != nil {
			select {
			case <-ctx.Done():
			case <-time.After(20 * time.Millisecond):
			}
			continue
		}
		g := &grant{token: lease.Token(), holder: n, answered: driver.Now()}
		h.mu.Lock()
		h.grants = append(h.grants, g)
		h.mu.Unlock()
		testkit.Check(t, lease.KeepAlive(0))
		_, believes := issuer.(believer) // it holds its lease until another has it
		for until := driver.Now() + ttl*3/2; ; time.Sleep(time.Millisecond) {
			now := driver.Now() // before the look: it was valid then or later
			if !lease.Valid() {
				break
			}
			h.mu.Lock()
			g.valid = now
			h.mu.Unlock()
			if now > until && (!believes || h.holder() != n) || ctx.Err() != nil {
				break
			}
		}
		release, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		lease.Release(release) // may fail while servers are away
		cancel()
	}
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	locks.Close(closing)
}

// run makes contenders hold a resource while it injects one failure after the
// other. After each there must be another grant, or the failure does not count.
func (h *history) run(t *testing.T, issuers []driver.Issuer, ttl time.Duration, n int, fail func(round int)) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for k, i := range issuers {
		wg.Go(func() { h.contend(ctx, t, i, k, ttl) })
	}
	defer wg.Wait()
	defer cancel()
	more := func(since int) {
		for began := time.Now(); h.count() <= since; time.Sleep(5 * time.Millisecond) {
			if time.Since(began) > testkit.Patience {
				t.Errorf("no grant for %v after %d; all goroutines:", testkit.Patience, since)
				pprof.Lookup("goroutine").WriteTo(t.Output(), 1)
				break
			}
		}
	}
	more(0)
	for round := range n {
		if t.Failed() {
			break
		}
		time.Sleep(ttl / 4 * time.Duration(round%4)) // at different moments of a lease's life
		fail(round)
		more(h.count())
	}
}
