package sqlfence

import (
	"slices"
	"strings"
	"testing"

	"github.com/fencepost-go/fencepost/guard"
)

// TestVerifyStatements (P1): Verify reports the application's own UPDATEs that
// lack a part of the documented fence, and passes those that have it.
func TestVerifyStatements(t *testing.T) {
	someDriver(t, func(t *testing.T, e *env) {
		e.exec("CREATE TABLE own (id int PRIMARY KEY, v int, last_fencing_token bigint NOT NULL DEFAULT 0, lease text NOT NULL DEFAULT '')")
		once := e.table("own", []string{"id"}, nil)
		newer := e.table("own", []string{"id"}, &TableOptions{Rule: guard.SameOrNewer})
		leased := e.table("own", []string{"id"}, &TableOptions{Rule: guard.SameOrNewer, LeaseColumn: "lease"})
		onceLeased := e.table("own", []string{"id"}, &TableOptions{LeaseColumn: "lease"})
		inSchema := guard.Must(anyTable([]string{"public", "own"}, []string{"id"}, nil))
		dotted := guard.Must(anyTable([]string{"public.own"}, []string{"id"}, nil))
		oddKey := e.table("own", []string{"between"}, &TableOptions{Rule: guard.SameOrNewer, LeaseColumn: "lease"})
		asU := e.table("u", []string{"id"}, nil)
		asColumn := e.table("lease", []string{"id"}, &TableOptions{LeaseColumn: "lease"})
		const (
			set   = "UPDATE own SET v = $2, last_fencing_token = $3 "
			both  = "UPDATE own SET last_fencing_token = $3::bigint, lease = $4 "
			named = "-- name: Close :execrows\nupdate own set v = 1, \"last_fencing_token\" = sqlc.arg(token)::bigint\nwhere id = $1 and sqlc.arg(token)::bigint > last_fencing_token;"
		)
		for _, c := range []struct {
			table     *Table
			text      string
			fine      bool
			shapeless bool
		}{
			{once, set + "WHERE id = $1 AND $3 > last_fencing_token", true, false},
			{once, set + "WHERE $3 > last_fencing_token AND (v = 1 OR v = 2) RETURNING v OR false", true, false},
			{once, named, true, false},
			{once, "", false, true},
			{once, "SELECT 1", false, true},
			{once, "DELETE FROM own WHERE $3 > last_fencing_token", false, true},
			{once, set, false, true},
			{once, "UPDATE own WHERE id = $1 AND $3 > last_fencing_token", false, true},
			{once, "UPDATE own WHERE id = $1 AND $3 > last_fencing_token SET last_fencing_token = $3", false, true},
			{once, "INSERT INTO own VALUES ($1) ON CONFLICT (id) DO UPDATE SET last_fencing_token = $3 WHERE $3 > last_fencing_token", false, true},
			{once, set + "WHERE id = $1 AND $3 > last_fencing_token /* open", false, true},
			{once, set + "WHERE id = $1 AND $3 > last_fencing_token AND v = $a$1", false, true},
			{once, "UPDATE own SET last_fencing_token = WHERE id = $1 AND $3 > last_fencing_token", false, false},
			{once, set + "WHERE id = $1", false, false},
			{once, set + "WHERE id = $1 OR $3 > last_fencing_token", false, false},
			{once, set + "WHERE id = $1 AND NOT $3 > last_fencing_token", false, false},
			{once, set + "WHERE id = $1 AND ($3 > last_fencing_token OR true)", false, false},
			{once, set + "WHERE id = $1 AND $3 >= last_fencing_token", false, false},
			{once, set + "WHERE id = $1 AND $2 > last_fencing_token", false, false},
			{once, set + "WHERE id = $1 -- AND $3 > last_fencing_token", false, false},
			{once, set + "WHERE v = 'AND $3 > last_fencing_token'", false, false},
			{once, set + "WHERE id = $1 AND $3 > last_fencing_token AND v = '", false, true},
			{once, set + "WHERE id = $1; UPDATE own SET v = 1 WHERE $3 > last_fencing_token", false, true},
			{once, set + "WHERE $3 > last_fencing_token; UPDATE own SET v = 1", false, true},
			{once, "UPDATE own SET v = $2 WHERE id = $1 AND $3 > last_fencing_token", false, false},
			{newer, set + "WHERE id = $1 AND $3 >= last_fencing_token", true, false},
			{newer, set + "WHERE id = $1 AND $3 > last_fencing_token", false, false},
			{leased, both + "WHERE id = $1 AND ($3::bigint > last_fencing_token OR ($3::bigint = last_fencing_token AND $4 = lease))", true, false},
			{leased, both + "WHERE id = $1 AND $3::bigint >= last_fencing_token", false, false},
			{leased, set + "WHERE id = $1 AND $3 >= last_fencing_token", false, false},
			{onceLeased, both + "WHERE id = $1 AND $3::bigint > last_fencing_token", true, false},
			{once, "UPDATE own SET last_fencing_token = last_fencing_token + 1 WHERE id = $1 AND last_fencing_token + 1 > last_fencing_token", false, false},
			{leased, "UPDATE own SET last_fencing_token = $3, lease = lease WHERE id = $1 AND ($3 > last_fencing_token OR ($3 = last_fencing_token AND lease = lease))", false, false},
			{onceLeased, set + "WHERE id = $1 AND $3 > last_fencing_token", false, false},

			// A sub-select or a FROM item has a WHERE, too, and what is in it does
			// not fence the row.
			{once, "UPDATE own SET v = (SELECT max(w) FROM u WHERE u.id = $1), last_fencing_token = $3 WHERE id = $1 AND $3 > last_fencing_token", true, false},
			{once, "UPDATE own SET last_fencing_token = $3, v = (SELECT 1 WHERE $3 > last_fencing_token AND true) WHERE id = $1", false, false},
			{once, "UPDATE own SET last_fencing_token = $3, v = (SELECT 1 WHERE true AND $3 > last_fencing_token AND true)", false, true},
			{once, "UPDATE own SET last_fencing_token = $3, v = coalesce((SELECT max(w) FROM u WHERE u.id = $1 AND $3 > last_fencing_token AND w > 0), 0) WHERE id = $1", false, false},
			{once, "UPDATE own SET v = u.w, last_fencing_token = $3 FROM (SELECT w FROM u WHERE true AND $3 > last_fencing_token AND true) u WHERE id = $1", false, false},

			// Not every AND joins two conditions, and not every RETURNING ends them.
			{once, set + "WHERE id = $1 AND CASE WHEN true AND $3 > last_fencing_token AND true THEN true ELSE true END", false, false},
			{once, set + "WHERE id = $1 AND (CASE WHEN v = 1 THEN true ELSE false END) AND $3 > last_fencing_token", true, false},
			{once, set + "WHERE id = $1 AND \"case\" AND $3 > last_fencing_token RETURNING CASE WHEN v = 1 THEN 2 END", true, false},
			{once, set + "WHERE ARRAY[true AND $3 > last_fencing_token AND true] IS NOT NULL", false, false},
			{once, set + "WHERE id = $1 AND $3 > last_fencing_token AND (SELECT true AS returning) OR true", false, false},
			{leased, both + "WHERE false BETWEEN false AND ($3::bigint > last_fencing_token OR ($3::bigint = last_fencing_token AND $4 = lease))", false, false},
			{oddKey, both + "WHERE false BETWEEN false AND ($3::bigint > last_fencing_token OR ($3::bigint = last_fencing_token AND $4 = lease))", false, false},
			{once, set + "WHERE id = $1 AND (v BETWEEN 1 AND 2) AND $3 > last_fencing_token", true, false},

			// The table is the one that NewTable was given, in any spelling.
			{once, "UPDATE \"own\" SET last_fencing_token = $3 WHERE $3 > last_fencing_token", true, false},
			{once, "update only OWN * as o set last_fencing_token = $3 WHERE $3 > last_fencing_token", true, false},
			{once, "UPDATE ONLY (own) o SET last_fencing_token = $3 WHERE $3 > last_fencing_token", true, false},
			{once, "UPDATE other SET last_fencing_token = $3 WHERE $3 > last_fencing_token", false, false},
			{once, "UPDATE other AS own SET last_fencing_token = $3 WHERE $3 > last_fencing_token", false, false},
			{once, "UPDATE \"OWN\" SET last_fencing_token = $3 WHERE $3 > last_fencing_token", false, false},
			{once, "UPDATE own.other SET last_fencing_token = $3 WHERE $3 > last_fencing_token", false, false},
			{once, "UPDATE archive.own SET last_fencing_token = $3 WHERE $3 > last_fencing_token", false, false},
			{once, "UPDATE own & other SET last_fencing_token = $3 WHERE $3 > last_fencing_token", false, false},
			{asU, "UPDATE U&\"own\" SET last_fencing_token = $3 WHERE $3 > last_fencing_token", false, false},
			{inSchema, "UPDATE Public . own o SET last_fencing_token = $3 WHERE $3 > last_fencing_token", true, false},
			{inSchema, "UPDATE \"public\".\"own\" AS \"o\" SET last_fencing_token = $3 WHERE $3 > last_fencing_token", true, false},
			{inSchema, "UPDATE own SET last_fencing_token = $3 WHERE $3 > last_fencing_token", false, false},
			{inSchema, "UPDATE archive.own SET last_fencing_token = $3 WHERE $3 > last_fencing_token", false, false},
			{dotted, "UPDATE public.own SET last_fencing_token = $3 WHERE $3 > last_fencing_token", false, false},
			{asColumn, "UPDATE lease SET last_fencing_token = $3, lease = $4 WHERE $3 > last_fencing_token", true, false},
		} {
			found, err := e.db.Verify(t.Context(), Verification{Statements: map[*Table][]string{c.table: {c.text}}, WithoutSchema: true})
			if named := slices.ContainsFunc(found, func(f Finding) bool { return f.Subject == c.text }); err != nil || named == c.fine {
				t.Errorf("%q: %v, %v; fine is %v", c.text, found, err, c.fine)
			}
			// A text that is no such UPDATE at all is reported as such.
			if i := slices.IndexFunc(found, func(f Finding) bool { return strings.Contains(f.Problem, "it is not one UPDATE with SET and WHERE") }); (i >= 0) != c.shapeless {
				t.Errorf("%q: %v; shapeless is %v", c.text, found, c.shapeless)
			}
		}
	})
}
