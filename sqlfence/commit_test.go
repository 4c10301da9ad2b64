package sqlfence

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

// TestCommitBound: a COMMIT is given the timeout and at most an eighth more,
// whenever it begins; the caller's deadline does not count and its values do.
func TestCommitBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const timeout = 8 * time.Second
		type key struct{}
		caller, cancel := context.WithCancel(context.WithValue(t.Context(), key{}, "value"))
		cancel()
		b := &commitBound{timeout: timeout}
		shared := map[context.Context]bool{}
		for range 50 {
			ctx := b.context(caller)
			shared[ctx.(committing).Context] = true
			if ctx.Err() != nil || ctx.Value(key{}) != "value" {
				t.Fatalf("got %v and value %v", ctx.Err(), ctx.Value(key{}))
			}
			deadline, ok := ctx.Deadline()
			if left := time.Until(deadline); !ok || left < timeout || left > timeout+timeout/8 {
				t.Errorf("a COMMIT has %v, want %v or an eighth more", left, timeout)
			}
			time.Sleep(timeout / 40)
		}
		if len(shared) < 5 || len(shared) > 12 {
			t.Errorf("50 COMMITs had %d deadlines", len(shared))
		}
		ctx, start := b.context(caller), time.Now()
		ended := make(chan struct{})
		context.AfterFunc(ctx, func() { close(ended) })
		<-ended
		if took := time.Since(start); took < timeout || took > timeout+timeout/8 || !errors.Is(ctx.Err(), context.DeadlineExceeded) {
			t.Errorf("ended after %v: %v", took, ctx.Err())
		}
	})
}

// TestCommitAllocations: a bound costs neither a timer nor a goroutine of its
// own.
func TestCommitAllocations(t *testing.T) {
	b, ctx := &commitBound{timeout: time.Hour}, t.Context()
	if n := testing.AllocsPerRun(100, func() { b.context(ctx) }); n > 1 {
		t.Errorf("%v allocations", n)
	}
}

// TestRoundTrips: on pgx a fenced transaction takes the round trips of an unfenced
// one, which is the control, also if its outcome may be looked up.
func TestRoundTrips(t *testing.T) {
	e := newEnvOf(t, "pgx")
	p, through := e.newProxy()
	db := e.open(nil, through)
	one := running("SELECT 1")
	for what, call := range map[string]func() error{
		"unfenced": func() error { return db.plain(t.Context(), one) },
		"InTx":     func() error { return db.fenced(t.Context(), claimOf("r", 5), one) },
		"InTx that may resolve": func() error {
			return db.fencedAll(t.Context(), []guard.Claim{claimOf("r", 5)}, &TxOptions{Resolve: true}, one)
		},
	} {
		must(t, call()) // statements are prepared
		var trips atomic.Int32
		p.set(func(message string) fate {
			// Sync, Query; not the ping of a pool that was not used for a second.
			if message[0] == 'S' || message[0] == 'Q' && !strings.Contains(message, "-- ping") {
				trips.Add(1)
			}
			return forward
		})
		err := call()
		p.set(nil)
		if err != nil || trips.Load() != 3 {
			t.Errorf("%s: %d round trips, %v, want 3", what, trips.Load(), err)
		}
	}
}
