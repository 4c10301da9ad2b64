package lockclient

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// happening is one change of a lease's row, written down by a trigger while the
// row was locked: the order is that of the changes, the times are the server's.
type happening struct {
	Token                 int64
	LeaseID               *string
	Before                *string // the lease ID before the change
	TokenBefore           *int64
	AcquiredAt, ExpiresAt time.Time
	LoggedAt              time.Time
}

// watchHistory has every change of table written down.
func watchHistory(t testing.TB, pool *pgxpool.Pool, table string) {
	t.Helper()
	mustExec(t, pool, `CREATE TABLE history (seq bigserial PRIMARY KEY, resource text, token bigint, lease_id text,
		before text, token_before bigint, acquired_at timestamptz, expires_at timestamptz, logged_at timestamptz)`)
	mustExec(t, pool, `CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		INSERT INTO public.history (resource, token, lease_id, before, token_before, acquired_at, expires_at, logged_at)
		VALUES (NEW.resource, NEW.token, NEW.lease_id, CASE WHEN TG_OP = 'UPDATE' THEN OLD.lease_id END,
		        CASE WHEN TG_OP = 'UPDATE' THEN OLD.token END, NEW.acquired_at, NEW.expires_at, clock_timestamp());
		RETURN NULL; END $$`)
	mustExec(t, pool, `CREATE TRIGGER note AFTER INSERT OR UPDATE ON `+table+` FOR EACH ROW EXECUTE FUNCTION note()`)
}

func history(t testing.TB, pool *pgxpool.Pool, resource string) []happening {
	t.Helper()
	rows, err := pool.Query(context.Background(), `SELECT token, lease_id, before, token_before, acquired_at, expires_at, logged_at
		FROM history WHERE resource = $1 ORDER BY seq`, resource)
	if err != nil {
		t.Fatal(err)
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (h happening, err error) {
		err = row.Scan(&h.Token, &h.LeaseID, &h.Before, &h.TokenBefore, &h.AcquiredAt, &h.ExpiresAt, &h.LoggedAt)
		return h, err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// granted is what the server granted, by lease ID.
type granted map[string]int64

// checkHistory says what is wrong with the history of one resource: tokens must
// grow strictly from grant to grant, one lease ID has one token, and no lease
// begins before the one before it was released or ran out.
func checkHistory(all []happening) (grants granted, problems []string) {
	grants = granted{}
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

// TestCheckHistory: the checker finds what it is there for.
func TestCheckHistory(t *testing.T) {
	at := func(s int) time.Time { return time.Unix(int64(s), 0) }
	id := func(s string) *string { return &s }
	grant := func(token int64, lease string, from, to int) happening {
		return happening{Token: token, LeaseID: id(lease), AcquiredAt: at(from), ExpiresAt: at(to), LoggedAt: at(from)}
	}
	release := func(token int64, when int) happening {
		return happening{Token: token, ExpiresAt: at(when), LoggedAt: at(when)}
	}
	renew := func(token int64, lease string, from, when, to int) happening {
		return happening{Token: token, TokenBefore: &token, LeaseID: id(lease), Before: id(lease), AcquiredAt: at(from), LoggedAt: at(when), ExpiresAt: at(to)}
	}
	for name, test := range map[string]struct {
		all []happening
		bad bool
	}{
		"good":              {[]happening{grant(1, "a", 0, 10), renew(1, "a", 0, 5, 15), release(1, 12), grant(2, "b", 12, 20), grant(3, "c", 20, 30)}, false},
		"repeated token":    {[]happening{grant(1, "a", 0, 10), release(1, 5), grant(1, "b", 5, 10)}, true},
		"lower token":       {[]happening{grant(2, "a", 0, 10), release(2, 5), grant(1, "b", 5, 10)}, true},
		"overlap":           {[]happening{grant(1, "a", 0, 10), grant(2, "b", 9, 20)}, true},
		"overlap, renewed":  {[]happening{grant(1, "a", 0, 10), renew(1, "a", 0, 5, 15), grant(2, "b", 12, 20)}, true},
		"renewed too late":  {[]happening{grant(1, "a", 0, 10), renew(1, "a", 0, 11, 15)}, true},
		"lowered by nobody": {[]happening{grant(5, "a", 0, 10), release(1, 5)}, true},
	} {
		if _, problems := checkHistory(test.all); (len(problems) > 0) != test.bad {
			t.Errorf("%s: %q", name, problems)
		}
	}
}
