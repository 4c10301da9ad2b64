package sqlfence

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/sqlfence/sqlrow"
)

// rowWriter writes row id under a token.
type rowWriter func(ctx context.Context, e *env, table *Table, id int, token guard.Token) error

func writeFenced(ctx context.Context, e *env, table *Table, id int, token guard.Token) error {
	return table.Update(ctx, e.db, guard.Claim{Resource: fmt.Sprint("row:", id), Token: token}, Key{id}, Set{"v": sqlrow.Raw("v + 1")})
}

func writeNaive(ctx context.Context, e *env, _ *Table, id int, token guard.Token) error {
	_, err := e.db.Exec(ctx, "UPDATE jobs SET v = v + 1, last_fencing_token = $2::bigint WHERE id = $1", []any{id, int64(token)})
	return err
}

// torture lets clients write a few rows under growing tokens, each a little
// behind or ahead of the others. It returns how many writes took effect, how
// many of them went backwards according to the database's own log, and how many
// acknowledgements or refusals the log contradicts.
func torture(t *testing.T, e *env, rule guard.Rule, rows, writes int, write rowWriter) (applied, backwards, contradicted int64) {
	// The trigger draws the number under the row's lock: the log is in the
	// order in which the writes of a row took effect.
	e.exec(`DROP TABLE IF EXISTS jobs, log;
		CREATE TABLE jobs (id int PRIMARY KEY, v int NOT NULL DEFAULT 0, last_fencing_token bigint NOT NULL DEFAULT 0);
		CREATE TABLE log (n bigserial PRIMARY KEY, id int NOT NULL, token bigint NOT NULL);
		CREATE OR REPLACE FUNCTION log_write() RETURNS trigger LANGUAGE plpgsql AS
			'BEGIN INSERT INTO log (id, token) VALUES (NEW.id, NEW.last_fencing_token); RETURN NULL; END';
		CREATE TRIGGER log AFTER UPDATE ON jobs FOR EACH ROW EXECUTE FUNCTION log_write()`)
	e.exec("INSERT INTO jobs SELECT generate_series(1, $1::int)", rows)
	table := e.table("jobs", []string{"id"}, &TableOptions{Rule: rule})
	clients := crowd
	acked := make([]int64, clients)
	var step atomic.Int64 // shared by all, so that no client runs ahead of the rest
	var wg sync.WaitGroup
	for client := range clients {
		rng := rand.New(rand.NewPCG(rand.Uint64(), uint64(client)))
		wg.Go(func() {
			for range writes {
				id, token := 1+rng.IntN(rows), guard.Token(1+step.Add(1)/int64(clients)+rng.Int64N(8))
				switch err := write(t.Context(), e, table, id, token); guard.ReasonOf(err) {
				case guard.ReasonNone:
					acked[client]++
				case guard.ReasonStale, guard.ReasonSpent:
				default:
					t.Errorf("token %d for row %d: %v", token, id, err)
					return
				}
			}
		})
	}
	wg.Wait()
	least := "<" // under OncePerToken a second write of a token is as bad
	if rule == guard.OncePerToken {
		least = "<="
	}
	applied = e.int("SELECT count(*) FROM log")
	backwards = e.int("SELECT count(*) FROM (SELECT token, lag(token, 1, 0::bigint) OVER (PARTITION BY id ORDER BY n) AS before FROM log) x WHERE token " + least + " before")
	total := int64(0)
	for _, n := range acked {
		total += n
	}
	return applied, backwards, max(total-applied, applied-total)
}

// TestNoStaleWrite (P1): many clients on one row and on three, both rules: no
// write that took effect was under a lower token than one before it.
func TestNoStaleWrite(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		for _, rule := range []guard.Rule{guard.OncePerToken, guard.SameOrNewer} {
			for _, rows := range []int{1, 3} {
				applied, backwards, contradicted := torture(t, e, rule, rows, campaign(20), writeFenced)
				if backwards != 0 || contradicted != 0 {
					t.Errorf("%v, %d rows: %d of %d writes went backwards, %d contradict what the clients were told", rule, rows, backwards, applied, contradicted)
				}
				if applied == 0 {
					t.Errorf("%v, %d rows: nothing was written", rule, rows)
				}
			}
		}
	})
}

// TestNoStaleWriteControl: the same clients without the comparison do go
// backwards. Their tokens come in a random order even if they write one
// after the other, so that the result does not depend on chance. A comparison
// that is not in the write is one of the traps of TestRowTraps.
func TestNoStaleWriteControl(t *testing.T) {
	someDriver(t, func(t *testing.T, e *env) {
		applied, backwards, _ := torture(t, e, guard.SameOrNewer, 1, 40, writeNaive)
		if backwards == 0 {
			t.Errorf("none of %d writes went backwards", applied)
		}
		t.Logf("%d of %d writes went backwards", backwards, applied)
	})
}
