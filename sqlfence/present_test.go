package sqlfence

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost-go/fencepost/guard"
)

// TestRefusal (P6): what the SQLSTATEs of triggers mean, however they are
// wrapped, with the facts that the database gave; other errors are left
// unchanged.
func TestRefusal(t *testing.T) {
	refused := func(code, detail string) error {
		return fmt.Errorf("orm: %w", &pgconn.PgError{Severity: "ERROR", Code: code, Message: "refused", Detail: detail})
	}
	const facts = `{"resource":"r","token":"5","leaseId":"l5","mark":{"token":"6","leaseId":"l6","floor":false}}`
	for _, c := range []struct {
		err    error
		reason guard.Reason
		claim  guard.Claim
		mark   guard.Mark
	}{
		{refused("SF001", facts), guard.ReasonStale, guard.Claim{Resource: "r", Token: 5, LeaseID: "l5"}, guard.Mark{Token: 6, LeaseID: "l6"}},
		{refused("SF002", facts), guard.ReasonConflict, guard.Claim{Resource: "r", Token: 5, LeaseID: "l5"}, guard.Mark{Token: 6, LeaseID: "l6"}},
		{refused("SF001", "no JSON"), guard.ReasonStale, guard.Claim{}, guard.Mark{}},
	} {
		err := ErrorFrom(c.err)
		var r *guard.RejectedError
		if !errors.As(err, &r) || r.Reason != c.reason || r.Claim != c.claim || r.Mark != c.mark || !errors.Is(err, c.err) {
			t.Errorf("%v: got %#v", c.err, err)
		}
	}
	var failed *guard.FailedError
	for _, err := range []error{refused("SF004", facts), refused("40001", ""), refused("40P01", "")} {
		if got := ErrorFrom(err); guard.ReasonOf(got) != guard.ReasonUnavailable || !errors.As(got, &failed) || !errors.Is(got, err) {
			t.Errorf("%v: got %v", err, got)
		}
	}
	missing := refused("SF003", `{"resource":"r\u0007","table":"public.t"}`)
	if got := ErrorFrom(missing); !errors.Is(got, guard.ErrMissing) || !errors.Is(got, guard.ErrInvalid) || !errors.Is(got, missing) ||
		got.Error() != `sqlfence: guarded write: fencepost: claim for "r\a" is missing (Options.PresentClaims presents those of InTx): `+missing.Error() {
		t.Errorf("got %v", got)
	}
	known := guard.Unavailable("x", guard.Claim{}, refused("SF001", facts))
	for _, err := range []error{nil, refused("23505", ""), errInjected, context.Canceled, known} {
		if got := ErrorFrom(err); got != err {
			t.Errorf("%v: got %v", err, got)
		}
	}
}

// TestPresent: claims accumulate in a transaction, one for the same resource
// replaces the other, and InTx presents its own if configured; a malformed one is
// refused before anything is sent.
func TestPresent(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		e.exec(writersSQL)
		e.guardBy("items", `{tenant}`)
		e.exec("INSERT INTO fencepost.marks (resource, token, lease_id) VALUES ('a', 5, 'lease-5'), ('b', 7, 'lease-7')")
		const both = "UPDATE items SET v = v + 1"
		noError(t, e.db.plain(t.Context(), func(ctx context.Context, tx testTx) error {
			wantInvalid(t, "a malformed claim", tx.present(ctx, claimOf("a", 5), guard.Claim{Resource: "b"}), "token", "")
			return errors.Join(tx.present(ctx), tx.present(ctx, claimOf("a", 4)), tx.present(ctx, claimOf("b", 7), claimOf("a", 5)),
				func() error { _, err := tx.exec(ctx, both); return err }())
		}))
		inTx := func(add ...guard.Claim) error {
			return ErrorFrom(e.db.fenced(t.Context(), claimOf("a", 5), func(ctx context.Context, tx testTx) error {
				if err := tx.present(ctx, add...); err != nil {
					return err
				}
				_, err := tx.exec(ctx, both)
				return err
			}))
		}
		wantReason(t, inTx(), guard.ReasonMissing, "one of two claims")
		noError(t, inTx(claimOf("b", 7)), "both claims")
		e.wantInt(4, "the sum", "SELECT sum(v) FROM items")
	})
}

// TestEnteringPresents: with Options.PresentClaims every way to enter a
// transaction presents its claims to the triggers. Without it each is refused,
// and error and server name the option.
func TestEnteringPresents(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		e.exec(writersSQL)
		e.guardBy("items", `{tenant}`)
		claims := []guard.Claim{claimOf("b", 7), claimOf("a", 5)}
		const both = "UPDATE items SET v = v + 1"
		write := running(both)
		ways := func(db fence) map[string]error {
			all := map[string]error{}
			for _, level := range []Isolation{ReadCommitted, RepeatableRead, Serializable} {
				all["InTxAll "+level.String()] = db.fencedAll(t.Context(), claims, &TxOptions{Isolation: level}, write)
			}
			all["Enter"] = db.plain(t.Context(), func(ctx context.Context, tx testTx) error {
				if err := tx.enter(ctx, claims...); err != nil {
					return err
				}
				return write(ctx, tx)
			})
			return all
		}
		for way, err := range ways(e.db) {
			if err != nil {
				t.Errorf("%s: %v", way, err)
			}
		}
		wantReason(t, ErrorFrom(e.db.unfenced(t.Context(), both)), guard.ReasonMissing, "none of them")
		for way, err := range ways(e.open(&Options{})) {
			var pg *pgconn.PgError
			if err = ErrorFrom(err); guard.ReasonOf(err) != guard.ReasonMissing || !strings.Contains(err.Error(), "Options.PresentClaims") {
				t.Errorf("%s without the option: %v", way, err)
			} else if !errors.As(err, &pg) || !strings.Contains(pg.Hint, "Options.PresentClaims") {
				t.Errorf("%s without the option: the server's hint does not name it: %v", way, err)
			}
		}
	})
}
