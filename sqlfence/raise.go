package sqlfence

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgerr"
	"github.com/fencepost-go/fencepost/sqlfence/internal/sqlkit"
)

const (
	// A client that stops before the COMMIT must not block its successors.
	raiseSQL = "SELECT " + sqlkit.FitSQL + ", fencepost.raise($1::pg_catalog.text, $2::bigint, $3::pg_catalog.text, $4::int)," +
		" pg_catalog.set_config('idle_in_transaction_session_timeout', '2s', true)"
	// A statement of its own: it does not stop a timer that is already running.
	// transaction_timeout is PostgreSQL 17's, and this does stop its timer.
	unhurriedSQL = "SELECT pg_catalog.set_config('statement_timeout', '0', true), CASE WHEN pg_catalog.current_setting('transaction_timeout', true) IS NOT NULL" +
		" THEN pg_catalog.set_config('transaction_timeout', '0', true) END"
)

// Raise makes the claim the resource's mark, unless it is already, and waits until every fenced
// transaction of an older holder has ended.
//
// A new holder that calls it before it reads loses none of the acknowledged updates of its
// predecessor and is overwritten by none (P2). A claim that is refused changes nothing.
//
// Raise is idempotent, and survives a crash of the server once it has returned. It raises the
// marks of schema fencepost, with which [DB.InTx] and [DB.Admit] compare; the rows of package
// sqlrow have marks of their own.
//
// Errors:
//   - guard.ErrStale, guard.ErrConflict: the claim was refused, as a [*guard.RejectedError].
//   - guard.ErrInvalid: a malformed claim, or one above that of the enclosing InTx.
//   - guard.ErrUnavailable: not raised, also when an older holder's transaction did not end
//     within Options.RaiseTimeout.
//   - guard.ErrOutcomeUnknown: call it again, which shows what the primary has (see
//     [WatchWarnings]).
func (d *DB[Tx]) Raise(ctx context.Context, claim guard.Claim) error {
	start := time.Now()
	err := claim.Validate()
	if err == nil {
		err = sqlkit.Ended(ctx, "raise", claim)
	}
	if err == nil {
		err = sqlkit.Interrupted(ctx, d.raise(ctx, claim, true))
	}
	d.observe(ctx, guard.Event{Op: guard.OpRaise, Claim: claim, Mark: markOf(claim, err), Duration: time.Since(start), Err: err})
	return err
}

// raise raises the mark. work reports whether the raise is the caller's work:
// only then is a lost response to its COMMIT an unknown outcome.
func (d *DB[Tx]) raise(ctx context.Context, claim guard.Claim, work bool) error {
	if own := d.callback(ctx); own != nil && slices.ContainsFunc(own.claims, func(c guard.Claim) bool { return c.Resource == claim.Resource && c.Token < claim.Token }) {
		return guard.Invalid("claim.Token", claim.Token.String(), "is above the token of the enclosing InTx, which the raise would wait for")
	}
	w := &waitingRaise[Tx]{db: d, claim: claim, work: work, start: time.Now()}
	if !d.backend.single() {
		if gaveUp, err := w.onTwo(ctx); !gaveUp {
			return err
		}
	}
	return w.onOne(ctx)
}

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
// 20 ms, and then every half second, it looks for the sessions in its way, and
// ends those that have been idle for a second or at work for 15. After RaiseTimeout it
// gives up.
type waitingRaise[Tx any] struct {
	db    *DB[Tx]
	claim guard.Claim
	work  bool
	start time.Time

	mu        sync.Mutex
	seen      []session     // at the last look
	refused   error         // why the server refused the last look
	reporting chan struct{} // closed when the last report is done; nil before the first, which says what it waits for
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
	if timedOut(err) && raising.Err() == nil && w.left() >= time.Millisecond {
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
		w.look(ctx, spareWait, true) // for the error
	}
	return false, w.explain(err)
}

// lookOn looks until looking or, between two looks, ctx ends. spare reports that
// there was a connection for it.
func (w *waitingRaise[Tx]) lookOn(ctx, looking context.Context) (spare bool) {
	for {
		look, cancel := context.WithTimeout(looking, releaseTimeout)
		connWait := time.Duration(0) // a new connection may take long
		if w.db.backend.exhausted() {
			connWait = spareWait
		}
		next, err := w.look(look, connWait, false)
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
		if pgerr.State(err) != pgerr.LockTimeout && (!timedOut(err) || unhurried) {
			return w.explain(err)
		}
		over := w.left() < time.Millisecond
		next, lookErr := w.look(ctx, 0, over)
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
		unhurried, wait = true, max(next, pause)
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

// try waits for the lock once. A session's statement_timeout or transaction_timeout may be shorter than
// the wait; unhurried removes it for this transaction, which has lock_timeout
// instead. The first try need not pay for that.
func (w *waitingRaise[Tx]) try(ctx context.Context, wait time.Duration, unhurried bool) error {
	statements := make([]statement, 0, 2)
	if unhurried {
		statements = append(statements, statement{sql: unhurriedSQL})
	}
	bound := max(int32(wait.Milliseconds()), 1) // 0 would be none
	statements = append(statements, statement{sql: raiseSQL, args: []any{w.claim.Resource, int64(w.claim.Token), w.claim.LeaseID, bound}})
	return w.db.once(ctx, "raise", w.claim, w.work, statements...)
}

// timedOut reports whether a timeout of the session may have ended a statement.
func timedOut(err error) bool {
	state := pgerr.State(err)
	return state == pgerr.Canceled || state == pgerr.TransactionTimeout
}

func (w *waitingRaise[Tx]) left() time.Duration { return w.db.opts.RaiseTimeout - time.Since(w.start) }

const (
	// holdersSQL lists what keeps a claim from being raised: a session and its
	// transaction, its role, and how many milliseconds it has been waiting for its client:
	// -1 if it is working, 0 if it waits in the middle of a statement, which has no
	// time; and prepared transactions. The server shows little of other
	// roles' sessions.
	holdersSQL = `SELECT coalesce(h.pid, 0), coalesce(h.gid, ''), coalesce(s.login, ''), coalesce(s.application, ''), coalesce(s.state, 'not visible'),
		coalesce(s.transaction, ''),
		coalesce(extract(epoch FROM pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) coalesce(s.began, h.prepared)) OPERATOR(pg_catalog.*) 1000, -1)::bigint,
		CASE WHEN pg_catalog.starts_with(s.state, 'idle in transaction')
				THEN greatest(extract(epoch FROM pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) s.changed) OPERATOR(pg_catalog.*) 1000, 1)
			WHEN s.event OPERATOR(pg_catalog.=) 'Client' THEN 0 ELSE -1 END::bigint,
		coalesce(s.may_end, false), h.kind
	FROM fencepost.holders($1::pg_catalog.text, $2::bigint, $3::pg_catalog.text) h
	LEFT JOIN LATERAL fencepost.session(h.pid, '{}') s ON true
	WHERE s.login IS NOT NULL OR h.gid IS NOT NULL ORDER BY 7 DESC`
	// terminateSQL ends those sessions that are still in the transactions seen
	// before, with the caller's own rights, and counts them.
	terminateSQL = `SELECT pg_catalog.count(*) FROM fencepost.holders($1::pg_catalog.text, $2::bigint, $3::pg_catalog.text) h,
		fencepost.session(h.pid, CASE WHEN h.kind OPERATOR(pg_catalog.=) 'entered' THEN pg_catalog.string_to_array($4::pg_catalog.text, ' ') END) s
	WHERE s.ended`
)

// session is a session that keeps a mark from being raised.
type session struct {
	pid                       int
	prepared                  string // the name of a prepared transaction, which has no session
	login, application, state string
	key                       string // of its transaction; empty if it cannot be seen
	open, idle                int64  // milliseconds
	mayEnd                    bool   // this login may end it
	kind                      string // entered, raising or stranger
}

func (h session) String() string {
	if h.prepared != "" {
		return fmt.Sprintf("the prepared transaction %q, for %v, which COMMIT PREPARED or ROLLBACK PREPARED ends", h.prepared, time.Duration(h.open)*time.Millisecond)
	}
	s := fmt.Sprintf("pid %d, login %q, application %q, %s", h.pid, h.login, h.application, h.state)
	if h.open >= 0 {
		s += fmt.Sprintf(", its transaction open for %v", time.Duration(h.open)*time.Millisecond)
	}
	switch {
	case h.kind == "stranger":
		s += ", which took the advisory lock without entering: pg_terminate_backend ends it"
	case h.kind == "raising":
		s += ", which raises the mark"
	case h.key == "" && h.state == "not visible":
		s += ": grant this login pg_read_all_stats and pg_signal_backend, or have an administrator end it"
	case !h.mayEnd:
		s += ", which this login may not end: grant it pg_signal_backend, or have an administrator end it"
	}
	return s
}

// errNoSpare says that a look got no connection.
var errNoSpare = errors.New("no connection to look for the holders of a mark")

// look reports the sessions in the way, ends those that have been there for too
// long, and returns the time until the next look. It waits for a connection as long
// as ctx or, unless that is 0, spare says. The last look ends none: the raise
// gave up.
func (w *waitingRaise[Tx]) look(ctx context.Context, spare time.Duration, last bool) (next time.Duration, err error) {
	acquiring := ctx
	if spare > 0 {
		bounded, cancel := context.WithTimeout(ctx, spare)
		defer cancel()
		acquiring = bounded
	}
	// The session's statement_timeout does not count: a raise that cannot look ends
	// nobody, and waits in vain.
	c, err := w.db.with(acquiring, func(c conn[Tx]) error {
		return c.begin(ctx, sql.LevelReadCommitted, false, statement{sql: unhurriedSQL})
	})
	if err != nil {
		if acquiring.Err() != nil && ctx.Err() == nil {
			err = errNoSpare
		}
		return lookEvery, sqlkit.SchemaFailure("look for the holders of a mark", w.claim, err)
	}
	defer c.release()
	q, args := c.in(), []any{w.claim.Resource, int64(w.claim.Token), w.claim.LeaseID}
	var seen []session
	if err := q.Query(ctx, holdersSQL, args, func(scan func(dest ...any) error) error {
		var h session
		err := scan(&h.pid, &h.prepared, &h.login, &h.application, &h.state, &h.key, &h.open, &h.idle, &h.mayEnd, &h.kind)
		seen = append(seen, h)
		return err
	}); err != nil {
		return lookEvery, sqlkit.SchemaFailure("look for the holders of a mark", w.claim, err)
	}
	w.mu.Lock()
	w.seen = seen
	w.mu.Unlock()
	next, late := w.late(seen)
	if len(seen) > 0 && (len(late) > 0 || time.Since(w.start) >= reportAfter) {
		w.report(ctx, waiting, seen...)
	}
	if last || len(late) == 0 {
		return next, nil
	}
	// Within a transaction the server goes on showing the sessions as they were.
	if _, err := q.Exec(ctx, "SELECT pg_catalog.pg_stat_clear_snapshot()", nil); err != nil {
		return next, sqlkit.SchemaFailure("end sessions of older holders", w.claim, err)
	}
	for _, h := range late {
		var ended int64
		_, err := sqlkit.Row(ctx, q, terminateSQL, append(args, h.key), &ended)
		// The raise that the end of the session lets go on may end the look before the response.
		if ended > 0 || err != nil && ctx.Err() != nil && !pgconn.SafeToRetry(err) {
			w.report(ctx, terminating, h)
		}
		if err != nil {
			return next, sqlkit.SchemaFailure("end sessions of older holders", w.claim, err)
		}
	}
	return soonest, nil
}

// report tells the logger, and the observer what a raise waits for, one report after the other,
// in goroutines that nobody waits for: one that blocks delays neither a look nor the raise, and
// may be called when the raise has returned.
func (w *waitingRaise[Tx]) report(ctx context.Context, what string, seen ...session) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if what == waiting && w.reporting != nil {
		return
	}
	waited, before, done := time.Since(w.start), w.reporting, make(chan struct{})
	w.reporting = done
	ctx = context.WithoutCancel(ctx)
	go func() {
		defer close(done)
		if before != nil {
			<-before
		}
		w.db.opts.Logger.LogAttrs(ctx, slog.LevelWarn, what, slog.String("resource", w.claim.Resource),
			slog.String("token", w.claim.Token.String()), slog.Duration("waited", waited), slog.String("holders", fmt.Sprint(seen)))
		if what == waiting {
			w.db.observe(ctx, guard.Event{Op: guard.OpContend, Claim: w.claim, Duration: waited, Err: waitsFor(seen)})
		}
	}()
}

const (
	waiting     = "fencepost: a raise waits for older holders"
	terminating = "fencepost: terminating the session of an older holder"
)

// late returns the sessions that have been in the way for too long, and the time
// until the next look.
func (w *waitingRaise[Tx]) late(seen []session) (next time.Duration, late []session) {
	next, after := lookEvery, w.db.opts.TerminateAfter
	for _, h := range seen {
		if h.key == "" || !h.mayEnd || h.kind != "entered" {
			continue
		}
		working, idle := w.db.holders.see(h.key, time.Duration(h.idle)*time.Millisecond)
		left := after - working
		if h.idle >= 0 {
			left = min(left, after/idleShare-idle)
		}
		if left <= 0 {
			late = append(late, h)
		} else {
			next = min(next, max(left, soonest))
		}
	}
	return next, late
}

// explain adds to the error of a raise the sessions that it waited for.
func (w *waitingRaise[Tx]) explain(err error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case err == nil || errors.As(err, new(*guard.RejectedError)):
		return err
	case errors.As(w.refused, new(*guard.RejectedError)):
		if errors.Is(err, guard.ErrUnavailable) { // marks only grow, so the next raise would say the same
			return w.refused
		}
		return fmt.Errorf("%w; a look before: %v", err, w.refused)
	case w.refused != nil:
		return errors.Join(err, because(w.refused))
	case len(w.seen) == 0:
		return err
	}
	return fmt.Errorf("%w; %w", err, waitsFor(w.seen))
}

// blocked adds to the error of an enter that did not get its lock the sessions that have it.
func (d *DB[Tx]) blocked(ctx context.Context, claims []guard.Claim, err error) error {
	for _, claim := range claims {
		w := &waitingRaise[Tx]{db: d, claim: claim, start: time.Now()}
		w.look(ctx, spareWait, true)
		if len(w.seen) > 0 {
			return w.explain(err)
		}
	}
	return err
}

// because returns why a look failed without its reason, which is not the raise's:
// a raise whose role may not look waits all the same, and may succeed the next time.
func because(look error) error {
	var failed *guard.FailedError
	if errors.As(look, &failed) {
		return fmt.Errorf("%s: %w", failed.Op, failed.Cause)
	}
	return look
}

type waitsFor []session

func (w waitsFor) Error() string { return "it waits for " + fmt.Sprint([]session(w)) }

// holderTimes remembers since when transactions have been in the way of raises, and
// since when each has waited for its client, because the server does not always
// say, and because the contexts of raises may be short.
type holderTimes struct {
	mu    sync.Mutex
	known map[string]holderTime // by the key of a transaction
}

type holderTime struct{ first, idle time.Time }

// maxHolders bounds what is remembered; forgetting only gives more time.
const maxHolders = 1024

// see returns for how long a transaction has been in the way, and for how long it
// has been idle: as long as the server says, which is negative for one that is working
// and 0 for one that waits for its client since the server does not say when; then
// since the first look that saw it so.
func (t *holderTimes) see(key string, saysIdle time.Duration) (working, idle time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	h, known := t.known[key]
	if !known {
		if t.known == nil || len(t.known) >= maxHolders {
			t.known = map[string]holderTime{}
		}
		h.first = now
	}
	switch {
	case saysIdle < 0:
		h.idle = time.Time{}
	case saysIdle > 0: // it has worked since an earlier look, if that says less
		h.idle = now.Add(-saysIdle)
	case h.idle.IsZero():
		h.idle = now
	}
	t.known[key] = h
	if h.idle.IsZero() {
		return now.Sub(h.first), 0
	}
	return now.Sub(h.first), now.Sub(h.idle)
}
