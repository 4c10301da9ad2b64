package sqlfence

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/fencepost-go/fencepost/guard"
)

// rowCase is a row and a claim for it; the row's key is its index.
type rowCase struct {
	state string // "there", "deleted", "absent"
	mark  guard.Mark
	claim guard.Claim
}

// rowWays are the statements on rows. Each returns the verdicts of all cases.
var rowWays = map[string]func(q Querier, table *Table, cases []rowCase) ([]error, error){
	"Update": eachCase(func(t *Table, ctx context.Context, q Querier, claim guard.Claim, key Key, set Set) error {
		return t.Update(ctx, q, claim, key, set)
	}),
	"Upsert": eachCase(func(t *Table, ctx context.Context, q Querier, claim guard.Claim, key Key, set Set) error {
		return t.Upsert(ctx, q, claim, key, set)
	}),
	"Delete": eachCase(func(t *Table, ctx context.Context, q Querier, claim guard.Claim, key Key, set Set) error {
		return t.Delete(ctx, q, claim, key, set)
	}),
	"Takeover": takeCases,
}

func eachCase(write func(*Table, context.Context, Querier, guard.Claim, Key, Set) error) func(Querier, *Table, []rowCase) ([]error, error) {
	return func(q Querier, table *Table, cases []rowCase) ([]error, error) {
		verdicts := make([]error, len(cases))
		for i, c := range cases {
			verdicts[i] = write(table, context.Background(), q, c.claim, Key{i}, Set{"v": "new"})
		}
		return verdicts, nil
	}
}

func takeCases(q Querier, table *Table, cases []rowCase) ([]error, error) {
	verdicts := make([]error, len(cases))
	for i, c := range cases {
		var v, w string
		verdicts[i] = table.Raise(context.Background(), q, c.claim, Key{i}, Dest{"v": &v, "w": &w})
		if verdicts[i] == nil && (v != "old" || w != fmt.Sprint("w", i)) {
			return nil, fmt.Errorf("case %d read %q and %q", i, v, w)
		}
	}
	return verdicts, nil
}

// fewer leaves out tokens that TestUpdateDecides has and that show nothing
// more.
func fewer(token guard.Token) bool { return token != 3 && token != guard.MaxToken-1 }

// rowCases are all small marks and claims on rows in each state.
func rowCases(rule guard.Rule, leases bool) (cases []rowCase) {
	for _, state := range []string{"there", "deleted", "absent"} {
		for _, mark := range someMarks() {
			if !leases && mark.LeaseID != "" || state == "absent" && mark != (guard.Mark{}) || !fewer(mark.Token) {
				continue
			}
			for _, claim := range someClaims("r") {
				if !fewer(claim.Token) {
					continue
				}
				cases = append(cases, rowCase{state, mark, claim})
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
			if way == "Takeover" && rule == guard.OncePerToken {
				continue
			}
			table := e.table("docs", []string{"id"}, &TableOptions{Rule: rule, LeaseColumn: lease, DeletedColumn: "deleted_at"})
			cases := rowCases(rule, lease != "")
			e.fillDocs(cases)
			verdicts, err := rowWays[way](q, table, cases)
			if err != nil {
				return append(problems, err.Error())
			}
			rows := e.docs(len(cases))
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
		last_lease_id text NOT NULL DEFAULT '', deleted_at timestamptz)`)
}

func (e *env) fillDocs(cases []rowCase) {
	var b strings.Builder
	for i, c := range cases {
		if deleted := "NULL"; c.state != "absent" {
			if c.state == "deleted" {
				deleted = "'2001-01-01'"
			}
			fmt.Fprintf(&b, ", (%d, 'old', 'w%d', %d, '%s', %s)", i, i, c.mark.Token, c.mark.LeaseID, deleted)
		}
	}
	e.exec("DELETE FROM docs")
	e.exec("INSERT INTO docs VALUES " + b.String()[2:])
}

func (e *env) docs(n int) []string {
	rows := make([]string, n)
	all, err := e.admin.Query(context.Background(), `SELECT id, concat_ws(' ', v, w, last_fencing_token, last_lease_id || '.', CASE
		WHEN deleted_at = '2001-01-01' THEN 'was deleted' WHEN deleted_at > now() - interval '1 hour' THEN 'deleted' END) FROM docs`)
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
	if c.state == "deleted" {
		was += " was deleted"
	}
	mark := fmt.Sprintf("%d %s.", c.claim.Token, written)
	want, wantRow := guard.Decide(rule, shown, c.claim), was
	switch {
	case c.state == "absent" && way == "Upsert":
		want, wantRow = nil, "new default "+mark
	case c.state == "absent":
		want, wantRow, shown = &guard.RejectedError{Reason: guard.ReasonNotFound}, "", guard.Mark{}
	case want != nil:
	case way == "Upsert":
		wantRow = fmt.Sprintf("new w%d %s", id, mark)
	case way == "Takeover" && c.state == "deleted":
		shown = guard.Mark{Token: c.claim.Token, LeaseID: c.claim.LeaseID}
		want, wantRow = &guard.RejectedError{Reason: guard.ReasonNotFound}, fmt.Sprintf("old w%d %s was deleted", id, mark)
	case way == "Takeover":
		wantRow = fmt.Sprintf("old w%d %s", id, mark)
	case c.state == "deleted":
		want = &guard.RejectedError{Reason: guard.ReasonNotFound}
	case way == "Delete":
		wantRow = fmt.Sprintf("new w%d %s deleted", id, mark)
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

// TestRowsDecide (P1, P4, P6): for every small mark, claim and rule, on
// existing, deleted and absent rows, each statement admits what guard.Decide
// admits, gives its reason and facts, and changes the row accordingly.
func TestRowsDecide(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		e.createDocs()
		for way := range rowWays {
			for _, problem := range e.compareRows(5, e.db, way) {
				t.Errorf("%s: %s", way, problem)
			}
		}
	})
}

// TestRowsDecideControls: each part of the statements is needed.
func TestRowsDecideControls(t *testing.T) {
	cut := func(old, new string) func(string) string {
		return func(s string) string { return strings.ReplaceAll(s, old, new) }
	}
	mutants := map[string]map[string]func(string) string{
		"Upsert": {
			"no comparison": func(s string) string { return s[:strings.LastIndex(s, " WHERE ")] },
			"any lease":     cut(`$3::pg_catalog.text OPERATOR(pg_catalog.=) "docs"."last_lease_id" COLLATE pg_catalog."C"`, "true"),
			"equal refused": cut(`OPERATOR(pg_catalog.=) "docs"."last_fencing_token"`, `< "docs"."last_fencing_token"`),
			"stays deleted": cut(`, "deleted_at" = NULL`, ""),
			"old content":   cut(`"v" = EXCLUDED."v"`, `"v" = "docs"."v"`),
			"the token":     cut(`"last_fencing_token" = $2::bigint,`, `"last_fencing_token" = "docs"."last_fencing_token",`),
		},
		"Delete": {
			"no tombstone":  cut(`, "deleted_at" = pg_catalog.clock_timestamp()`, ""),
			"deleted again": cut(` AND "deleted_at" IS NULL`, ""),
			"no comparison": cut(`$2::bigint OPERATOR(pg_catalog.>) "last_fencing_token"`, "true"),
		},
		"Takeover": {
			"no raise":      cut(`SET "last_fencing_token" = $2::bigint`, `SET "last_fencing_token" = "last_fencing_token"`),
			"deleted found": cut(`"deleted_at" IS NOT NULL`, "false"),
			"deleted stays": cut(`WHERE `, `WHERE "deleted_at" IS NULL AND `),
			"any lease":     cut(`$3::pg_catalog.text OPERATOR(pg_catalog.=) "last_lease_id" COLLATE pg_catalog."C"`, "true"),
		},
	}
	someDriver(t, func(t *testing.T, e *env) {
		e.createDocs()
		for way, all := range mutants {
			for name, mutate := range all {
				if problems := e.compareRows(1, e.altered(mutate, func() {}), way); len(problems) == 0 {
					t.Errorf("%s, %s: the comparison with guard.Decide did not notice", way, name)
				}
			}
		}
	})
}
