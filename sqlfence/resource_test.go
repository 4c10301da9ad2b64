package sqlfence

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/longtest"
	"github.com/fencepost-go/fencepost/internal/pgerr"
	"github.com/fencepost-go/fencepost/sqlfence/internal/sqlkit"
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
		_, err := sqlrow.NewTable([]string{"closes"}, key, c.template, c.opts)
		noError(t, err, "%s", what)
	}
}

// TestMisdirected (P9): a claim for another resource is refused by every
// statement before anything is sent, with both names. The control is a table
// without a template: the claim writes, and makes the row's holder stale.
func TestMisdirected(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		e.exec(`CREATE TABLE closes (tenant text, period int, status text, last_fencing_token bigint NOT NULL DEFAULT 0, PRIMARY KEY (tenant, period));
			INSERT INTO closes VALUES ('acme', 4, 'open'), ('other', 4, 'open')`)
		opts := TableOptions{Rule: guard.SameOrNewer}
		table, err := sqlrow.NewTable([]string{"closes"}, []string{"tenant", "period"}, template("{tenant}:close:{period:int}"), &opts)
		must(t, err)
		closed := e.closed()
		ctx, key, claim := t.Context(), Key{"acme", 4}, claimOf("acme:payouts:4", 1000)
		calls := func(table *Table, q Querier, claim guard.Claim) map[string]error {
			return map[string]error{
				"Update":      table.Update(ctx, q, claim, key, Set{"status": "x"}),
				"Upsert":      table.Upsert(ctx, q, claim, key, Set{"status": "x"}),
				"Table.Raise": table.Raise(ctx, q, claim, key, nil),
			}
		}
		for what, err := range calls(table, closed, claim) {
			var misdirected *guard.MisdirectedError
			if !errors.As(err, &misdirected) || *misdirected != (guard.MisdirectedError{Claimed: "acme:payouts:4", Guarded: "acme:close:4"}) || !errors.Is(err, guard.ErrInvalid) {
				t.Errorf("%s: %v", what, err)
			}
		}
		for what, err := range calls(table, closed, claimOf("acme:close:4", 1000)) {
			wantReason(t, err, guard.ReasonSetup, "%s under the row's own name, on a closed pool", what)
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
			e.wantFindings(kind, Verification{WithoutSchema: true, Tables: []*Table{table}})
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
				wantSays(t, err, guard.ReasonInvalid, column, "%s, %T %v", kind, v, v)
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
// several spellings are equal are refused at the first use, and found by Verify before
// it. TestKeyTexts has the types that fit.
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
			e.wantFindings(kind, Verification{WithoutSchema: true, Tables: []*Table{table}}, "k is ")
		}
	})
}

// randomPart makes a component from text that could cause errors: separators,
// escapes, control characters of each range, quotes, and any text.
func randomPart(rng *rand.Rand) string {
	special := []rune{':', '%', '2', '5', '3', 'A', ' ', '"', '\'', '\\', '{', '}', ',', '$', 0x01, 0x1f, 0x7f, 0x80, 0x85, 0x9f, 0xa0, 0xe9, 0x2028, 0xfeff, 0xfffd, 0x1f512, 0x10ffff}
	n := rng.IntN(6)
	if rng.IntN(40) == 0 {
		n = 100 + rng.IntN(200)
	}
	var b strings.Builder
	for range n {
		switch rng.IntN(8) {
		case 0, 1, 2:
			b.WriteRune('a' + rune(rng.IntN(26)))
		case 3: // any scalar value except NUL, which PostgreSQL's text cannot contain
			if r := rune(1 + rng.IntN(0x10ffff)); r < 0xd800 || r > 0xdfff {
				b.WriteRune(r)
			}
		default:
			b.WriteRune(special[rng.IntN(len(special))])
			if rng.IntN(3) > 0 && b.Len() > 0 { // most names should be valid
				s := b.String()
				b.Reset()
				b.WriteString(strings.Map(func(r rune) rune {
					if r < 0x20 || r >= 0x7f && r < 0xa0 {
						return '.'
					}
					return r
				}, s))
			}
		}
	}
	return b.String()
}

// compareJoins returns the component lists for which the database and
// guard.JoinResource differ, and how many of each outcome were compared.
func (e *env) compareJoins(lists [][]string) (differ []string, joined, refused int) {
	text, err := json.Marshal(lists)
	must(e, err)
	var names []*string
	answer := e.text("SELECT json_agg(pg_temp.joined(ARRAY(SELECT json_array_elements_text(l))) ORDER BY n)::text FROM json_array_elements($1::text::json) WITH ORDINALITY AS x(l, n)", string(text))
	must(e, json.Unmarshal([]byte(answer), &names))
	for i, parts := range lists {
		want, err := guard.JoinResource(parts...)
		if err != nil {
			refused++
		} else {
			joined++
		}
		if (err == nil) != (names[i] != nil) || err == nil && *names[i] != want {
			got := "refused"
			if names[i] != nil {
				got = *names[i]
			}
			differ = append(differ, sqlkit.JSON(parts)+" -> "+got)
		}
	}
	return differ, joined, refused
}

// TestJoinResourceAgrees: the name that the triggers make from a row's columns
// is guard.JoinResource's, byte for byte, and both refuse the same input. The
// controls: without the escaping, the length or the characters' check they
// differ.
func TestJoinResourceAgrees(t *testing.T) {
	e := someEnv(t)
	config := e.admin.Config().Copy()
	config.MaxConns = 1 // for pg_temp
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	must(t, err)
	t.Cleanup(pool.Close)
	e.admin = pool
	e.exec(`CREATE FUNCTION pg_temp.joined(p text[]) RETURNS text LANGUAGE plpgsql AS 'BEGIN RETURN fencepost.join_resource(VARIADIC p); EXCEPTION WHEN invalid_parameter_value THEN RETURN NULL; END'`)
	rng := rand.New(rand.NewPCG(rand.Uint64(), 1))
	lists := [][]string{{}, {""}, {"a", ""}, {"", "a"}, {":"}, {"a:b"}, {"a", "b"}, {"%3A"}, {"a%3Ab"}, {"NULL"}, {strings.Repeat("x", 512)}, {strings.Repeat("x", 513)},
		{strings.Repeat("é", 256)}, {strings.Repeat("é", 256) + "x"}, {strings.Repeat(":", 170) + "xx"}, {strings.Repeat(":", 170) + "xxx"}}
	for r := rune(1); r < 0x2ff; r++ { // every character near the ranges that are refused
		lists = append(lists, []string{"x" + string(r)})
	}
	for range longtest.ByLength(2000, 1_000_000) {
		parts := make([]string, 1+rng.IntN(4))
		for i := range parts {
			parts[i] = randomPart(rng)
		}
		lists = append(lists, parts)
	}
	var differ []string
	joined, refused := 0, 0
	for chunk := range slices.Chunk(lists, 10_000) {
		d, j, r := e.compareJoins(chunk)
		differ, joined, refused = append(differ, d...), joined+j, refused+r
	}
	if len(differ) > 0 {
		t.Errorf("%d differ, the first: %q", len(differ), differ[0])
	}
	if joined < 500 || refused < 500 {
		t.Errorf("%d were joined and %d refused", joined, refused)
	}
	seen := map[string][]string{} // the join must be injective
	for _, parts := range lists {
		if name, err := guard.JoinResource(parts...); err == nil {
			if other, taken := seen[name]; taken && !slices.Equal(other, parts) {
				t.Errorf("%q and %q have one name", other, parts)
			}
			seen[name] = parts
		}
	}
	for _, m := range [][2]string{{"replace(part, '%', '%25')", "part"}, {"octet_length(name)", "length(name)"}, {`\u009f`, `\u009e`}, {"part = ''", "part = ' '"}} {
		undo := e.mutate("join_resource", m[0], m[1])
		if differ, _, _ := e.compareJoins(lists[:min(len(lists), 5000)]); len(differ) == 0 {
			t.Errorf("with %q in place of %q nothing differs", m[1], m[0])
		}
		undo()
	}
}

// TestTriggersNameByTemplate: a trigger's resources have the names that the
// template gives, for the vectors that other languages test against, with a
// text column or one of the variable's type; rows without a name are refused.
func TestTriggersNameByTemplate(t *testing.T) {
	data, err := os.ReadFile("../guard/testdata/templates.json")
	must(t, err)
	var vectors struct {
		Names []struct {
			Template string   `json:"template"`
			Values   []string `json:"values"`
			Name     string   `json:"name"`
		} `json:"names"`
	}
	must(t, json.Unmarshal(data, &vectors))
	types := map[string]string{guard.TypeText: "text", guard.TypeInt: "bigint", guard.TypeUUID: "uuid"}
	e := someEnv(t)
	installed, compared := map[string]Trigger{}, map[string]int{}
	for _, v := range vectors.Names {
		template, err := guard.NewTemplate(v.Template)
		if err != nil || len(v.Values) == 0 {
			continue
		}
		trigger, known := installed[v.Template]
		if !known {
			table := "named_" + itoa(len(installed))
			var columns, names []string
			for i, p := range slices.DeleteFunc(template.Parts(), func(p guard.TemplatePart) bool { return p.Variable == "" }) {
				names = append(names, "c"+itoa(i))
				columns = append(columns, names[i]+" "+types[p.Type]+" NOT NULL")
			}
			e.exec("CREATE TABLE " + table + " (" + strings.Join(columns, ", ") + ")")
			trigger = triggerOn([]string{table}, v.Template, names...)
			if err := e.db.InstallTrigger(t.Context(), trigger); err != nil {
				t.Fatalf("%s: %v", v.Template, err)
			}
			installed[v.Template] = trigger
		}
		name, err := template.Name(v.Values...)
		if err != nil || name != v.Name {
			t.Errorf("%s of %q: %q, %v, the vector says %q", v.Template, v.Values, name, err, v.Name)
		}
		literals := make([]string, len(v.Values))
		for i, value := range v.Values {
			literals[i] = quoteText(value)
		}
		write := "INSERT INTO " + trigger.Table[0] + " VALUES (" + strings.Join(literals, ", ") + ")"
		_, err = e.admin.Exec(t.Context(), write)
		if got := sqlkit.OfferedIn(err).Resource; pgerr.State(err) != pgerr.Missing || got != v.Name {
			t.Errorf("%s of %q in SQL: %q, %v, want %q", v.Template, v.Values, got, err, v.Name)
		}
		for _, p := range template.Parts() {
			if p.Variable != "" {
				compared[p.Type]++
			}
		}
	}
	for kind := range types {
		if compared[kind] == 0 {
			t.Errorf("no vector has a variable of type %q", kind)
		}
	}
	e.exec("CREATE TABLE bound (tenant text NOT NULL, n bigint NOT NULL)")
	must(t, e.db.InstallTrigger(t.Context(), triggerOn([]string{"bound"}, "{tenant}:jobs:{n:int}")))
	for value, want := range map[string]string{"''": "22023", "NULL": "23502", "E'a\\nb'": "22023", "repeat('x', 506)": "22023", "repeat('x', 505)": pgerr.Missing, "repeat(':', 169)": "22023"} {
		if _, err := e.admin.Exec(t.Context(), "INSERT INTO bound VALUES ("+value+", 7)"); pgerr.State(err) != want {
			t.Errorf("%s: %v, want SQLSTATE %s", value, err, want)
		}
	}
}
