package sqlfence

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/longtest"
	"github.com/fencepost-go/fencepost/sqlfence/sqlrow"
)

// Small enough to try all of them, and with both ends of the range.
var (
	someTokens = longtest.ByLength([]guard.Token{1, 2, guard.MaxToken}, []guard.Token{1, 2, 3, guard.MaxToken - 1, guard.MaxToken})
	someLeases = []string{"", "a", "A"}
)

func someMarks() []guard.Mark {
	marks := []guard.Mark{{}}
	for _, token := range someTokens {
		for _, lease := range someLeases {
			marks = append(marks, guard.Mark{Token: token, LeaseID: lease})
		}
	}
	return marks
}

func someClaims(resource string) (claims []guard.Claim) {
	for _, mark := range someMarks()[1:] {
		claims = append(claims, guard.Claim{Resource: resource, Token: mark.Token, LeaseID: mark.LeaseID})
	}
	return claims
}

// createPairs creates a table whose key has two columns, so that a mistake in
// either shows, and rows that share one of the values.
func (e *env) createPairs() {
	e.exec(`CREATE TABLE pairs (a int, b text, v text, n bigint NOT NULL DEFAULT 0,
		last_fencing_token bigint NOT NULL DEFAULT 0, last_lease_id text NOT NULL DEFAULT '', PRIMARY KEY (a, b))`)
}

// sameVerdict compares an error with Decide's: the same reason, and the facts.
func sameVerdict(err, want error, claim guard.Claim, mark guard.Mark) string {
	if guard.ReasonOf(err) != guard.ReasonOf(want) {
		return fmt.Sprintf("got %v, want %v", err, want)
	}
	if want == nil {
		return ""
	}
	var rejected *guard.RejectedError
	if !errors.As(err, &rejected) {
		return fmt.Sprintf("got %T, want a *guard.RejectedError", err)
	}
	if rejected.Claim != claim || rejected.Mark != mark || rejected.Reason != guard.ReasonOf(want) {
		return fmt.Sprintf("got the sqlkit.Facts %+v, want claim %+v, mark %+v", rejected, claim, mark)
	}
	return ""
}

// rowCase is a row and a claim for it; the first column of the row's key is its
// index, and another row has the same.
type rowCase struct {
	absent bool
	mark   guard.Mark
	claim  guard.Claim
}

// rowWays are the statements on rows, each on that of a case.
var rowWays = map[string]func(table *Table, q Querier, claim guard.Claim, id int) error{
	"Update": func(table *Table, q Querier, claim guard.Claim, id int) error {
		return table.Update(context.Background(), q, claim, Key{id, "x"}, Set{"v": "new"})
	},
	"Upsert": func(table *Table, q Querier, claim guard.Claim, id int) error {
		return table.Upsert(context.Background(), q, claim, Key{id, "x"}, Set{"v": "new"})
	},
	"Table.Raise": func(table *Table, q Querier, claim guard.Claim, id int) error {
		var v, w string
		err := table.Raise(context.Background(), q, claim, Key{id, "x"}, Dest{"v": &v, "w": &w})
		if err == nil && (v != "old" || w != fmt.Sprint("w", id)) {
			return fmt.Errorf("case %d read %q and %q", id, v, w)
		}
		return err
	},
}

// rowCases are all small marks and claims on rows that are there or not.
func rowCases(leases bool) (cases []rowCase) {
	for _, absent := range []bool{false, true} {
		for _, mark := range someMarks() {
			if !leases && mark.LeaseID != "" || absent && mark != (guard.Mark{}) {
				continue
			}
			for _, claim := range someClaims("r") {
				cases = append(cases, rowCase{absent, mark, claim})
			}
		}
	}
	return cases
}

// compareRows returns the cases, at most limit, in which a way differs from
// guard.Decide, or changes the rows in another way than it should.
func (e *env) compareRows(limit int, q Querier, way string) (problems []string) {
	for _, rule := range []guard.Rule{guard.OncePerToken, guard.SameOrNewer} {
		for _, lease := range []string{"", "last_lease_id"} {
			if way == "Table.Raise" && rule == guard.OncePerToken {
				continue
			}
			table := e.table("cases", []string{"a", "b"}, &TableOptions{Rule: rule, LeaseColumn: lease})
			cases := rowCases(lease != "")
			e.fillCases(cases)
			verdicts := make([]error, len(cases))
			for i, c := range cases {
				verdicts[i] = rowWays[way](table, q, c.claim, i)
			}
			rows := e.cases(len(cases))
			if n := e.int("SELECT count(*) FROM cases WHERE b = 'y' AND concat(v, w, last_fencing_token, last_lease_id COLLATE pg_catalog.\"C\") = 'oldother0'"); n != int64(len(cases)) {
				problems = append(problems, fmt.Sprintf("%d other rows were written", int64(len(cases))-n))
			}
			for i, c := range cases {
				if problem := compareRow(way, rule, lease != "", c, verdicts[i], i, rows[i]); problem != "" {
					problems = append(problems, fmt.Sprintf("%v, lease column %q, %+v: %s", rule, lease, c, problem))
				}
				if len(problems) == limit {
					return problems
				}
			}
		}
	}
	return problems
}

func (e *env) createDocs() {
	e.exec(`CREATE TABLE docs (id int PRIMARY KEY, v text NOT NULL, w text DEFAULT 'default', last_fencing_token bigint NOT NULL DEFAULT 0,
		last_lease_id text NOT NULL DEFAULT '')`)
}

// createCases creates a table whose key has two columns, so that a mistake in
// either shows, and to whose collation lease IDs of two spellings are one.
func (e *env) createCases() {
	e.exec(`CREATE COLLATION fold (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
		CREATE TABLE cases (a int, b text, v text NOT NULL, w text DEFAULT 'default', last_fencing_token bigint NOT NULL DEFAULT 0,
			last_lease_id text COLLATE fold NOT NULL DEFAULT '', PRIMARY KEY (a, b))`)
}

func (e *env) fillCases(cases []rowCase) {
	var b strings.Builder
	for i, c := range cases {
		fmt.Fprintf(&b, ", (%d, 'y', 'old', 'other', 0, '')", i)
		if !c.absent {
			fmt.Fprintf(&b, ", (%d, 'x', 'old', 'w%d', %d, '%s')", i, i, c.mark.Token, c.mark.LeaseID)
		}
	}
	e.exec("DELETE FROM cases")
	e.exec("INSERT INTO cases VALUES " + b.String()[2:])
}

func (e *env) cases(n int) []string {
	rows := make([]string, n)
	all, err := e.admin.Query(context.Background(), `SELECT a, concat_ws(' ', v, w, last_fencing_token, last_lease_id || '.') FROM cases WHERE b = 'x'`)
	must(e, err)
	defer all.Close()
	for all.Next() {
		var id int
		var row string
		must(e, all.Scan(&id, &row))
		rows[id] = row
	}
	return rows
}

// compareRow compares one row with what it should be.
func compareRow(way string, rule guard.Rule, leases bool, c rowCase, err error, id int, row string) string {
	shown, written := c.mark, c.claim.LeaseID
	if !leases {
		written = ""
		if c.mark.Token == c.claim.Token {
			shown.LeaseID = c.claim.LeaseID
		}
	}
	was := fmt.Sprintf("old w%d %d %s.", id, c.mark.Token, c.mark.LeaseID)
	mark := fmt.Sprintf("%d %s.", c.claim.Token, written)
	want, wantRow := guard.Decide(rule, shown, c.claim), was
	switch {
	case c.absent && way == "Upsert":
		want, wantRow = nil, "new default "+mark
	case c.absent:
		want, wantRow, shown = &guard.RejectedError{Reason: guard.ReasonNotFound}, "", guard.Mark{}
	case want != nil:
	case way == "Table.Raise":
		wantRow = fmt.Sprintf("old w%d %s", id, mark)
	default:
		wantRow = fmt.Sprintf("new w%d %s", id, mark)
	}
	if problem := sameVerdict(err, want, c.claim, shown); problem != "" {
		return problem
	}
	if row != wantRow {
		return fmt.Sprintf("the row is %q, want %q", row, wantRow)
	}
	return ""
}

// TestRowsDecide (P1, P4, P6): for every small mark, claim and rule, with and without
// a lease column, on existing and absent rows, each statement admits what
// guard.Decide admits, gives its reason and facts, and changes the row accordingly,
// and no other row.
func TestRowsDecide(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		e.createCases()
		for way := range rowWays {
			for _, problem := range e.compareRows(5, e.db, way) {
				t.Errorf("%s: %s", way, problem)
			}
		}
	})
}

// TestRowsDecideControls: each part of the statements is needed. Lease IDs are compared
// byte by byte, whatever collation their column has (P4).
func TestRowsDecideControls(t *testing.T) {
	cut := func(old, new string) func(string) string {
		return func(s string) string { return strings.ReplaceAll(s, old, new) }
	}
	spelling := cut(`"last_lease_id" COLLATE pg_catalog."C"))`, `"last_lease_id"))`)
	mutants := map[string]map[string]func(string) string{
		"Update": {
			"no predicate":        func(s string) string { before, _, _ := strings.Cut(s, `"b" = $2)`); return before + `"b" = $2)` },
			"equal is admitted":   cut(`::bigint OPERATOR(pg_catalog.>) "last`, `::bigint OPERATOR(pg_catalog.>=) "last`),
			"equal is refused":    cut(`::bigint OPERATOR(pg_catalog.>=) "last`, `::bigint OPERATOR(pg_catalog.>) "last`),
			"any lease":           cut(`$4::pg_catalog.text OPERATOR(pg_catalog.=) "last_lease_id" COLLATE pg_catalog."C"`, "true"),
			"any spelling":        spelling,
			"the lease stays":     cut(`, "last_lease_id" = $4::pg_catalog.text`, ""),
			"the token stays":     cut(`= $3::bigint,`, `= "last_fencing_token",`),
			"another row as well": cut(`"b" = $2`, `$2::text IS NOT NULL`),
			"every row as well":   cut(`"a" = $1`, `$1::int IS NOT NULL`),
		},
		"Upsert": {
			"no comparison": func(s string) string { return s[:strings.LastIndex(s, " WHERE ")] },
			"any lease":     cut(`$4::pg_catalog.text OPERATOR(pg_catalog.=) "cases"."last_lease_id" COLLATE pg_catalog."C"`, "true"),
			"any spelling":  spelling,
			"equal refused": cut(`OPERATOR(pg_catalog.=) "cases"."last_fencing_token"`, `< "cases"."last_fencing_token"`),
			"old content":   cut(`"v" = EXCLUDED."v"`, `"v" = "cases"."v"`),
			"the token":     cut(`"last_fencing_token" = $3::bigint,`, `"last_fencing_token" = "cases"."last_fencing_token",`),
		},
		"Table.Raise": {
			"no raise":     cut(`SET "last_fencing_token" = $3::bigint`, `SET "last_fencing_token" = "last_fencing_token"`),
			"any lease":    cut(`$4::pg_catalog.text OPERATOR(pg_catalog.=) "last_lease_id" COLLATE pg_catalog."C"`, "true"),
			"any spelling": spelling,
		},
	}
	e := someEnv(t)
	e.createCases()
	for way, all := range mutants {
		for name, mutate := range all {
			changed := false
			noticing := func(sql string) string { m := mutate(sql); changed = changed || m != sql; return m }
			if problems := e.compareRows(1, e.altered(noticing, func() {}), way); len(problems) == 0 || !changed {
				t.Errorf("%s, %s: the comparison with guard.Decide did not notice", way, name)
			}
		}
	}
}

// TestReplacedRow (P6): a row that refused a write and admits it when its mark is read was
// replaced by another, or deleted under an upsert. The write is unavailable, neither stale
// nor missing nor held back because of it, and is sent once.
func TestReplacedRow(t *testing.T) {
	e := someEnv(t)
	e.createDocs()
	const gone = -1
	for what, c := range map[string]struct {
		marks []int // before each statement: the write and the verdict
		way   func(table *Table, q Querier) error
		want  guard.Reason
		row   string
	}{
		"replaced":               {[]int{9, 4}, updateDoc, guard.ReasonUnavailable, "old 4"},
		"replaced by a newer":    {[]int{9, 6}, updateDoc, guard.ReasonStale, "old 6"},
		"replaced, an upsert":    {[]int{9, 4}, upsertDoc, guard.ReasonUnavailable, "old 4"},
		"deleted":                {[]int{9, gone}, updateDoc, guard.ReasonNotFound, ""},
		"deleted, an upsert":     {[]int{9, gone}, upsertDoc, guard.ReasonUnavailable, ""},
		"the control, the write": {[]int{4}, updateDoc, guard.ReasonNone, "new 5"},
	} {
		sent := 0
		e.exec("TRUNCATE docs; INSERT INTO docs VALUES (1, 'old')")
		replacing := e.altered(func(sql string) string {
			if !strings.HasPrefix(sql, "WITH RECURSIVE") { // the looks at the table
				if sent == len(c.marks) {
					t.Fatalf("%s: sent again: %s", what, sql)
				}
				e.exec("UPDATE docs SET last_fencing_token = $1", c.marks[sent])
				e.exec("DELETE FROM docs WHERE last_fencing_token = $1", gone)
				sent++
			}
			return sql
		}, func() {})
		wantReason(t, c.way(e.table("docs", []string{"id"}, nil), replacing), c.want, what)
		e.wantText(c.row, what, "SELECT coalesce((SELECT concat_ws(' ', v, last_fencing_token) FROM docs), '')")
	}
}

// TestTriggerLeavesOut (P6): a trigger that leaves the row out runs once, so what it wrote
// elsewhere is there once, and the write is ErrSetup, which no retry cures. The control
// is the write with the trigger disabled.
func TestTriggerLeavesOut(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		e.exec(`CREATE TABLE docs (id int, v text NOT NULL, last_fencing_token bigint NOT NULL DEFAULT 0, PRIMARY KEY (id)) PARTITION BY LIST (id);
			CREATE TABLE docs_1 PARTITION OF docs FOR VALUES IN (1); CREATE TABLE effects (v text);
			CREATE FUNCTION leave_out() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO effects VALUES (NEW.v); RETURN NULL; END $$`)
		table := e.table("docs", []string{"id"}, &TableOptions{Rule: guard.SameOrNewer})
		for way, write := range map[string]func(*Table, Querier) error{
			"Update": updateDoc, "Upsert": upsertDoc,
			"Table.Raise": func(table *Table, q Querier) error {
				return table.Raise(t.Context(), q, claimOf("r", 5), Key{1}, Dest{"v": new(string)})
			},
		} {
			for _, where := range []string{"docs", "docs_1"} {
				e.exec("TRUNCATE docs, effects; INSERT INTO docs VALUES (1, 'old', 0)")
				e.exec("CREATE TRIGGER leaves BEFORE UPDATE ON " + where + " FOR EACH ROW EXECUTE FUNCTION leave_out()")
				wantSays(t, write(table, e.db), guard.ReasonSetup, "a trigger leaves it out", "%s, %s", way, where)
				e.wantInt(1, way+", "+where+": the trigger's effects", "SELECT count(*) FROM effects")
				e.wantText("old 0", way+", "+where, "SELECT concat_ws(' ', v, last_fencing_token) FROM docs")
				e.exec("ALTER TABLE " + where + " DISABLE TRIGGER leaves")
				noError(t, write(table, e.db), "%s, %s, the control", way, where)
				e.wantInt(5, way+", "+where+": the mark of the control", "SELECT last_fencing_token FROM docs")
				e.exec("DROP TRIGGER leaves ON " + where)
			}
		}
	})
}

func updateDoc(table *Table, q Querier) error {
	return table.Update(context.Background(), q, claimOf("r", 5), Key{1}, Set{"v": "new"})
}

func upsertDoc(table *Table, q Querier) error {
	return table.Upsert(context.Background(), q, claimOf("r", 5), Key{1}, Set{"v": "new"})
}

// TestWhere (P1, P6): a predicate with OR does not open the fence, is compared
// in the statement, and has its own reason, after those of the claim. So do
// two of them.
func TestWhere(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		e.createDocs()
		table := e.table("docs", []string{"id"}, &TableOptions{Rule: guard.SameOrNewer})
		open := table.Where(sqlrow.Raw("docs.v = $2 OR docs.v = $1", "open", "new")).Where(sqlrow.Raw("docs.w IS NULL OR docs.w <> $1", "never"))
		writes := map[string]func(q Querier, token guard.Token) error{
			"Update": func(q Querier, token guard.Token) error {
				return open.Update(t.Context(), q, claimOf("r", token), Key{1}, Set{"v": sqlrow.Raw("$1", "written")})
			},
			"Upsert": func(q Querier, token guard.Token) error {
				return open.Upsert(t.Context(), q, claimOf("r", token), Key{1}, Set{"v": "written"})
			},
			"Table.Raise": func(q Querier, token guard.Token) error {
				return open.Raise(t.Context(), q, claimOf("r", token), Key{1}, nil)
			},
		}
		for way, write := range writes {
			for _, c := range []struct {
				v, w  any
				token guard.Token
				want  guard.Reason
			}{
				{"open", nil, 6, guard.ReasonNone},
				{"new", "w", 7, guard.ReasonNone},
				{"open", "w", 4, guard.ReasonStale},
				{"new", nil, 4, guard.ReasonStale},
				{"closed", nil, 6, guard.ReasonNotFound},
				{"open", "never", 6, guard.ReasonNotFound},
				{"closed", nil, 4, guard.ReasonStale},
			} {
				e.exec("TRUNCATE docs")
				e.exec("INSERT INTO docs VALUES (1, $1, $2, 5)", c.v, c.w)
				err := write(e.db, c.token)
				if guard.ReasonOf(err) != c.want || errors.Is(err, sqlrow.ErrPredicate) != (c.want == guard.ReasonNotFound) {
					t.Errorf("%s, %v, %v, token %d: got %v, want %q", way, c.v, c.w, c.token, err, c.want)
				}
				var rejected *guard.RejectedError
				if c.want != guard.ReasonNone && (!errors.As(err, &rejected) || rejected.Claim != claimOf("r", c.token) || rejected.Mark.Token != 5) {
					t.Errorf("%s, %v, %v, token %d: %v has not the claim and the mark", way, c.v, c.w, c.token, err)
				}
				if changed := e.int("SELECT count(*) FROM docs WHERE last_fencing_token <> 5 OR v = 'written'"); (changed == 1) != (c.want == guard.ReasonNone) {
					t.Errorf("%s, %v, %v, token %d: %d rows were changed", way, c.v, c.w, c.token, changed)
				}
				noError(t, table.Upsert(t.Context(), e.db, claimOf("r", 7), Key{1}, Set{"v": "any"}), "the table itself has a predicate now")
			}
		}
		err := open.Upsert(t.Context(), e.db, claimOf("r", 1), Key{2}, Set{"v": "closed"})
		if err != nil || e.int("SELECT count(*) FROM docs WHERE id = 2") != 1 {
			t.Errorf("an insert is not compared: %v", err)
		}
		// In an Upsert a bare name means two columns.
		err = table.Where(sqlrow.Raw("v = 'closed'")).Upsert(t.Context(), e.db, claimOf("r", 2), Key{2}, nil)
		if !errors.Is(err, guard.ErrInvalid) || !strings.Contains(err.Error(), "ambiguous") {
			t.Errorf("a bare name in an Upsert: %v", err)
		}
	})
}

// TestWhereControl: a predicate that is not in parentheses lets a
// stale write through, which is what TestWhere would then see.
func TestWhereControl(t *testing.T) {
	e := someEnv(t)
	e.createDocs()
	e.exec("INSERT INTO docs VALUES (1, 'open', NULL, 9)")
	loose := e.altered(func(sql string) string {
		return strings.Replace(sql, `AND ((v = $4 OR v = 'new')) IS TRUE`, `AND v = $4 OR v = 'open'`, 1)
	}, func() {})
	table := e.table("docs", []string{"id"}, nil).Where(sqlrow.Raw("v = $1 OR v = 'new'", "open"))
	noError(t, table.Update(context.Background(), loose, claimOf("r", 4), Key{1}, Set{"v": "written"}), "the stale write was refused")
	for what, predicate := range map[string]sqlrow.Expr{
		"closes the parenthesis": sqlrow.Raw("true) OR (true"), "a comment": sqlrow.Raw("true --"), "empty": sqlrow.Raw(" "), "another statement": sqlrow.Raw("true; SELECT 1"),
	} {
		closed := e.closed()
		bad := e.table("docs", []string{"id"}, &TableOptions{Rule: guard.SameOrNewer}).Where(predicate)
		wantInvalid(t, what, bad.Update(t.Context(), closed, claimOf("r", 1), Key{1}, Set{"v": 1}), "predicate", "")
		wantInvalid(t, what, bad.Upsert(t.Context(), closed, claimOf("r", 1), Key{1}, nil), "predicate", "")
		wantInvalid(t, what, bad.Raise(t.Context(), closed, claimOf("r", 1), Key{1}, nil), "predicate", "")
	}
}
