package sqlfence

import (
	"encoding/json"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost-go/fencepost/guard"
)

// randomPart makes a component of what could go wrong: separators, escapes,
// control characters of each range, quotes, and any text.
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
		case 3: // any scalar value but NUL, which no text of PostgreSQL holds
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
	if err != nil {
		e.Fatal(err)
	}
	var names []*string
	answer := e.text("SELECT json_agg(pg_temp.joined(ARRAY(SELECT json_array_elements_text(l))) ORDER BY n)::text FROM json_array_elements($1::text::json) WITH ORDINALITY AS x(l, n)", string(text))
	if err := json.Unmarshal([]byte(answer), &names); err != nil {
		e.Fatal(err)
	}
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
			differ = append(differ, jsonText(parts)+" -> "+got)
		}
	}
	return differ, joined, refused
}

// TestJoinResourceAgrees: the name that the triggers make of a row's columns is
// guard.JoinResource's, byte for byte, and what the one refuses, so does the
// other. The controls: without the escaping, the length or the characters'
// check they differ.
func TestJoinResourceAgrees(t *testing.T) {
	someDriver(t, func(t *testing.T, e *env) {
		config := e.admin.Config().Copy()
		config.MaxConns = 1 // for pg_temp
		e.admin.Close()
		pool, err := pgxpool.NewWithConfig(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		e.admin = pool
		e.exec(`CREATE FUNCTION pg_temp.joined(p text[]) RETURNS text LANGUAGE plpgsql AS 'BEGIN RETURN fencepost.join_resource(VARIADIC p); EXCEPTION WHEN invalid_parameter_value THEN RETURN NULL; END'`)
		rng := rand.New(rand.NewPCG(rand.Uint64(), 1))
		lists := [][]string{{}, {""}, {"a", ""}, {"", "a"}, {":"}, {"a:b"}, {"a", "b"}, {"%3A"}, {"a%3Ab"}, {"NULL"}, {strings.Repeat("x", 512)}, {strings.Repeat("x", 513)},
			{strings.Repeat("é", 256)}, {strings.Repeat("é", 256) + "x"}, {strings.Repeat(":", 170) + "xx"}, {strings.Repeat(":", 170) + "xxx"}}
		for r := rune(1); r < 0x2ff; r++ { // every character near the ranges that are refused
			lists = append(lists, []string{"x" + string(r)})
		}
		for range campaign(4000) {
			parts := make([]string, 1+rng.IntN(4))
			for i := range parts {
				parts[i] = randomPart(rng)
			}
			lists = append(lists, parts)
		}
		differ, joined, refused := e.compareJoins(lists)
		if len(differ) > 0 {
			t.Errorf("%d differ, the first: %q", len(differ), differ[0])
		}
		if joined < 500 || refused < 500 {
			t.Errorf("%d were joined and %d refused", joined, refused)
		}
		seen := map[string][]string{} // injective: the point of it all
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
			if differ, _, _ := e.compareJoins(lists); len(differ) == 0 {
				t.Errorf("with %q in place of %q nothing differs", m[1], m[0])
			}
			e.exec(def)
		}
	})
}
