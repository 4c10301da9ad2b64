package sqlfence

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/sqlfence/sqlrow"
)

// TestTwoDBsInOneTransaction: a second DB that enters in the transaction of the first
// does not end it, and its own marker is found too.
func TestTwoDBsInOneTransaction(t *testing.T) {
	bothDrivers(t, func(t *testing.T, e *env) {
		e.createWritten()
		other := e.open(nil)
		must(t, e.db.Raise(t.Context(), claimOf("s", 5)))
		err := e.db.fenced(t.Context(), claimOf("r", 5), func(ctx context.Context, tx testTx) error {
			for range 2 {
				if err := otherEnter(ctx, other, tx, claimOf("s", 5)); err != nil {
					return err
				}
			}
			return write5(ctx, tx)
		})
		if err != nil || e.written() != 1 {
			t.Errorf("%v, %d rows", err, e.written())
		}
	})
}

func otherEnter(ctx context.Context, other fence, tx testTx, claim guard.Claim) error {
	if x, ok := tx.(pgxTx); ok {
		return other.(pgxFence).Enter(ctx, x.tx, claim)
	}
	x := tx.(stdTx)
	if err := other.(stdFence).Enter(ctx, x.tx, claim); err != nil {
		return err
	}
	return other.(stdFence).EnterOn(ctx, x.tx, claim)
}

// TestEnterAddsToPresented: a claim that is entered is presented beside those that
// were presented before, as by Present.
func TestEnterAddsToPresented(t *testing.T) {
	bothDrivers(t, func(t *testing.T, e *env) {
		e.exec("CREATE TABLE g (tenant text NOT NULL, v int)")
		e.guardBy("g", "{tenant}")
		db := e.open(&Options{PresentClaims: true})
		for _, r := range []string{"a", "b", "it's {1} \\ \"c\""} {
			must(t, db.Raise(t.Context(), claimOf(r, 5)))
		}
		for what, first := range map[string]func(tx testTx) error{
			"entered":   func(tx testTx) error { return tx.enter(t.Context(), claimOf("a", 5)) },
			"presented": func(tx testTx) error { return tx.present(t.Context(), claimOf("a", 5)) },
		} {
			noError(t, db.plain(t.Context(), func(ctx context.Context, tx testTx) error {
				if err := first(tx); err != nil {
					return err
				}
				if err := tx.enter(ctx, claimOf("b", 5)); err != nil {
					return err
				}
				_, err := tx.exec(ctx, "INSERT INTO g VALUES ('a', 1), ('b', 1)")
				return ErrorFrom(err)
			}), "%s before", what)
		}
	})
}

// TestEnterPresentsOnce: what Enter sends grows with its claims, not with their
// square: each statement presents its own claim.
func TestEnterPresentsOnce(t *testing.T) {
	for _, present := range []bool{false, true} {
		d := &DB[*sql.Tx]{opts: Options{PresentClaims: present}}
		claims := make([]guard.Claim, 64)
		for n := range claims {
			claims[n] = claimOf(fmt.Sprint("r", n), 5)
		}
		var sent []int
		d.enterRows(claims, func(s statement) error {
			n, text := 0, inlined(s)
			for _, other := range claims {
				n += strings.Count(text, `"`+other.Resource+`"`)
			}
			sent = append(sent, n)
			return nil
		})
		for n, presented := range sent {
			if len(sent) != len(claims) || presented != map[bool]int{true: 1}[present] {
				t.Fatalf("PresentClaims %t: statement %d of %d presents %d claims", present, n, len(sent), presented)
			}
		}
	}
}

// TestEnterOnInside: inside InTx, EnterOn takes the claims of the InTx alone, whose
// transaction it may be in.
func TestEnterOnInside(t *testing.T) {
	e := newEnvOf(t, "std")
	e.createWritten()
	err := e.db.fenced(t.Context(), claimOf("r", 5), func(ctx context.Context, tx testTx) error {
		x := tx.(stdTx)
		for _, claim := range []guard.Claim{claimOf("s", 5), claimOf("r", 6), claimOf("r", 4)} {
			wantInvalid(t, claim.Resource+claim.Token.String(), x.db.EnterOn(ctx, x.tx, claim), "claim", "InTx")
		}
		noError(t, x.db.EnterOn(ctx, x.tx, claimOf("r", 5)))
		return write5(ctx, tx)
	})
	if marks := e.text("SELECT string_agg(resource || token, ' ') FROM fencepost.marks"); err != nil || e.written() != 1 || marks != "r5" {
		t.Errorf("%v, %d rows, marks %s", err, e.written(), marks)
	}
}

// TestEndedBehindAnotherError (P6): a holder whose session a raise has ended learns
// that it is stale, whatever error its callback makes of that; the callback's error
// stays the cause. Without a raise it is passed on unchanged.
func TestEndedBehindAnotherError(t *testing.T) {
	bothDrivers(t, func(t *testing.T, e *env) {
		e.createWritten()
		for _, raised := range []bool{true, false} {
			e.exec("DELETE FROM fencepost.marks")
			own := errors.New("the work failed")
			err := e.db.fenced(t.Context(), claimOf("r", 5), func(ctx context.Context, tx testTx) error {
				pid, err := tx.int(ctx, "SELECT pg_backend_pid()")
				if err != nil {
					return err
				}
				e.terminate(pid)
				if raised {
					if err := e.db.Raise(context.Background(), claimOf("r", 6)); err != nil {
						return err
					}
				}
				write5(ctx, tx)
				return own
			})
			if !errors.Is(err, own) || errors.Is(err, guard.ErrStale) != raised || !raised && err != own {
				t.Errorf("raised %t: %v", raised, err)
			}
		}
	})
}

// TestTableRunsNoOperatorOfOthers (P1): a write of a claim's row does not use an
// operator of another role that matches the columns' types better and is true for
// every row.
func TestTableRunsNoOperatorOfOthers(t *testing.T) {
	someDriver(t, func(t *testing.T, e *env) {
		e.exec(`CREATE SCHEMA shared;
			CREATE FUNCTION shared.always(varchar, varchar) RETURNS boolean LANGUAGE sql AS 'SELECT true';
			CREATE OPERATOR shared.= (LEFTARG = varchar, RIGHTARG = varchar, FUNCTION = shared.always);
			CREATE FUNCTION shared.always(text, varchar) RETURNS boolean LANGUAGE sql AS 'SELECT true';
			CREATE OPERATOR shared.= (LEFTARG = text, RIGHTARG = varchar, FUNCTION = shared.always);
			CREATE FUNCTION shared.always(bigint, bigint) RETURNS boolean LANGUAGE sql AS 'SELECT true';
			CREATE OPERATOR shared.> (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = shared.always);
			CREATE OPERATOR shared.>= (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = shared.always);
			CREATE TABLE n (id varchar(20) PRIMARY KEY, v int NOT NULL, last_fencing_token bigint NOT NULL DEFAULT 0, lease varchar(50) NOT NULL DEFAULT '');
			INSERT INTO n VALUES ('a', 0, 5, 'x'), ('b', 0, 0, '')`)
		table, err := sqlrow.NewTable([]string{"n"}, []string{"id"}, guard.Must(guard.NewTemplate("{id}")), &TableOptions{Rule: guard.SameOrNewer, LeaseColumn: "lease"})
		if err != nil {
			t.Fatal(err)
		}
		claim := func(resource string, token guard.Token) guard.Claim {
			return guard.Claim{Resource: resource, Token: token, LeaseID: "l"}
		}
		set := Set{"v": 1}
		for _, path := range []string{"shared, public", "shared, public, pg_catalog"} {
			db := e.along(path)
			ways := map[string]func(c guard.Claim) error{
				"Update":   func(c guard.Claim) error { return table.Update(t.Context(), db, c, Key{c.Resource}, set) },
				"Takeover": func(c guard.Claim) error { return table.Raise(t.Context(), db, c, Key{c.Resource}, nil) },
				"Upsert":   func(c guard.Claim) error { return table.Upsert(t.Context(), db, c, Key{c.Resource}, set) },
			}
			for way, write := range ways {
				newer, stale, conflicting := write(claim("b", 7)), write(claim("a", 4)), write(claim("a", 5))
				if newer != nil || !errors.Is(stale, guard.ErrStale) || !errors.Is(conflicting, guard.ErrConflict) {
					t.Errorf("%s under %s: %v; %v; %v", way, path, newer, stale, conflicting)
				}
			}
			if rows := e.text("SELECT string_agg(concat(id, v, last_fencing_token, lease), ' ' ORDER BY id) FROM n"); rows != "a05x b17l" {
				t.Errorf("under %s: %s", path, rows)
			}
		}
	})
}
