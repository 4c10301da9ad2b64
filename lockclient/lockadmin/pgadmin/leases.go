package pgadmin

import (
	"context"
	"iter"
	"math"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/internal/pattern"
	"github.com/fencepost-go/fencepost/lockclient/internal/pglease"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"
)

// List is explained with [lockadmin.Admin]. It reads page by page, each by one statement
// on a range of the primary key that looks at no more than 5,000 rows: it starts
// at once and uses the same memory however many leases there are. Leases that
// come and go while List reads may be missed. A lease that was granted before the server's
// clock was set back has been held since the grant, by the new clock; Inspect has a finding
// for it.
func (o *Operator) List(ctx context.Context, pattern string, opts *lockadmin.ListOptions) iter.Seq2[lockadmin.LeaseInfo, error] {
	q, err := o.listQuery(pattern, opts)
	return paged(q.after, err, func(after string, limit int) ([]lockadmin.LeaseInfo, string, bool, error) {
		q.after, q.limit = after, limit
		return o.page(ctx, q)
	})
}

// window is how many rows are looked at in one statement.
const window = 5000

type listQuery struct {
	pattern.Pattern
	after   string
	states  []string // nil: all
	awaited bool
	heldFor *int64 // microseconds; nil: any
	limit   int
}

func (o *Operator) listQuery(selected string, opts *lockadmin.ListOptions) (q listQuery, err error) {
	set := pglease.Of(opts)
	if q.Pattern, err = pattern.New("pattern", selected); err != nil {
		return q, err
	}
	if err := set.Validate(); err != nil {
		return q, err
	}
	for _, state := range set.States {
		q.states = append(q.states, string(state))
	}
	if set.HeldFor > 0 {
		least := set.HeldFor.Microseconds()
		q.heldFor = &least
	}
	q.after, q.awaited, q.limit = set.After, set.AwaitedOnly, firstPage
	return q, nil
}

// page returns the next leases, fewer than the limit if few are selected, and
// where to go on.
func (o *Operator) page(ctx context.Context, q listQuery) (page []lockadmin.LeaseInfo, last string, more bool, err error) {
	// Without a selection, one row beyond the page shows whether it is the last.
	look := int64(q.limit) + 1
	if q.states != nil || q.awaited || q.heldFor != nil || q.Expression != nil {
		look = window
	}
	type line struct {
		info   lockadmin.LeaseInfo
		chosen bool
		looked int64
	}
	lines, err := query(ctx, o, "list", func(row pgx.Row, l *line) error { return o.scanInfo(row, &l.info, &l.chosen, &l.looked) },
		q.Bounded(listSQL, rangeEnd), q.Low, q.High, q.after, look, int64(q.limit)+1, q.states, q.awaited, q.Expression, q.heldFor)
	last = q.after
	for _, l := range lines {
		if len(page) == q.limit { // one more, selected or not
			return page, last, true, err
		}
		last, more = l.info.Resource, l.looked == look
		if l.chosen {
			page = append(page, l.info)
		}
	}
	return page, last, more, err
}

// Get returns what the server knows about one resource.
//
// Errors: guard.ErrInvalid, guard.ErrNotFound (it was never leased, or purged;
// a [*guard.RejectedError]) and guard.ErrUnavailable.
func (o *Operator) Get(ctx context.Context, resource string) (info lockadmin.LeaseInfo, err error) {
	if err := guard.ValidateResource(resource); err != nil {
		return lockadmin.LeaseInfo{}, err
	}
	rows, err := query(ctx, o, "get", o.scanLease, getSQL, resource)
	switch {
	case err != nil:
		return lockadmin.LeaseInfo{}, err
	case len(rows) == 0:
		return lockadmin.LeaseInfo{}, notFound(resource)
	}
	return rows[0], nil
}

// moment returns a column as a time that can be encoded, since an issuer's role
// may write any: the nearest of the years 1 to 9999. Of a free lease, minus
// infinity is "never", and NULL.
func moment(column, state string) string {
	return "CASE WHEN " + column + " <> '-infinity' OR " + state + " <> 'free' THEN greatest('0001-01-02 00:00:00+00', least(" + column + ", '9999-12-31 00:00:00+00')) END"
}

// These only read and wait for no row, so now() is the time of reading.

// stated selects rows of fencepost.leases with their state; a condition
// follows.
const stated = `SELECT f.*, CASE WHEN f.lease_id IS NULL THEN 'free' WHEN f.expires_at > now() THEN 'held' ELSE 'expired' END AS state
  FROM fencepost.leases f WHERE `

// infoColumns are the columns of a [lockadmin.LeaseInfo], from a stated row l.
var infoColumns = `l.resource, l.token, coalesce(l.lease_id, ''), l.owner, l.state,
  ` + moment("l.acquired_at", "l.state") + `, ` + moment("l.expires_at", "l.state") + `, now(),
  coalesce(l.wake_until > now(), false), CASE WHEN l.wake_until > now() THEN coalesce(cardinality(l.waiters), 0) ELSE 0 END,
  CASE WHEN l.state <> 'free' THEN l.metadata ELSE '' END`

const rangeEnd = "f.resource < $2::text"

// listSQL looks at the next rows of a range, at most $4 of them, and returns up
// to $5 of those in the states $6, awaited if $7, that match $8 and were held for $9 microseconds; also the $4th,
// selected or not, which says where to go on. It is one scan of the key's index
// between bounds, under a generic plan too, and it stops when it has enough rows.
// $1 low, $2 high, $3 after.
var listSQL = `SELECT ` + infoColumns + `, l.chosen, l.looked
FROM (SELECT s.*, row_number() OVER (ORDER BY s.resource) AS looked,
    ($6::text[] IS NULL OR s.state = ANY ($6::text[])) AND (NOT $7::boolean OR coalesce(s.wake_until > now(), false))
      AND ($8::text IS NULL OR s.resource ~ $8::text)
      AND ($9::bigint IS NULL OR s.state = 'held' AND s.acquired_at <= now() - $9::bigint * interval '1 microsecond') AS chosen
  FROM (` + stated + `f.resource >= $1::text AND ` + rangeEnd + ` AND f.resource > $3::text
    ORDER BY f.resource LIMIT $4::bigint) AS s) AS l
WHERE l.chosen OR l.looked = $4::bigint ORDER BY l.resource LIMIT $5::bigint`

var getSQL = `SELECT ` + infoColumns + ` FROM (` + stated + `f.resource = $1::text AND f.resource <> '') AS l`

func (o *Operator) scanLease(row pgx.Row, info *lockadmin.LeaseInfo) error {
	return o.scanInfo(row, info)
}

// scanInfo reads infoColumns and the columns after them.
func (o *Operator) scanInfo(row pgx.Row, info *lockadmin.LeaseInfo, more ...any) error {
	return o.scanCut(row, info, append([]any{&info.Awaited, &info.Waiters, &info.Metadata}, more...)...)
}

// scanCut reads a lease as it was at a moment: resource, token, lease ID, owner,
// state, acquired, expires and the moment, and the columns after them.
func (o *Operator) scanCut(row pgx.Row, info *lockadmin.LeaseInfo, more ...any) error {
	var at zeronull.Timestamptz
	err := row.Scan(append([]any{&info.Resource, (*int64)(&info.Token), &info.LeaseID, &info.Owner, (*string)(&info.State),
		(*zeronull.Timestamptz)(&info.CreatedAt), (*zeronull.Timestamptz)(&info.ExpiresAt), &at}, more...)...)
	if info.State == lockadmin.StateHeld {
		// Bounded on both sides, so that it can be negated.
		info.HeldFor, info.Remaining = max(time.Time(at).Sub(info.CreatedAt), -math.MaxInt64), info.ExpiresAt.Sub(time.Time(at))
	}
	return err
}
