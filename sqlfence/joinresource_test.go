package sqlfence

import (
	"encoding/json"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/longtest"
	"github.com/fencepost-go/fencepost/internal/pgerr"
	"github.com/fencepost-go/fencepost/sqlfence/internal/sqlkit"
)

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
	someDriver(t, func(t *testing.T, e *env) {
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
			def := e.text("SELECT pg_get_functiondef('fencepost.join_resource'::regproc)")
			e.mutate("join_resource", m[0], m[1])
			if differ, _, _ := e.compareJoins(lists[:min(len(lists), 5000)]); len(differ) == 0 {
				t.Errorf("with %q in place of %q nothing differs", m[1], m[0])
			}
			e.exec(def)
		}
	})
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
	someDriver(t, func(t *testing.T, e *env) {
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
	})
}
