package leasetest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Happening is one change of a lease's row, recorded by a trigger while the row
// was locked: the order is that of the changes, the times are the server's.
type Happening struct {
	Token                 int64
	LeaseID               *string
	Before                *string // the lease ID before the change
	TokenBefore           *int64
	AcquiredAt, ExpiresAt time.Time
	LoggedAt              time.Time
}

// WatchHistory records every change of table.
func WatchHistory(t testing.TB, pool *pgxpool.Pool, table string) {
	t.Helper()
	MustExec(t, pool, `CREATE TABLE history (seq bigserial PRIMARY KEY, resource text, token bigint, lease_id text,
		before text, token_before bigint, acquired_at timestamptz, expires_at timestamptz, logged_at timestamptz)`)
	MustExec(t, pool, `CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		INSERT INTO public.history (resource, token, lease_id, before, token_before, acquired_at, expires_at, logged_at)
		VALUES (NEW.resource, NEW.token, NEW.lease_id, CASE WHEN TG_OP = 'UPDATE' THEN OLD.lease_id END,
		        CASE WHEN TG_OP = 'UPDATE' THEN OLD.token END, NEW.acquired_at, NEW.expires_at, clock_timestamp());
		RETURN NULL; END $$`)
	MustExec(t, pool, `CREATE TRIGGER note AFTER INSERT OR UPDATE ON `+table+` FOR EACH ROW EXECUTE FUNCTION note()`)
}

// History returns the changes of one resource in their order.
func History(t testing.TB, pool *pgxpool.Pool, resource string) []Happening {
	t.Helper()
	rows, err := pool.Query(context.Background(), `SELECT token, lease_id, before, token_before, acquired_at, expires_at, logged_at
		FROM history WHERE resource = $1 ORDER BY seq`, resource)
	if err != nil {
		t.Fatal(err)
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (h Happening, err error) {
		err = row.Scan(&h.Token, &h.LeaseID, &h.Before, &h.TokenBefore, &h.AcquiredAt, &h.ExpiresAt, &h.LoggedAt)
		return h, err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// CheckHistory returns the tokens of the grants by lease ID, and what is wrong with
// the history of one resource: tokens must grow strictly from grant to grant, one
// lease ID has one token, and no lease begins before the previous one was released
// or ran out.
func CheckHistory(all []Happening) (grants map[string]int64, problems []string) {
	grants = map[string]int64{}
	var last int64
	var end time.Time // when the current lease ends
	for i, h := range all {
		switch {
		case h.LeaseID == nil: // released
			if h.Token < last {
				problems = append(problems, fmt.Sprintf("change %d: a release lowers the token from %d to %d", i, last, h.Token))
			}
		case h.Before != nil && *h.Before == *h.LeaseID && h.TokenBefore != nil && *h.TokenBefore == h.Token:
			if h.LoggedAt.After(end) && h.AcquiredAt.Before(end) {
				problems = append(problems, fmt.Sprintf("change %d: token %d was renewed %v after its end", i, h.Token, h.LoggedAt.Sub(end)))
			}
		default: // granted
			if h.Token <= last {
				problems = append(problems, fmt.Sprintf("change %d: token %d granted after %d", i, h.Token, last))
			}
			if h.AcquiredAt.Before(end) {
				problems = append(problems, fmt.Sprintf("change %d: token %d granted %v before the end of %d", i, h.Token, end.Sub(h.AcquiredAt), last))
			}
			if token, ok := grants[*h.LeaseID]; ok && token == h.Token {
				problems = append(problems, fmt.Sprintf("change %d: token %d granted twice to %s", i, h.Token, *h.LeaseID))
			}
			grants[*h.LeaseID] = h.Token
			last = max(last, h.Token)
		}
		end = h.ExpiresAt
	}
	return grants, problems
}
