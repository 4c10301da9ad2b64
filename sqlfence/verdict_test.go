package sqlfence

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/sqlfence/sqlrow"
)

// Small enough to try all of them, and with both ends of the range.
var (
	someTokens = []guard.Token{1, 2, 3, guard.MaxToken - 1, guard.MaxToken}
	someLeases = []string{"", "a", "b"}
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

// TestUpdateDecides (P1, P4, P6): for every small mark, claim and rule, with
// and without a lease column, Update admits what guard.Decide admits, changes
// the row then and only then, by exactly the set, and no other row.
func TestUpdateDecides(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		e.createPairs()
		for _, problem := range e.compareUpdates(5, e.db) {
			t.Error(problem)
		}
	})
}

// TestUpdateDecidesControls: each part of the predicate is needed.
func TestUpdateDecidesControls(t *testing.T) {
	mutants := map[string]func(string) string{
		"no predicate": func(s string) string { return s[:strings.LastIndex(s, ") AND ")+1] },
		"equal is admitted": func(s string) string {
			return strings.Replace(s, `::bigint OPERATOR(pg_catalog.>) "last`, `::bigint OPERATOR(pg_catalog.>=) "last`, 1)
		},
		"equal is refused": func(s string) string {
			return strings.Replace(s, `::bigint OPERATOR(pg_catalog.>=) "last`, `::bigint OPERATOR(pg_catalog.>) "last`, 1)
		},
		"any lease": func(s string) string {
			return strings.Replace(s, `$4::pg_catalog.text OPERATOR(pg_catalog.=) "last_lease_id" COLLATE pg_catalog."C"`, "true", 1)
		},
		"the lease stays":      func(s string) string { return strings.Replace(s, `, "last_lease_id" = $4::pg_catalog.text`, "", 1) },
		"the token stays":      func(s string) string { return strings.Replace(s, `= $3::bigint,`, `= "last_fencing_token",`, 1) },
		"another row as well":  func(s string) string { return strings.Replace(s, `"b" = $2`, `$2::text IS NOT NULL`, 1) },
		"the key's second col": func(s string) string { return strings.Replace(s, `"a" = $1`, `$1::int IS NOT NULL`, 1) },
	}
	someDriver(t, func(t *testing.T, e *env) {
		e.createPairs()
		for name, mutate := range mutants {
			if problems := e.compareUpdates(1, e.altered(mutate, func() {})); len(problems) == 0 {
				t.Errorf("%s: the comparison with guard.Decide did not notice", name)
			}
		}
	})
}

// createPairs creates a table whose key has two columns, so that a mistake in
// either shows, and rows that share one of the values.
func (e *env) createPairs() {
	e.exec(`CREATE TABLE pairs (a int, b text, v text, n bigint NOT NULL DEFAULT 0,
		last_fencing_token bigint NOT NULL DEFAULT 0, last_lease_id text NOT NULL DEFAULT '', PRIMARY KEY (a, b))`)
}

// compareUpdates returns the cases, at most limit, in which Update through q
// differs from guard.Decide. Each case has a row, and one that shares half of its
// key.
func (e *env) compareUpdates(limit int, q Querier) (problems []string) {
	for _, rule := range []guard.Rule{guard.OncePerToken, guard.SameOrNewer} {
		for _, lease := range []string{"", "last_lease_id"} {
			table := e.table("pairs", []string{"a", "b"}, &TableOptions{Rule: rule, LeaseColumn: lease})
			type updated struct {
				mark  guard.Mark
				claim guard.Claim
				err   error
			}
			var cases []updated
			var rows strings.Builder
			for _, mark := range someMarks() {
				if lease == "" && mark.LeaseID != "" {
					continue
				}
				for _, claim := range someClaims("r") {
					fmt.Fprintf(&rows, ", (%d, 'x', 'old', 5, %d, '%s'), (%[1]d, 'y', 'old', 5, 0, '')", len(cases), mark.Token, mark.LeaseID)
					cases = append(cases, updated{mark, claim, nil})
				}
			}
			e.exec("DELETE FROM pairs; INSERT INTO pairs VALUES " + rows.String()[2:])
			for i := range cases {
				cases[i].err = table.Update(context.Background(), q, cases[i].claim, Key{i, "x"}, Set{"v": "new", "n": sqlrow.Raw("n * 10 + $2 - $1", 1, 3)})
			}
			written := strings.Split(e.text("SELECT string_agg(concat_ws(' ', v, n, last_fencing_token, last_lease_id), ';' ORDER BY b, a) FROM pairs"), ";")
			for i, c := range cases {
				problem := compareUpdate(rule, lease != "", c.mark, c.claim, c.err, written[i])
				if other := written[len(cases)+i]; problem == "" && other != "old 5 0 " {
					problem = "another row is " + other
				}
				if problem != "" {
					problems = append(problems, fmt.Sprintf("%v, lease column %q, mark %+v, claim %+v: %s", rule, lease, c.mark, c.claim, problem))
				}
				if len(problems) == limit {
					return problems
				}
			}
		}
	}
	return problems
}

func compareUpdate(rule guard.Rule, leases bool, mark guard.Mark, claim guard.Claim, err error, row string) string {
	shown, lease := mark, claim.LeaseID
	if !leases { // the table cannot distinguish them
		lease = ""
		if mark.Token == claim.Token {
			shown.LeaseID = claim.LeaseID
		}
	}
	want, wantRow := guard.Decide(rule, shown, claim), fmt.Sprintf("old 5 %d %s", mark.Token, mark.LeaseID)
	if want == nil {
		wantRow = fmt.Sprintf("new 52 %d %s", claim.Token, lease)
	}
	if problem := sameVerdict(err, want, claim, shown); problem != "" {
		return problem
	}
	if row != wantRow {
		return fmt.Sprintf("the row is %q, want %q", row, wantRow)
	}
	return ""
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
