package sqlfence

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/sqlfence/internal/sqlkit"
	"github.com/fencepost-go/fencepost/sqlfence/sqlrow"
)

// TestInvalidRows: malformed input to the statements on rows is refused before
// anything is sent, which a closed pool shows.
func TestInvalidRows(t *testing.T) {
	var nilInt *int
	var n int
	claim, key, set := claimOf("r", 1), Key{1, "x"}, Set{"v": 1}
	eachDriver(t, func(t *testing.T, e *env) {
		closed := e.closed()
		opts := TableOptions{LeaseColumn: "last_lease_id", DeletedColumn: "deleted_at", Rule: guard.SameOrNewer}
		table := e.table("pairs", []string{"a", "b"}, &opts)
		take := func(dest Dest) error { return table.Raise(t.Context(), closed, claim, key, dest) }
		once := e.table("pairs", []string{"a", "b"}, nil)
		for what, c := range map[string]struct {
			err          error
			field, shown string
		}{
			"takeover, once per token":    {once.Raise(t.Context(), closed, claim, key, nil), "TableOptions.Rule", "once-per-token"},
			"delete without its column":   {once.Delete(t.Context(), closed, claim, key, nil), "TableOptions.DeletedColumn", "must be set"},
			"delete sets the column":      {table.Delete(t.Context(), closed, claim, key, Set{"deleted_at": 1}), "set column", "deleted column"},
			"delete sets the token":       {table.Delete(t.Context(), closed, claim, key, Set{"last_fencing_token": 1}), "set column", "token column"},
			"upsert sets the key":         {table.Upsert(t.Context(), closed, claim, key, Set{"b": 1}), "set column", "key column"},
			"upsert sets the lease":       {table.Upsert(t.Context(), closed, claim, key, Set{"last_lease_id": 1}), "set column", "lease column"},
			"upsert, an open parenthesis": {table.Upsert(t.Context(), closed, claim, key, Set{"v": sqlrow.Raw("(1")}), "set column v", "parenthesis"},
			"upsert, a NULL key":          {table.Upsert(t.Context(), closed, claim, Key{1, nil}, set), "key column b", "NULL"},
			"dest is no pointer":          {take(Dest{"v": 1}), "dest column v", "int"},
			"dest is nil":                 {take(Dest{"v": nil}), "dest column v", "<nil>"},
			"dest is a nil pointer":       {take(Dest{"v": nilInt}), "dest column v", "*int"},
			"dest of an empty name":       {take(Dest{"": &n}), "dest column", `""`},
			"dest of 64 bytes":            {take(Dest{strings.Repeat("d", 64): &n}), "dest column", "64 bytes"},
			"dest with NUL":               {take(Dest{"a\x00": &n}), "dest column", `a\x00`},
			"a deleted column of 0":       {newTableError(&TableOptions{DeletedColumn: "a\x00"}), "deleted column", `a\x00`},
			"deleted is the token":        {newTableError(&TableOptions{DeletedColumn: "last_fencing_token"}), "deleted column", "token column"},
			"deleted is the key":          {newTableError(&TableOptions{DeletedColumn: "id"}), "key column", "deleted column"},
		} {
			wantInvalid(t, what, c.err, c.field, c.shown)
		}
		// The control: good input does reach the closed pool.
		for what, err := range map[string]error{
			"Upsert": table.Upsert(t.Context(), closed, claim, key, nil), "Delete": table.Delete(t.Context(), closed, claim, key, nil),
			"Takeover": take(Dest{"v": &n}),
		} {
			if guard.ReasonOf(err) != guard.ReasonUnavailable {
				t.Errorf("%s on a closed pool: got %v, want ErrUnavailable", what, err)
			}
		}
	})
}

func newTableError(opts *TableOptions) error {
	_, err := anyTable([]string{"t"}, []string{"id"}, opts)
	return err
}

// TestUnreadable: a dest that cannot take the value is not a success, and the
// error says what may have happened; a caller's transaction continues.
func TestUnreadable(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		e.createDocs()
		e.exec("INSERT INTO docs VALUES (1, 'text', NULL)")
		table := e.table("docs", []string{"id"}, &TableOptions{Rule: guard.SameOrNewer, DeletedColumn: "deleted_at"})
		var n int
		var s string
		var p *string
		for what, dest := range map[string]Dest{"text as a number": {"v": &n}, "NULL as text": {"w": &s}} {
			wantReason(t, table.Raise(t.Context(), e.db, claimOf("r", 5), Key{1}, dest), guard.ReasonOutcomeUnknown, "%s", what)
			err := e.db.plain(t.Context(), func(ctx context.Context, tx testTx) error {
				wantReason(t, table.Raise(ctx, tx.in(), claimOf("r", 5), Key{1}, dest), guard.ReasonOther, "%s in a transaction", what)
				return table.Raise(ctx, tx.in(), claimOf("r", 5), Key{1}, Dest{"w": &p})
			})
			if err != nil || p != nil {
				t.Errorf("the transaction is of no use any more: %v", err)
			}
		}
		// A tombstone's NULL does not reach the caller.
		must(t, table.Delete(t.Context(), e.db, claimOf("r", 5), Key{1}, nil))
		wantReason(t, table.Raise(t.Context(), e.db, claimOf("r", 6), Key{1}, Dest{"w": &s}), guard.ReasonNotFound, "a tombstone")
		e.wantInt(6, "the tombstone's mark", "SELECT last_fencing_token FROM docs")
		// Arguments that the driver cannot send.
		err := table.Raise(t.Context(), e.db, claimOf("r", 7), Key{make(chan int)}, nil)
		if reason := guard.ReasonOf(err); reason != guard.ReasonInvalid && reason != guard.ReasonUnavailable {
			t.Errorf("a channel as a key: %v", err)
		}
	})
}

// TestRowsClosedAfterUnreadable: a row that the reader refuses ends the reading,
// and the connection accepts the next statement although rows were left.
func TestRowsClosedAfterUnreadable(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		refused, read := errors.New("refused"), 0
		noError(t, e.db.plain(t.Context(), func(ctx context.Context, tx testTx) error {
			err := tx.in().Query(ctx, "SELECT generate_series(1, 3)", nil, func(func(dest ...any) error) error { read++; return refused })
			if misread := (sqlkit.Unreadable{}); !errors.As(err, &misread) || !errors.Is(err, refused) || read != 1 {
				t.Errorf("got %v after %d rows, want the reader's error after one", err, read)
			}
			_, err = tx.exec(ctx, "SELECT 1")
			return err
		}), "the transaction is of no use any more")
	})
}
