package lockclient

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/fencepost-go/fencepost/guard"

	"github.com/jackc/pgx/v5"
)

var _ overseer = (*postgres)(nil)

// These only read and wait for no row, so now() is the time of reading. Times of
// minus infinity, for "never", come as NULL.

// stated is rows of fencepost.leases with their state; what follows says which.
const stated = `SELECT f.*, CASE WHEN f.lease_id IS NULL THEN 'free' WHEN f.expires_at > now() THEN 'held' ELSE 'expired' END AS state
  FROM fencepost.leases f WHERE `

// infoColumns are a [LeaseInfo]'s, of a stated row l.
const infoColumns = `l.resource, l.token, l.lease_id, l.owner, l.state,
  CASE WHEN isfinite(l.acquired_at) THEN l.acquired_at END, CASE WHEN isfinite(l.expires_at) THEN l.expires_at END,
  CASE WHEN l.state = 'held' AND isfinite(l.acquired_at) THEN (extract(epoch FROM now() - l.acquired_at) * 1000000)::bigint END,
  CASE WHEN l.state = 'held' THEN (extract(epoch FROM l.expires_at - now()) * 1000000)::bigint END,
  coalesce(l.wake_until > now(), false)`

// listSQL looks at the next rows of a range, at most $4 of them, and returns up
// to $5 of those in the states $6, and awaited if $7; also the $4th, chosen or
// not, which says where to go on. It is one scan of the key's index between
// bounds, under a generic plan too, and it stops when it has enough rows. $1 low,
// $2 high, $3 after.
const listSQL = `SELECT ` + infoColumns + `, l.chosen, l.looked
FROM (SELECT s.*, row_number() OVER (ORDER BY s.resource) AS looked,
    ($6::text[] IS NULL OR s.state = ANY ($6::text[])) AND (NOT $7::boolean OR coalesce(s.wake_until > now(), false)) AS chosen
  FROM (` + stated + `f.resource >= $1::text AND f.resource < $2::text AND f.resource > $3::text
    ORDER BY f.resource LIMIT $4::bigint) AS s) AS l
WHERE l.chosen OR l.looked = $4::bigint ORDER BY l.resource LIMIT $5::bigint`

const getSQL = `SELECT ` + infoColumns + ` FROM (` + stated + `f.resource = $1::text AND f.resource <> '') AS l`

// longHeldSQL returns the longest held first. $1 low, $2 high, $3 threshold in
// microseconds, $4 limit.
const longHeldSQL = `SELECT ` + infoColumns + ` FROM (` + stated + `f.resource >= $1::text AND f.resource < $2::text
  AND f.resource <> '' AND f.lease_id IS NOT NULL AND f.expires_at > now()
  AND f.acquired_at < now() - $3::bigint * interval '1 microsecond') AS l
ORDER BY l.acquired_at, l.resource LIMIT $4::bigint`

// bounded returns a statement whose range begins at $1 and ends at $2, without
// the end if there is none: a condition on the parameter in its place would make
// a generic plan read on to the end of the index.
func (s span) bounded(sql string) string {
	if s.high != "" {
		return sql
	}
	return strings.Replace(sql, ".resource < $2::text", ".resource IS NOT NULL AND $2::text = ''", 1)
}

// scanInfo reads infoColumns and what comes after them.
func scanInfo(row pgx.Row, info *LeaseInfo, more ...any) error {
	var resource, leaseID, owner, state *string
	var token, held, remaining *int64
	var acquired, expires *time.Time
	var awaited *bool
	err := row.Scan(append([]any{&resource, &token, &leaseID, &owner, &state, &acquired, &expires, &held, &remaining, &awaited}, more...)...)
	if err != nil {
		return err
	}
	*info = LeaseInfo{
		Resource: of(resource), Token: guard.Token(of(token)), LeaseID: of(leaseID), Owner: of(owner), State: LeaseState(of(state)),
		AcquiredAt: of(acquired), ExpiresAt: of(expires), Awaited: of(awaited),
		HeldFor:   time.Duration(of(held)) * time.Microsecond,
		Remaining: time.Duration(of(remaining)) * time.Microsecond,
	}
	return nil
}

// of is the value of a column, and the zero value for NULL.
func of[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

func (p *postgres) list(ctx context.Context, q listQuery) (page []LeaseInfo, last string, more bool, err error) {
	// Without a selection one row more than the page says whether it is the end.
	look := int64(q.limit) + 1
	if q.states != nil || q.awaited {
		look = window
	}
	err = p.read(ctx, "list", func(ctx context.Context, conn *pgx.Conn) error {
		type line struct {
			info   LeaseInfo
			chosen bool
			looked int64
		}
		lines, err := collect(ctx, conn, func(row pgx.Row, l *line) error { return scanInfo(row, &l.info, &l.chosen, &l.looked) },
			q.bounded(listSQL), q.low, q.high, q.after, look, int64(q.limit)+1, q.states, q.awaited)
		page = make([]LeaseInfo, 0, len(lines))
		for _, l := range lines {
			if len(page) == q.limit { // one more, chosen or not
				more = true
				break
			}
			last, more = l.info.Resource, l.looked == look
			if l.chosen {
				page = append(page, l.info)
			}
		}
		return err
	})
	return page, last, more, err
}

func (p *postgres) get(ctx context.Context, resource string) (info LeaseInfo, found bool, err error) {
	err = p.read(ctx, "get", func(ctx context.Context, conn *pgx.Conn) error {
		err := scanInfo(conn.QueryRow(ctx, getSQL, resource), &info)
		if found = err == nil; errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		return err
	})
	return info, found, err
}

func (p *postgres) longHeld(ctx context.Context, q longHeldQuery) (rows []LeaseInfo, err error) {
	err = p.read(ctx, "long held", func(ctx context.Context, conn *pgx.Conn) error {
		rows, err = collect(ctx, conn, func(row pgx.Row, info *LeaseInfo) error { return scanInfo(row, info) },
			q.bounded(longHeldSQL), q.low, q.high, q.threshold.Microseconds(), int64(q.limit))
		return err
	})
	return rows, err
}

// read runs a statement that writes nothing, once the schema's version is right.
func (p *postgres) read(ctx context.Context, op string, query func(ctx context.Context, conn *pgx.Conn) error) error {
	err := p.on(ctx, p.pool, p.set.opTimeout, func(ctx context.Context, conn *pgx.Conn, _ string) error {
		if err := p.checkSchema(ctx, conn); err != nil {
			return harmless(err)
		}
		return harmless(query(ctx, conn))
	})
	return failure(op, guard.Claim{}, err)
}

// collect runs a query and reads its rows.
func collect[T any](ctx context.Context, conn *pgx.Conn, scan func(pgx.Row, *T) error, sql string, args ...any) ([]T, error) {
	rows, err := conn.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	all := []T{}
	for rows.Next() {
		var one T
		if err := scan(rows, &one); err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return all, rows.Err()
}
