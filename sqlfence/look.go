package sqlfence

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/sqlfence/internal/sqlkit"
)

const (
	// holdersSQL lists what keeps a claim from being raised: a session and its
	// transaction, its role, and how many milliseconds it has been waiting for its client:
	// -1 if it is working, 0 if it waits in the middle of a statement, which has no
	// time; and prepared transactions. The server shows little of other
	// roles' sessions.
	holdersSQL = `SELECT coalesce(h.pid, 0), coalesce(h.gid, ''), coalesce(a.application_name, ''), coalesce(a.state, 'not visible'),
		coalesce(` + heldBy + `, ''),
		coalesce(extract(epoch FROM pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) coalesce(a.xact_start, h.prepared)) OPERATOR(pg_catalog.*) 1000, -1)::bigint,
		CASE WHEN pg_catalog.starts_with(a.state, 'idle in transaction')
				THEN greatest(extract(epoch FROM pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) a.state_change) OPERATOR(pg_catalog.*) 1000, 1)
			WHEN a.wait_event_type OPERATOR(pg_catalog.=) 'Client' THEN 0 ELSE -1 END::bigint,
		coalesce(` + sameRole + `, false), h.entered
	FROM fencepost.holders($1::pg_catalog.text, $2::bigint, $3::pg_catalog.text) h
	LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid OPERATOR(pg_catalog.=) h.pid
	WHERE a.pid IS NOT NULL OR h.gid IS NOT NULL ORDER BY 6 DESC`
	// terminateSQL ends those sessions that are still in the transactions seen
	// before, with the caller's own rights.
	terminateSQL = `SELECT pg_catalog.count(*) FROM (
	SELECT pg_catalog.pg_terminate_backend(a.pid) FROM fencepost.holders($1::pg_catalog.text, $2::bigint, $3::pg_catalog.text) h
	JOIN pg_catalog.pg_stat_activity a ON a.pid OPERATOR(pg_catalog.=) h.pid
	WHERE h.entered AND ` + sameRole + `
		AND ` + heldBy + ` OPERATOR(pg_catalog.=) ANY (pg_catalog.string_to_array($4::pg_catalog.text, ' '))
) AS ended`
	// heldBy identifies a session and its transaction.
	heldBy   = `CASE WHEN a.xact_start IS NOT NULL THEN pg_catalog.concat(a.pid, '@', extract(epoch FROM a.xact_start)) END`
	sameRole = `a.usesysid OPERATOR(pg_catalog.=) (SELECT r.oid FROM pg_catalog.pg_roles r WHERE r.rolname OPERATOR(pg_catalog.=) session_user)`
)

// session is a session that keeps a mark from being raised.
type session struct {
	pid                int
	prepared           string // the name of a prepared transaction, which has no session
	application, state string
	key                string // of its transaction; empty if it cannot be seen
	open, idle         int64  // milliseconds
	own                bool   // its role is the caller's
	entered            bool   // false if it only took the same advisory lock
}

func (h session) String() string {
	if h.prepared != "" {
		return fmt.Sprintf("the prepared transaction %q, for %v, which COMMIT PREPARED or ROLLBACK PREPARED ends", h.prepared, time.Duration(h.open)*time.Millisecond)
	}
	s := fmt.Sprintf("pid %d, application %q, %s", h.pid, h.application, h.state)
	if h.open >= 0 {
		s += fmt.Sprintf(", its transaction open for %v", time.Duration(h.open)*time.Millisecond)
	}
	if !h.entered {
		s += ", which took the advisory lock without entering"
	}
	return s
}

// errNoSpare says that a look got no connection.
var errNoSpare = errors.New("no connection to look for the holders of a mark")

// look reports the sessions in the way, ends those that have been there for too
// long, and returns the time until the next look. It waits for a connection as long
// as ctx or, unless that is 0, spare says. The last look ends none: the raise
// gave up.
func (w *waitingRaise[Tx]) look(ctx context.Context, on held[Tx], spare time.Duration, last bool) (next time.Duration, err error) {
	acquiring := ctx
	if spare > 0 {
		bounded, cancel := context.WithTimeout(ctx, spare)
		defer cancel()
		acquiring = bounded
	}
	// The session's statement_timeout does not count: a raise that cannot look ends
	// nobody, and waits in vain.
	c, err := w.db.with(acquiring, on, func(c conn[Tx]) error { return c.begin(ctx, readCommitted, statement{sql: unhurriedSQL}) })
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
		err := scan(&h.pid, &h.prepared, &h.application, &h.state, &h.key, &h.open, &h.idle, &h.own, &h.entered)
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
		w.report(ctx, seen)
	}
	if last || len(late) == 0 {
		return next, nil
	}
	// Within a transaction the server goes on showing the sessions as they were.
	if _, err := q.Exec(ctx, "SELECT pg_catalog.pg_stat_clear_snapshot()", nil); err != nil {
		return next, sqlkit.SchemaFailure("end sessions of older holders", w.claim, err)
	}
	for _, h := range late {
		w.db.opts.Logger.LogAttrs(ctx, slog.LevelWarn, "fencepost: terminating the session of an older holder", slog.String("resource", w.claim.Resource),
			slog.String("token", w.claim.Token.String()), slog.Duration("waited", time.Since(w.start)), slog.String("holder", h.String()))
		var n int64
		if _, err := sqlkit.Row(ctx, q, terminateSQL, append(args, h.key), &n); err != nil {
			return next, sqlkit.SchemaFailure("end sessions of older holders", w.claim, err)
		}
	}
	return soonest, nil
}

// report logs what a raise waits for, once.
func (w *waitingRaise[Tx]) report(ctx context.Context, seen []session) {
	if w.told {
		return
	}
	w.told = true
	waited := time.Since(w.start)
	w.db.opts.Logger.LogAttrs(ctx, slog.LevelWarn, "fencepost: a raise waits for older holders", slog.String("resource", w.claim.Resource),
		slog.String("token", w.claim.Token.String()), slog.Duration("waited", waited), slog.Any("holders", fmt.Sprint(seen)))
	w.db.observe(ctx, guard.Event{Op: guard.OpContend, Claim: w.claim, Duration: waited, Err: waitsFor(seen)})
}

// late returns the sessions that have been in the way for too long, and the time
// until the next look.
func (w *waitingRaise[Tx]) late(seen []session) (next time.Duration, late []session) {
	next, after := lookEvery, w.db.opts.TerminateAfter
	if after == 0 {
		return next, nil
	}
	for _, h := range seen {
		if h.key == "" || !h.own || !h.entered {
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
