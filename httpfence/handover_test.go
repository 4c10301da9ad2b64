package httpfence_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/httpfence"
	"github.com/fencepost-go/fencepost/internal/longtest"
	"github.com/fencepost-go/fencepost/internal/testkit"
)

// holders is how many follow each other; the control needs half of them to have
// written late.
var holders = longtest.ByLength(12, 150)

// TestP1HostileHandOver: many holders with four requests each overlap on two
// replicas, in handlers that take 0 to 6 ms. Every other holder is inside its
// handlers until its successor's write is acknowledged, and then writes.
// Admission by itself lets each of those writes through, which is the control; a
// write that compares lets none through.
func TestP1HostileHandOver(t *testing.T) {
	for name, surface := range surfaces {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stale, total, acknowledged := handOver(t, surface, name != "InTx")
			t.Logf("%d stale of %d writes", stale, total)
			switch {
			case total != acknowledged:
				t.Errorf("%d writes took effect, %d were acknowledged", total, acknowledged)
			case name == "admission alone" && stale < int64(holders/2):
				t.Errorf("the control shows only %d stale writes: the test is not hostile", stale)
			case name != "admission alone" && stale != 0:
				t.Errorf("%d stale writes", stale)
			}
		})
	}
}

// handOver runs all holders. overtaken says that every other one waits in its
// handlers to be overtaken. Behind InTx that would never end: there a successor
// waits until they have ended, so only the time that handlers take is hostile.
func handOver(t *testing.T, surface func(*replica, func(*http.Request)) http.Handler, overtaken bool) (stale, total, acknowledged int64) {
	const requests = 4
	url := ledger(t)
	ctx, fail := context.WithTimeout(context.Background(), testkit.Patience) // ends a hang
	defer fail()
	await := func(c <-chan struct{}) {
		select {
		case <-c:
		case <-ctx.Done():
		}
	}
	written := make([]chan struct{}, holders+1) // closed when a write of the holder is acknowledged
	wrote := make([]sync.Once, holders+1)
	for i := range written {
		written[i] = make(chan struct{})
	}
	inside := make([]chan struct{}, holders+1) // the holder has a request in the handler, or was refused
	for i := range inside {
		inside[i] = make(chan struct{}, 1)
	}
	enter := func(token guard.Token) {
		select {
		case inside[token] <- struct{}{}:
		default:
		}
	}
	var slowest time.Duration
	work := func(r *http.Request) {
		claim, _ := guard.ClaimFrom(r.Context())
		enter(claim.Token)
		if overtaken && claim.Token%2 == 1 {
			await(written[claim.Token+1])
			return
		}
		time.Sleep(rand.N(slowest))
	}
	var replicas [2]*httptest.Server
	for i := range replicas {
		p := newReplica(t, url)
		if i == 0 {
			slowest = max(6*time.Millisecond, 4*raiseTime(t, p))
		}
		replicas[i] = httptest.NewServer(surface(p, work))
		t.Cleanup(replicas[i].Close)
	}
	transport := &http.Transport{MaxIdleConnsPerHost: 64}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: guard.Must(httpfence.NewTransport(transport, []string{replicas[0].URL, replicas[1].URL}, nil))}

	var ok, newest atomic.Int64
	var group sync.WaitGroup
	for holder := 1; holder <= holders; holder++ {
		claim := guard.Claim{Resource: "acme", Token: guard.Token(holder)}
		for n := range requests {
			group.Go(func() {
				err := post(guard.WithClaim(ctx, claim), client, replicas[n%2].URL+"/accounts/acme/close")
				switch {
				case err == nil:
					ok.Add(1)
					wrote[holder].Do(func() { close(written[holder]) })
					if holder == holders {
						newest.Add(1)
					}
				case errors.Is(err, guard.ErrStale):
					enter(claim.Token)
				default:
					t.Errorf("token %d: %v", holder, err)
					fail()
				}
			})
		}
		// The next holder arrives while this one's handlers are at work.
		await(inside[holder])
		if overtaken && holder%2 == 0 {
			await(written[holder])
		}
	}
	group.Wait()
	if newest.Load() != requests {
		t.Errorf("only %d of %d requests of the newest holder succeeded", newest.Load(), requests)
	}
	p := newReplica(t, url)
	if err := p.pool.QueryRow(t.Context(), staleSQL).Scan(&stale, &total); err != nil {
		t.Fatal(err)
	}
	return stale, total, ok.Load()
}

// raiseTime is how long a hand-over takes here. If that is milliseconds,
// handlers must take that much longer, or nothing would overlap.
func raiseTime(t *testing.T, p *replica) time.Duration {
	t.Helper()
	const tries = 21
	times := make([]time.Duration, tries)
	for i := range times {
		start := time.Now()
		if _, err := p.db.Admit(t.Context(), guard.Claim{Resource: "warm-up", Token: guard.Token(i + 1)}); err != nil {
			t.Fatal(err)
		}
		times[i] = time.Since(start)
	}
	slices.Sort(times)
	return times[tries/2]
}
