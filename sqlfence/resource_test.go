package sqlfence

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/sqlfence/sqlrow"
)

func template(text string) *guard.Template { return guard.Must(guard.NewTemplate(text)) }

// TestBindTemplate (P9): every variable is bound to one key column, or the
// error names the variable.
func TestBindTemplate(t *testing.T) {
	key := []string{"tenant_id", "period"}
	for what, c := range map[string]struct {
		template     *guard.Template
		opts         *TableOptions
		field, shown string
	}{
		"none":               {nil, nil, "resource", "InsecureAnyResource"},
		"both":               {template("{tenant_id}:{period}"), &TableOptions{InsecureAnyResource: true}, "InsecureAnyResource", ""},
		"missing":            {template("{tenant}:{period}"), nil, "template variable", `"tenant"`},
		"unknown":            {template("{tenant_id}:x"), nil, "template variable", `"period"`},
		"missing in the map": {template("{t}:{p}"), &TableOptions{Columns: map[string]string{"t": "tenant_id"}}, "template variable", `"p"`},
		"unknown in the map": {template("{t}:x"), &TableOptions{Columns: map[string]string{"t": "tenant_id", "q": "period"}}, "template variable", `"q"`},
		"no key column":      {template("{t}:x"), &TableOptions{Columns: map[string]string{"t": "status"}}, "template variable t", `"status"`},
		"one column twice":   {template("{t}:{p}"), &TableOptions{Columns: map[string]string{"t": "period", "p": "period"}}, "template variable p", `"period"`},
	} {
		_, err := sqlrow.NewTable([]string{"closes"}, key, c.template, c.opts)
		wantInvalid(t, what, err, c.field, c.shown)
	}
	for what, c := range map[string]struct {
		template *guard.Template
		opts     *TableOptions
	}{
		"by name":          {template("{period}:close:{tenant_id}"), nil},
		"by the map":       {template("{t}:{p}"), &TableOptions{Columns: map[string]string{"t": "tenant_id", "p": "period"}}},
		"part of the key":  {template("{t}"), &TableOptions{Columns: map[string]string{"t": "tenant_id"}}},
		"without variable": {template("closes"), &TableOptions{Columns: map[string]string{}}},
		"none, insecurely": {nil, &TableOptions{InsecureAnyResource: true}},
	} {
		if _, err := sqlrow.NewTable([]string{"closes"}, key, c.template, c.opts); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestMisdirected (P9): a claim for another resource is refused by every
// statement before anything is sent, with both names. The control is a table
// without a template: the claim writes, and makes the row's holder stale.
func TestMisdirected(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		e.exec(`CREATE TABLE closes (tenant text, period int, status text, deleted_at timestamptz, last_fencing_token bigint NOT NULL DEFAULT 0, PRIMARY KEY (tenant, period));
			INSERT INTO closes VALUES ('acme', 4, 'open'), ('other', 4, 'open')`)
		opts := TableOptions{Rule: guard.SameOrNewer, DeletedColumn: "deleted_at"}
		table, err := sqlrow.NewTable([]string{"closes"}, []string{"tenant", "period"}, template("{tenant}:close:{period:int}"), &opts)
		must(t, err)
		closed := e.closed()
		ctx, key, claim := t.Context(), Key{"acme", 4}, claimOf("acme:payouts:4", 1000)
		calls := func(table *Table, q Querier, claim guard.Claim) map[string]error {
			return map[string]error{
				"Update":   table.Update(ctx, q, claim, key, Set{"status": "x"}),
				"Upsert":   table.Upsert(ctx, q, claim, key, Set{"status": "x"}),
				"Delete":   table.Delete(ctx, q, claim, key, nil),
				"Takeover": table.Raise(ctx, q, claim, key, nil),
			}
		}
		for what, err := range calls(table, closed, claim) {
			var misdirected *guard.MisdirectedError
			if !errors.As(err, &misdirected) || *misdirected != (guard.MisdirectedError{Claimed: "acme:payouts:4", Guarded: "acme:close:4"}) || !errors.Is(err, guard.ErrInvalid) {
				t.Errorf("%s: %v", what, err)
			}
		}
		for what, err := range calls(table, closed, claimOf("acme:close:4", 1000)) {
			if guard.ReasonOf(err) != guard.ReasonUnavailable {
				t.Errorf("%s under the row's own name: %v, want ErrUnavailable of the closed pool", what, err)
			}
		}
		noError(t, e.table("closes", []string{"tenant", "period"}, &opts).Update(ctx, e.db, claim, key, Set{"status": "x"}), "the control")
		wantReason(t, table.Update(ctx, e.db, claimOf("acme:close:4", 11), key, Set{"status": "y"}), guard.ReasonStale, "the row's holder after the control")
		noError(t, table.Update(ctx, e.db, claimOf("other:close:4", 11), Key{"other", int8(4)}, Set{"status": "y"}), "a row of its own")
	})
}

type textual string

type valued struct{ value any }

func (v valued) Value() (driver.Value, error) { return v.value, nil }

// Types whose text differs for the driver, or on a second call.
type (
	shouting string
	twofold  struct{ text string }
	fickle   struct{ calls *int }
)

func (s shouting) String() string { return strings.ToUpper(string(s)) }

func (v twofold) Value() (driver.Value, error) { return v.text, nil }

func (v twofold) TextValue() (pgtype.Text, error) {
	return pgtype.Text{String: "another " + v.text, Valid: true}, nil
}

func (v fickle) Value() (driver.Value, error) { *v.calls++; return fmt.Sprint("call ", *v.calls), nil }

// TestKeyTexts (P9): a key's value has the text that the database gives for it,
// or is refused: the name is compared with what the row's column prints.
func TestKeyTexts(t *testing.T) {
	const id = "67e55044-10b1-426f-9247-bb680e5fe0c8"
	raw := [16]byte{0x67, 0xe5, 0x50, 0x44, 0x10, 0xb1, 0x42, 0x6f, 0x92, 0x47, 0xbb, 0x68, 0x0e, 0x5f, 0xe0, 0xc8}
	types := map[string]string{"i2": "smallint", "i4": "integer", "i8": "bigint", "u": "uuid", "t": "text", "v": "varchar", "n": "varchar(40)", "dom": "short"}
	kinds := map[string]string{"i2": ":int", "i4": ":int", "i8": ":int", "u": ":uuid"}
	good := map[string][]any{
		"i2": {7, -7, int8(7), uint16(7)}, "i4": {int32(-1), int64(0), uint(9)}, "i8": {int64(-1 << 63), int64(1<<63 - 1), uint64(1<<63 - 1), int(7), sql.NullInt64{Int64: 8, Valid: true}},
		"u": {id, raw, pgtype.UUID{Bytes: raw, Valid: true}}, "t": {"a:b%c", "07", textual("x"), shouting("x"), twofold{"x"}, sql.NullString{String: "y", Valid: true}}, "v": {"é"}, "n": {"a b"}, "dom": {"s"},
	}
	bad := map[string][]any{
		"i4": {7.0, "07", "x", true, time.Unix(0, 0), uint64(1 << 63), valued{7.5}}, "u": {strings.ToUpper(id), strings.ReplaceAll(id, "-", ""), 7},
		"t": {7, []byte("x"), true, time.Unix(0, 0), "a ", "", "a\nb", valued{true}}, "n": {"cut off "},
	}
	eachDriver(t, func(t *testing.T, e *env) {
		e.exec("CREATE DOMAIN short AS text CHECK (length(VALUE) < 9)")
		for column, kind := range types {
			e.exec(fmt.Sprintf("CREATE TABLE k_%s (%[1]s %s PRIMARY KEY, x int, last_fencing_token bigint NOT NULL DEFAULT 0)", column, kind))
			table, err := sqlrow.NewTable([]string{"k_" + column}, []string{column}, template("k:{"+column+kinds[column]+"}"), nil)
			must(t, err)
			for _, v := range good[column] {
				e.exec("DELETE FROM k_" + column)
				var other *guard.MisdirectedError
				key := Key{v}
				if err := table.Upsert(t.Context(), e.db, guard.Claim{Resource: "another", Token: 5}, key, Set{"x": 1}); !errors.As(err, &other) || key[0] != v {
					t.Errorf("%s, %T %v: %v", kind, v, v, err)
					continue
				}
				text := other.Guarded
				if err := table.Upsert(t.Context(), e.db, guard.Claim{Resource: text, Token: 5}, Key{v}, Set{"x": 1}); err != nil {
					t.Errorf("%s, %T %v: %v", kind, v, v, err)
					continue
				}
				stored := e.text(fmt.Sprintf("SELECT fencepost.join_resource('k', %s::text) FROM k_%s", column, column))
				if stored != text {
					t.Errorf("%s, %T %v: named %q, the database says %q", kind, v, v, text, stored)
				}
			}
			for _, v := range bad[column] {
				err := table.Upsert(t.Context(), e.db, guard.Claim{Resource: "k:x", Token: 6}, Key{v}, Set{"x": 1})
				if guard.ReasonOf(err) != guard.ReasonInvalid || !strings.Contains(err.Error(), column) {
					t.Errorf("%s, %T %v: %v, want ErrInvalid that names the column", kind, v, v, err)
				}
			}
		}
		table, err := sqlrow.NewTable([]string{"k_t"}, []string{"t"}, template("k:{t}"), nil)
		must(t, err)
		e.exec("DELETE FROM k_t; INSERT INTO k_t SELECT 'call ' || i FROM generate_series(1, 4) i")
		named := guard.Claim{Resource: "k:call 2", Token: 6} // the first call is for NULL
		noError(t, table.Update(t.Context(), e.db, named, Key{fickle{new(int)}}, Set{"x": 1}))
		e.wantText("call 2:1", "under a claim for k:call 2, written", "SELECT string_agg(t || ':' || x, ' ') FROM k_t WHERE x > 0")
	})
}

// TestTemplateTypes (P9): a variable's type must be its column's; columns of which
// several spellings are equal are refused at the first use.
func TestTemplateTypes(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		e.exec("CREATE COLLATION folded (provider = icu, locale = 'und-u-ks-level2', deterministic = false)")
		for kind, c := range map[string]struct {
			variable string
			value    any
		}{
			"numeric": {"{k}", "1"}, "real": {"{k:int}", 1}, "bigint": {"{k}", "1"}, "text": {"{k:int}", 1}, "uuid": {"{k}", "x"},
			"text COLLATE folded": {"{k}", "x"}, "char(4)": {"{k}", "x"}, "date": {"{k}", "2026-04-01"}, "text[]": {"{k}", "{a}"},
		} {
			e.exec("DROP TABLE IF EXISTS keyed; CREATE TABLE keyed (k " + kind + " PRIMARY KEY, x int, last_fencing_token bigint NOT NULL DEFAULT 0)")
			table, err := sqlrow.NewTable([]string{"keyed"}, []string{"k"}, template("k:"+c.variable), nil)
			must(t, err)
			claim := guard.Claim{Resource: "k:" + strings.ReplaceAll(fmt.Sprint(c.value), ":", "%3A"), Token: 5}
			update := func(q Querier) error { return table.Update(t.Context(), q, claim, Key{c.value}, Set{"x": 1}) }
			wantInvalid(t, kind, update(e.open(nil)), "template k:"+c.variable, "k is ")
			err = e.db.plain(t.Context(), func(_ context.Context, tx testTx) error { return update(tx.in()) })
			wantInvalid(t, kind+" in a transaction", err, "template k:"+c.variable, "k is ")
		}
	})
}
