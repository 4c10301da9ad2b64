package pgadmin

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/internal/input"
	"github.com/fencepost-go/fencepost/lockclient/internal/pause"
	"github.com/fencepost-go/fencepost/lockclient/internal/pglease"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin"

	"github.com/jackc/pgx/v5"
)

const (
	defaultTableWait = 20 * time.Millisecond
	maxBatch         = 1000
)

func withDefaults(o *lockadmin.PurgeOptions) (lockadmin.PurgeOptions, error) {
	s := pglease.Of(o)
	if s.Batch = cmp.Or(s.Batch, 100); s.Batch < 0 || s.Batch > maxBatch {
		return s, guard.Invalid("PurgeOptions.Batch", strconv.Itoa(s.Batch), "must be 0 to "+strconv.Itoa(maxBatch))
	}
	const day = 24 * time.Hour
	err := cmp.Or(
		input.Fill("PurgeOptions.OlderThan", &s.OlderThan, day, 100*365*day),
		input.Fill("PurgeOptions.LockTimeout", &s.LockTimeout, defaultTableWait, time.Second))
	return s, err
}

// Purge deletes the rows of resources that have long been free, so that the
// table does not keep every name that was ever leased. It never lowers a token:
// in the same transaction it raises the floor to the highest deleted token, and
// every later grant, on any resource, is above the floor. If tokens should stay
// small, do not purge.
//
// Deleting takes a lock that blocks grants and renewals, for some milliseconds
// per batch, and the purge pauses between batches. It takes the lock only if it
// gets it at once: while a transaction that stays open (a forgotten psql, a long
// report that writes, VACUUM) has a lock on fencepost.leases, it tries again
// later and does not queue, because renewals would queue behind it. opts may be
// nil.
//
// Errors: guard.ErrInvalid (also for a handle with a namespace);
// guard.ErrUnavailable (the batch that failed deleted nothing, for example
// because it got no lock within Options.OpTimeout); guard.ErrOutcomeUnknown.
// Purged says what was deleted before; another call continues. Call it from a cron
// job or a ticker, in one process or in several.
func (o *Operator) Purge(ctx context.Context, opts *lockadmin.PurgeOptions) (lockadmin.Purged, error) {
	s, err := withDefaults(opts)
	if err != nil {
		return lockadmin.Purged{}, err
	}
	purged, err := o.purge(ctx, s)
	if err != nil {
		o.log(ctx, slog.LevelWarn, "lock_purge_failed", slog.Int64("purged", purged.Count), slog.Any("error", err))
	} else if purged.Count > 0 {
		o.log(ctx, slog.LevelInfo, "lock_purged", slog.Int64("purged", purged.Count),
			slog.String("floor", purged.Floor.String()), slog.Int("blocked", purged.Blocked))
	}
	return purged, pause.WithCause(ctx, err)
}

// purge goes through the table once.
func (o *Operator) purge(ctx context.Context, s lockadmin.PurgeOptions) (total lockadmin.Purged, err error) {
	// The floor is returned even if there is nothing to delete.
	epoch, err := o.raise(ctx, "purge", pglease.Raise{})
	if err != nil {
		return total, err
	}
	total.Floor = epoch.Floor
	for after := ""; ; {
		looked, err := query(ctx, o, "purge", scanIdle, idleSQL, after, s.OlderThan.Microseconds(), int64(window))
		if err != nil {
			return total, err
		}
		for batch := range slices.Chunk(looked[0].free, s.Batch) {
			if err := o.purgeBatch(ctx, s, batch, &total); err != nil {
				return total, err
			}
		}
		if after = looked[0].last; looked[0].rows < window {
			return total, nil
		}
	}
}

// purgeBatch waits out locks, then pauses for four times as long as it took.
func (o *Operator) purgeBatch(ctx context.Context, s lockadmin.PurgeOptions, names []string, total *lockadmin.Purged) error {
	began := time.Now()
	for attempt := 0; ; attempt++ {
		at := time.Now()
		done, err := o.delete(ctx, names, s.OlderThan, s.LockTimeout)
		rest := 4 * time.Since(at)
		if err == nil {
			total.Count += done.Count
			total.Floor = max(total.Floor, done.Floor)
			pause.For(ctx, min(rest, pause.Last), nil)
			return nil
		}
		if !pglease.Contention(err) {
			return err
		}
		total.Blocked++
		if time.Since(began) >= o.server.OpTimeout || !pause.For(ctx, max(pause.Jitter(pause.Last, 2), pause.Backoff(attempt, pause.Last)), nil) {
			return err
		}
	}
}

// idleSQL looks at $3 rows and returns those that have long been free. $1 the
// resource before the first, $2 how long in microseconds, $3 how many.
const idleSQL = `SELECT coalesce(array_agg(w.resource) FILTER (WHERE w.expires_at < clock_timestamp() - $2::bigint * interval '1 microsecond'), '{}'),
  coalesce(max(w.resource), ''), count(*)
FROM (SELECT l.resource, l.expires_at FROM fencepost.leases l WHERE l.resource > $1::text ORDER BY l.resource LIMIT $3::bigint) AS w`

type idle struct {
	free []string
	last string
	rows int64
}

func scanIdle(row pgx.Row, i *idle) error { return row.Scan(&i.free, &i.last, &i.rows) }

const purgeSQL = `SELECT o_purged, o_floor FROM fencepost.purge_leases($1::pg_catalog.text[], $2::bigint, $3::pg_catalog.text::integer)`

func (o *Operator) delete(ctx context.Context, resources []string, free, wait time.Duration) (done lockadmin.Purged, err error) {
	err = o.do(ctx, func(ctx context.Context, conn *pgx.Conn, _ string) error {
		var floor int64
		err := conn.QueryRow(ctx, purgeSQL, resources, free.Microseconds(), pglease.Milliseconds(wait)).Scan(&done.Count, &floor)
		done.Floor = guard.Token(floor)
		return err
	})
	if err != nil {
		err = fmt.Errorf("a batch of %d: %w", len(resources), err)
	}
	return done, pglease.Failure("purge", guard.Claim{}, err)
}
