package sqlfence

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/fencepost-go/fencepost/guard"
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
