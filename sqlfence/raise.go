package sqlfence

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgerr"
)

const (
	raiseSQL = "SELECT fencepost.raise($1::pg_catalog.text, $2::bigint, $3::pg_catalog.text, $4::int)"
	// A statement of its own: it does not stop a timer that is already running.
	unhurriedSQL = "SELECT pg_catalog.set_config('statement_timeout', '0', true)"
	// holdersSQL lists what keeps a claim from being raised: a session and its
	// transaction, its role, and how long it has been waiting for its client; -1
	// if it is working. The server shows little of other roles' sessions.
	holdersSQL = `SELECT a.pid, coalesce(a.application_name, ''), coalesce(a.state, 'not visible'),
		coalesce(` + heldBy + `, ''),
		coalesce(extract(epoch FROM pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) a.xact_start) OPERATOR(pg_catalog.*) 1000, -1)::bigint,
		CASE WHEN pg_catalog.starts_with(a.state, 'idle in transaction')
				THEN extract(epoch FROM pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) a.state_change) OPERATOR(pg_catalog.*) 1000
			WHEN a.wait_event_type OPERATOR(pg_catalog.=) 'Client' THEN 0 ELSE -1 END::bigint,
		` + sameRole + `, h.entered
	FROM fencepost.holders($1::pg_catalog.text, $2::bigint, $3::pg_catalog.text) AS h(pid, entered)
	JOIN pg_catalog.pg_stat_activity a ON a.pid OPERATOR(pg_catalog.=) h.pid ORDER BY a.xact_start`
	// terminateSQL ends those sessions that are still in the transactions seen
	// before, with the caller's own rights.
	terminateSQL = `SELECT pg_catalog.count(*) FROM (
	SELECT pg_catalog.pg_terminate_backend(a.pid) FROM fencepost.holders($1::pg_catalog.text, $2::bigint, $3::pg_catalog.text) AS h(pid, entered)
	JOIN pg_catalog.pg_stat_activity a ON a.pid OPERATOR(pg_catalog.=) h.pid
	WHERE h.entered AND ` + sameRole + `
		AND ` + heldBy + ` OPERATOR(pg_catalog.=) ANY (pg_catalog.string_to_array($4::pg_catalog.text, ' '))
) AS ended`
	// heldBy identifies a session and its transaction.
	heldBy   = `CASE WHEN a.xact_start IS NOT NULL THEN pg_catalog.concat(a.pid, '@', extract(epoch FROM a.xact_start)) END`
	sameRole = `a.usesysid OPERATOR(pg_catalog.=) (SELECT r.oid FROM pg_catalog.pg_roles r WHERE r.rolname OPERATOR(pg_catalog.=) session_user)`
)

// The times at which a waiting raise looks for the sessions it waits for: it
// logs them at the first look, and at the second ends those that have been idle
// for too long. After that the pauses grow, because at each look it gives up
// its place in the lock's queue, and younger transactions of the old holder
// pass it.
const (
	firstLook = 500 * time.Millisecond
	soonest   = 100 * time.Millisecond
)

// Raise makes the claim the resource's mark, unless it is already, and waits
// until every fenced transaction of an older holder has ended. A new holder
// that calls it before it reads loses none of the acknowledged updates of its
// predecessor and is overwritten by none (P2). It is idempotent, and survives a
// crash of the server once it has returned.
//
// It raises the marks of schema fencepost, with which [DB.InTx] and
// [DB.Admit] compare; a [Table]'s rows have marks of their own.
//
// The errors: [*guard.RejectedError] with ErrStale or ErrConflict; ErrInvalid;
// ErrUnavailable: not raised (also when an older holder's transaction did not
// end within Options.RaiseTimeout); ErrOutcomeUnknown: call it again.
func (d *DB[Tx]) Raise(ctx context.Context, claim guard.Claim) error {
	start := time.Now()
	err := claim.Validate()
	if err == nil {
		err = ended(ctx, "raise", claim)
	}
	if err == nil {
		err = interrupted(ctx, d.raise(ctx, claim, true))
	}
	d.observe(ctx, guard.Event{Op: guard.OpRaise, Claim: claim, Mark: markOf(claim, err), Duration: time.Since(start), Err: err})
	return err
}

// raise raises the mark. work reports whether the raise is the caller's work:
// only then is a lost answer to its COMMIT an unknown outcome.
func (d *DB[Tx]) raise(ctx context.Context, claim guard.Claim, work bool) error {
	if own := d.callback(ctx); own != nil && belowOwn(own.claims, claim) {
		return guard.Invalid("claim.Token", claim.Token.String(), "is above the token of the enclosing InTx, which the raise would wait for")
	}
	start, wait, unhurried := time.Now(), min(firstLook, d.opts.RaiseTimeout), false
	looks := raiseLooks[Tx]{db: d, claim: claim, start: start, idle: map[string]time.Time{}}
	for pause := 2 * firstLook; ; pause *= 2 {
		err := d.raiseOnce(ctx, claim, wait, work, unhurried)
		left := d.opts.RaiseTimeout - time.Since(start) // before the look, which is short
		if pgerr.State(err) == pgerr.Canceled && !unhurried && left >= time.Millisecond {
			unhurried, wait = true, min(wait, left)
			continue
		}
		if pgerr.State(err) != pgerr.LockTimeout {
			return looks.explain(err)
		}
		due, lookErr := looks.look(ctx, left < time.Millisecond)
		if errors.As(lookErr, new(*guard.RejectedError)) {
			return lookErr
		}
		if left < time.Millisecond {
			return looks.explain(err)
		}
		if lookErr != nil { // the role may not look, so all it can do is wait
			if err := d.raiseOnce(ctx, claim, left, work, unhurried); err != nil {
				return errors.Join(err, lookErr)
			}
			return nil
		}
		if wait = left; d.opts.TerminateAfter > 0 { // else there is no need to look again
			wait = min(max(min(pause, due), soonest), left)
		}
	}
}

// belowOwn reports whether the given claim supersedes one of a transaction's
// claims.
func belowOwn(claims []guard.Claim, claim guard.Claim) bool {
	for _, c := range claims {
		if c.Resource == claim.Resource && c.Token < claim.Token {
			return true
		}
	}
	return false
}

// raiseOnce waits for the lock once. A session's statement_timeout may be
// shorter than the wait; unhurried removes it for this transaction, which has
// lock_timeout instead; the first try need not pay for that.
func (d *DB[Tx]) raiseOnce(ctx context.Context, claim guard.Claim, wait time.Duration, work, unhurried bool) error {
	statements := make([]statement, 0, 2)
	if unhurried {
		statements = append(statements, statement{sql: unhurriedSQL})
	}
	statements = append(statements, statement{sql: raiseSQL, args: []any{claim.Resource, int64(claim.Token), claim.LeaseID, int32(wait.Milliseconds())}})
	return d.once(ctx, "raise", claim, work, statements...)
}

// raiseLooks is what a waiting raise has seen of the sessions it waits for.
type raiseLooks[Tx any] struct {
	db    *DB[Tx]
	claim guard.Claim
	start time.Time
	idle  map[string]time.Time // when each transaction began to wait for its client, by its key
	seen  []session
}

// session is a session that keeps a mark from being raised.
type session struct {
	pid                int
	application, state string
	key                string // of its transaction; empty if it cannot be seen
	open, idle         int64  // milliseconds
	own                bool   // its role is the caller's
	entered            bool   // false if it only took the same advisory lock
}

func (h session) String() string {
	s := fmt.Sprintf("pid %d, application %q, %s", h.pid, h.application, h.state)
	if h.open >= 0 {
		s += fmt.Sprintf(", its transaction open for %v", time.Duration(h.open)*time.Millisecond)
	}
	if !h.entered {
		s += ", which took the advisory lock without entering"
	}
	return s
}

// look reports the sessions in the way, ends those that have been there for too
// long, and returns the time until the next look. The last look ends none: the
// raise has given up.
func (r *raiseLooks[Tx]) look(ctx context.Context, last bool) (due time.Duration, err error) {
	d, first, args := r.db, r.seen == nil, []any{r.claim.Resource, int64(r.claim.Token), r.claim.LeaseID}
	r.seen = []session{}
	err = d.readOnce(ctx, "look for the holders of a mark", r.claim, func(q querier) error {
		return q.query(ctx, holdersSQL, args, func(scan func(dest ...any) error) error {
			var h session
			err := scan(&h.pid, &h.application, &h.state, &h.key, &h.open, &h.idle, &h.own, &h.entered)
			r.seen = append(r.seen, h)
			return err
		})
	})
	if err != nil {
		return 0, err
	}
	if first && len(r.seen) > 0 {
		waited := time.Since(r.start)
		d.opts.Logger.LogAttrs(ctx, slog.LevelWarn, "fencepost: a raise waits for older holders", slog.String("resource", r.claim.Resource),
			slog.String("token", r.claim.Token.String()), slog.Duration("waited", waited), slog.Any("holders", fmt.Sprint(r.seen)))
		d.observe(ctx, guard.Event{Op: guard.OpContend, Claim: r.claim, Duration: waited, Err: waitsFor(r.seen)})
	}
	due = d.opts.RaiseTimeout
	if d.opts.TerminateAfter == 0 || last {
		return due, nil
	}
	var late []string
	for _, h := range r.seen {
		if h.key == "" || !h.own || !h.entered {
			continue
		}
		left := d.opts.TerminateAfter - time.Since(d.holders.since(h.key))
		if h.idle >= 0 {
			since, was := r.idle[h.key]
			if from := time.Now().Add(-time.Duration(h.idle) * time.Millisecond); !was || from.Before(since) {
				since = from
			}
			r.idle[h.key] = since
			left = min(left, d.opts.TerminateAfter/idleShare-time.Since(since))
		} else {
			delete(r.idle, h.key)
		}
		if left <= 0 {
			late = append(late, h.key)
			d.opts.Logger.LogAttrs(ctx, slog.LevelWarn, "fencepost: terminating the session of an older holder", slog.String("resource", r.claim.Resource),
				slog.String("token", r.claim.Token.String()), slog.Duration("waited", time.Since(r.start)), slog.String("holder", h.String()))
		} else {
			due = min(due, left)
		}
	}
	if len(late) == 0 {
		return due, nil
	}
	return due, d.readOnce(ctx, "end sessions of older holders", r.claim, func(q querier) error {
		var n int64
		_, err := row(ctx, q, terminateSQL, append(args, strings.Join(late, " ")), &n)
		return err
	})
}

// explain adds to the error of a raise the sessions that it waited for.
func (r *raiseLooks[Tx]) explain(err error) error {
	if len(r.seen) == 0 || err == nil || errors.As(err, new(*guard.RejectedError)) {
		return err
	}
	return fmt.Errorf("%w; %w", err, waitsFor(r.seen))
}

type waitsFor []session

func (w waitsFor) Error() string { return "it waits for " + fmt.Sprint([]session(w)) }

// holderTimes remembers when transactions were first seen in the way of raises,
// because the server does not say when they entered, and the contexts of raises
// may be shorter than TerminateAfter.
type holderTimes struct {
	mu    sync.Mutex
	first map[string]time.Time
}

// maxHolders bounds what is remembered; forgetting only gives more time.
const maxHolders = 1024

func (t *holderTimes) since(key string) time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	first, known := t.first[key]
	if !known {
		if t.first == nil || len(t.first) >= maxHolders {
			t.first = map[string]time.Time{}
		}
		first = time.Now()
		t.first[key] = first
	}
	return first
}

// readOnce runs statements of the schema in a READ COMMITTED transaction that
// has nothing to commit. The session's statement_timeout does not count: a raise
// that cannot look ends nobody, and waits in vain.
func (d *DB[Tx]) readOnce(ctx context.Context, op string, claim guard.Claim, read func(q querier) error) error {
	c, err := d.begin(ctx, readCommitted, statement{sql: unhurriedSQL})
	if err == nil {
		err = read(d.backend.in(c.tx()))
		c.release()
	}
	return schemaFailure(op, claim, err)
}
