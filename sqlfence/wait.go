package sqlfence

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgerr"
)

// The times of a raise that waits.
const (
	// firstWait is how long it waits before it looks for the sessions in its way:
	// most of what it meets is over by then.
	firstWait = 20 * time.Millisecond
	// lookEvery and soonest are the longest and the shortest pause between looks.
	lookEvery = 500 * time.Millisecond
	soonest   = 10 * time.Millisecond
	// reportAfter is when what it waits for is logged.
	reportAfter = 500 * time.Millisecond
	// spareWait is how long a look waits for a connection that others have.
	spareWait = 250 * time.Millisecond
)

// waitingRaise is a raise that may have to wait for transactions of older holders. After
// 20 ms, and then every half second, it looks for the sessions in its way (look.go), and
// ends those that have been idle for a second or at work for 15. After RaiseTimeout it
// gives up.
type waitingRaise[Tx any] struct {
	db    *DB[Tx]
	on    held[Tx] // nil for one of the pool
	claim guard.Claim
	work  bool
	start time.Time
	told  bool // the log has what it waits for

	mu      sync.Mutex
	seen    []session // at the last look
	refused error     // why the server refused the last look
}

// onTwo waits for the lock and, on another connection, looks for the sessions in its
// way, so that the raise keeps its place in the lock's queue: younger transactions of
// the old holder do not pass it. gaveUp reports that the raise gave up because there
// was no connection for a look.
func (w *waitingRaise[Tx]) onTwo(ctx context.Context) (gaveUp bool, err error) {
	raising, giveUp := context.WithCancel(ctx)
	defer giveUp()
	looking, stop := context.WithCancel(context.WithoutCancel(ctx))
	looked := make(chan bool, 1)
	looks := time.AfterFunc(w.beforeFirstLook(ctx), func() {
		defer stop()
		spare := w.lookOn(ctx, looking)
		if !spare {
			giveUp()
		}
		looked <- spare
	})
	err = w.try(raising, w.left(), false)
	if pgerr.State(err) == pgerr.Canceled && raising.Err() == nil && w.left() >= time.Millisecond {
		err = w.try(raising, w.left(), true)
	}
	switch {
	case looks.Stop(): // nobody was in its way for long
		stop()
	case err != nil && ctx.Err() != nil:
		// The look that is going on may end a session for the next raise: the
		// contexts of raises may be shorter than it takes.
	default:
		stop()
		if spare := <-looked; !spare && raising.Err() != nil && err != nil {
			return true, err
		}
	}
	if pgerr.State(err) == pgerr.LockTimeout {
		w.look(ctx, nil, spareWait, true) // for the error
	}
	return false, w.explain(err)
}

// lookOn looks until looking or, between two looks, ctx ends. spare reports that
// there was a connection for it.
func (w *waitingRaise[Tx]) lookOn(ctx, looking context.Context) (spare bool) {
	for {
		look, cancel := context.WithTimeout(looking, rollbackTimeout)
		connWait := time.Duration(0) // a new connection may take long
		if w.db.backend.exhausted() {
			connWait = spareWait
		}
		next, err := w.look(look, nil, connWait, false)
		cancel()
		if errors.Is(err, errNoSpare) {
			return false
		}
		if err == nil || pgerr.State(err) != "" {
			w.mu.Lock()
			w.refused = err
			w.mu.Unlock()
		}
		pause := time.NewTimer(next)
		select {
		case <-pause.C:
		case <-looking.Done():
			pause.Stop()
			return true
		case <-ctx.Done():
			pause.Stop()
			return true
		}
	}
}

// onOne is onTwo where there is one connection: the raise gives up its place for
// each look, and so looks less and less often.
func (w *waitingRaise[Tx]) onOne(ctx context.Context) error {
	wait, unhurried := w.beforeFirstLook(ctx), false
	for pause := lookEvery; ; pause *= 2 {
		err := w.try(ctx, min(wait, w.left()), unhurried)
		if state := pgerr.State(err); state != pgerr.LockTimeout && (state != pgerr.Canceled || unhurried) {
			return w.explain(err)
		}
		over := w.left() < time.Millisecond
		next, lookErr := w.look(ctx, w.on, 0, over)
		switch {
		case errors.As(lookErr, new(*guard.RejectedError)):
			return lookErr
		case over:
			return w.explain(err)
		case lookErr != nil: // the role may not look, so all it can do is wait
			if err = w.try(ctx, w.left(), true); err != nil {
				err = errors.Join(err, because(lookErr))
			}
			return err
		}
		if unhurried, wait = true, max(next, pause); w.db.opts.TerminateAfter == 0 { // else no look will help
			wait = w.left()
		}
	}
}

// beforeFirstLook is how long the raise waits before the first look: it leaves time for
// one within ctx.
func (w *waitingRaise[Tx]) beforeFirstLook(ctx context.Context) time.Duration {
	wait := min(firstWait, w.db.opts.RaiseTimeout)
	if end, bounded := ctx.Deadline(); bounded {
		wait = max(min(wait, time.Until(end)/4), time.Millisecond)
	}
	return wait
}

// try waits for the lock once. A session's statement_timeout may be shorter than
// the wait; unhurried removes it for this transaction, which has lock_timeout
// instead. The first try need not pay for that.
func (w *waitingRaise[Tx]) try(ctx context.Context, wait time.Duration, unhurried bool) error {
	statements := make([]statement, 0, 2)
	if unhurried {
		statements = append(statements, statement{sql: unhurriedSQL})
	}
	bound := max(int32(wait.Milliseconds()), 1) // 0 would be none
	statements = append(statements, statement{sql: raiseSQL, args: []any{w.claim.Resource, int64(w.claim.Token), w.claim.LeaseID, bound}})
	return w.db.once(ctx, w.on, "raise", w.claim, w.work, statements...)
}

func (w *waitingRaise[Tx]) left() time.Duration { return w.db.opts.RaiseTimeout - time.Since(w.start) }
