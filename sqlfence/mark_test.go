package sqlfence

import (
	"context"
	"fmt"
	"testing"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgerr"
	"github.com/fencepost-go/fencepost/sqlfence/internal/sqlkit"
)

// TestMarksDecide (P1, P4, P6): for every small mark, floors included, and
// every claim, InTx, Raise, Admit and the database function enter agree with
// guard.Decide by SameOrNewer, and the mark is afterwards what it must be.
func TestMarksDecide(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		for _, problem := range e.compareMarks(5, "InTx", "Raise", "Admit", "enter") {
			t.Error(problem)
		}
	})
}

// TestMarksDecideControls: each comparison in the database functions is needed.
func TestMarksDecideControls(t *testing.T) {
	someDriver(t, func(t *testing.T, e *env) {
		for name, m := range map[string]struct{ surface, function, old, new string }{
			"enter admits an older token":        {"enter", "enter", "m.token OPERATOR(pg_catalog.=) p_token", "m.token <= p_token + 1"},
			"enter admits another lease":         {"enter", "enter", `AND m.lease_id OPERATOR(pg_catalog.=) p_lease COLLATE pg_catalog."C"`, ""},
			"enter admits a newer token":         {"enter", "enter", "IF NOT FOUND", "IF false"},
			"a lower token is newer":             {"Raise", "verdict", "p_token > p_mark", "p_token <> p_mark"},
			"an equal token is newer":            {"Raise", "verdict", "p_token > p_mark", "p_token >= p_mark"},
			"a lower token is a conflict":        {"Raise", "verdict", "p_token < p_mark OR", ""},
			"a floor's token is no worse":        {"Raise", "verdict", "OR p_floor", ""},
			"any lease is the mark's":            {"Raise", "verdict", `p_lease = p_mark_lease COLLATE "C"`, "true"},
			"no lease is the mark's":             {"Raise", "verdict", `p_lease = p_mark_lease COLLATE "C"`, "false"},
			"judge forgets the floor":            {"Raise", "judge", `IN (p_resource COLLATE "C", '')`, `= p_resource COLLATE "C"`},
			"judge reads the floor for the mark": {"Raise", "judge", "ORDER BY resource DESC", "ORDER BY resource"},
			"judge takes the floor for a mark":   {"Raise", "judge", "m.token, m.lease_id, m.resource = '');\n    WHEN v = 'conflict'", "m.token, m.lease_id, false);\n    WHEN v = 'conflict'"},
			"enter does not say what to do":      {"enter", "judge", "v = 'newer' AND NOT p_may_raise", "false"},
			"raise forgets the lease":            {"Raise", "raise", "SET token = p_token, lease_id = p_lease", "SET token = p_token"},
			"raise forgets the token":            {"Raise", "raise", "SET token = p_token, lease_id = p_lease", "SET token = token, lease_id = p_lease"},
		} {
			whole := e.text("SELECT pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = 'fencepost'::regnamespace AND proname = $1", m.function)
			e.mutate(m.function, m.old, m.new)
			if len(e.compareMarks(1, m.surface)) == 0 {
				t.Errorf("%s: the comparison with guard.Decide did not notice", name)
			}
			e.exec(whole)
		}
		if problems := e.compareMarks(1, "enter", "Raise"); len(problems) != 0 {
			t.Errorf("the functions as they were: %s", problems)
		}
	})
}

// TestVerdictIsDecide: for every small mark, floors included, and every claim,
// fencepost.verdict says what guard.Decide says under SameOrNewer.
func TestVerdictIsDecide(t *testing.T) {
	someDriver(t, func(t *testing.T, e *env) {
		marks := someMarks()
		for _, token := range someTokens {
			marks = append(marks, guard.Mark{Token: token, Floor: true})
		}
		for _, mark := range marks {
			for _, claim := range someClaims("r") {
				var token, lease any // NULL where there is no mark
				if mark.Token != guard.NoToken {
					token, lease = int64(mark.Token), mark.LeaseID
				}
				want := map[guard.Reason]string{guard.ReasonStale: "stale", guard.ReasonConflict: "conflict"}[guard.ReasonOf(guard.Decide(guard.SameOrNewer, mark, claim))]
				if want == "" {
					want = "newer"
					if claim.Token == mark.Token {
						want = "current"
					}
				}
				if got := e.text("SELECT fencepost.verdict($1, $2, $3, $4, $5)", int64(claim.Token), claim.LeaseID, token, lease, mark.Floor); got != want {
					t.Errorf("mark %+v, claim %+v: %s, want %s", mark, claim, got, want)
				}
			}
		}
	})
}

// putMark makes mark the only one in the database.
func (e *env) putMark(resource string, mark guard.Mark) {
	if mark.Floor {
		resource = ""
	}
	sql := "DELETE FROM fencepost.marks"
	if mark.Token != guard.NoToken {
		sql += fmt.Sprintf("; INSERT INTO fencepost.marks (resource, token, lease_id) VALUES (%s, %d, %s)", quoteText(resource), mark.Token, quoteText(mark.LeaseID))
	}
	e.exec(sql)
}

// compareMarks returns the cases, at most limit, in which the given surfaces
// differ from guard.Decide.
func (e *env) compareMarks(limit int, names ...string) (problems []string) {
	marks := someMarks()
	surfaces := map[string]func(ctx context.Context, claim guard.Claim) error{
		"InTx": func(ctx context.Context, claim guard.Claim) error {
			ran := false
			err := e.db.fenced(ctx, claim, func(ctx context.Context, tx testTx) error {
				ran = true
				if got, ok := guard.ClaimFrom(ctx); !ok || got != claim {
					return fmt.Errorf("the callback's context carries %+v", got)
				}
				return nil
			})
			if ran != (err == nil) {
				err = fmt.Errorf("the callback ran: %t, with error %w", ran, err)
			}
			return err
		},
		"Raise": e.db.Raise,
		"Admit": func(ctx context.Context, claim guard.Claim) error {
			_, err := e.db.Admit(ctx, claim)
			return err
		},
		"enter": func(ctx context.Context, claim guard.Claim) error { // alone, it never raises
			_, err := e.admin.Exec(ctx, "SELECT fencepost.enter($1, $2, $3, 0, 0)", claim.Resource, int64(claim.Token), claim.LeaseID)
			if err == nil {
				return nil
			}
			return sqlkit.Failure("enter", claim, err, false)
		},
	}
	// A floor is one for all resources, and a mark is one resource's.
	groups := [][]guard.Mark{marks}
	for _, token := range someTokens {
		groups = append(groups, []guard.Mark{{Token: token, Floor: true}})
	}
	for _, name := range names {
		for _, group := range groups {
			problems = append(problems, e.compareMarksOf(group, name, surfaces[name], limit-len(problems))...)
			if len(problems) == limit {
				return problems
			}
		}
	}
	return problems
}

// compareMarksOf makes every claim under each mark, each on a resource of its own.
func (e *env) compareMarksOf(marks []guard.Mark, name string, call func(context.Context, guard.Claim) error, limit int) (problems []string) {
	type marked struct {
		mark, after guard.Mark
		claim       guard.Claim
	}
	var cases []marked
	sql := "DELETE FROM fencepost.marks"
	if marks[0].Floor {
		sql += fmt.Sprintf("; INSERT INTO fencepost.marks (resource, token) VALUES ('', %d)", marks[0].Token)
	}
	for _, mark := range marks {
		for _, claim := range someClaims("") {
			claim.Resource = fmt.Sprintf("a:%d", len(cases))
			if !mark.Floor && mark.Token != guard.NoToken {
				sql += fmt.Sprintf("; INSERT INTO fencepost.marks (resource, token, lease_id) VALUES ('%s', %d, '%s')", claim.Resource, mark.Token, mark.LeaseID)
			}
			cases = append(cases, marked{mark, mark, claim})
		}
	}
	e.exec(sql)
	add := func(c marked, problem string) bool {
		problems = append(problems, fmt.Sprintf("%s, mark %+v, claim %+v: %s", name, c.mark, c.claim, problem))
		return len(problems) == limit
	}
	for i := range cases {
		c := &cases[i]
		err, want := call(context.Background(), c.claim), guard.Decide(guard.SameOrNewer, c.mark, c.claim)
		problem := ""
		if name == "enter" && c.claim.Token > c.mark.Token {
			if pgerr.State(err) != pgerr.MustRaise {
				problem = fmt.Sprintf("got %v, want SQLSTATE %s", err, pgerr.MustRaise)
			}
		} else {
			problem = sameVerdict(err, want, c.claim, c.mark)
			if want == nil {
				c.after = guard.Mark{Token: c.claim.Token, LeaseID: c.claim.LeaseID}
			}
		}
		if problem != "" && add(*c, problem) {
			return problems
		}
	}
	for _, c := range cases {
		got, err := e.db.Mark(context.Background(), c.claim.Resource)
		if (err != nil || got != c.after) && add(c, fmt.Sprintf("the mark is then %+v, %v, want %+v", got, err, c.after)) {
			return problems
		}
	}
	return problems
}

// TestForeignCollation: whatever collation a caller of the functions brings,
// one resource is one lock, and lease IDs are compared byte by byte (P4).
func TestForeignCollation(t *testing.T) {
	someDriver(t, func(t *testing.T, e *env) {
		e.exec(`CREATE COLLATION fold (provider = icu, locale = 'und-u-ks-level2', deterministic = false)`)
		must(t, e.db.Raise(t.Context(), guard.Claim{Resource: "R", Token: 1, LeaseID: "a"}))
		for lease, want := range map[string]string{"a": "", "A": pgerr.Conflict} {
			_, err := e.admin.Exec(t.Context(), `SELECT fencepost.enter('R' COLLATE fold, 1, $1 COLLATE fold, 0, 0)`, lease)
			if pgerr.State(err) != want {
				t.Errorf("enter with lease %q: %v, want SQLSTATE %q", lease, err, want)
			}
		}
		_, err := e.admin.Exec(t.Context(), `SELECT fencepost.raise('R' COLLATE fold, 1, 'A' COLLATE fold, 1000)`)
		if pgerr.State(err) != pgerr.Conflict {
			t.Errorf("raise: %v, want a conflict", err)
		}
		// A fenced transaction keeps out a raise that brings another collation.
		must(t, e.db.fenced(t.Context(), guard.Claim{Resource: "R", Token: 1, LeaseID: "a"}, func(ctx context.Context, tx testTx) error {
			_, err := e.admin.Exec(ctx, `SELECT fencepost.raise('R' COLLATE fold, 2, 'b' COLLATE fold, 20)`)
			if pgerr.State(err) != "55P03" {
				t.Errorf("the raise did not wait: %v", err)
			}
			return nil
		}))
	})
}

// TestMarkLimits: the table of marks has the limits of a claim, for callers that
// do not validate theirs.
func TestMarkLimits(t *testing.T) {
	e := newEnvOf(t, "pgx")
	for _, c := range []struct {
		resource, lease int
		token           string
		state           string
	}{
		{512, 128, "1", ""}, {512, 0, "9223372036854775806", ""}, {513, 0, "1", "23514"}, {1, 129, "1", "23514"}, {2, 0, "0", "22023"}, {3, 0, "9223372036854775807", "22023"},
	} {
		wantState(t, e.db.unfenced(t.Context(), fmt.Sprintf("SELECT fencepost.raise(repeat('r', %d), %s, repeat('l', %d), 1000)", c.resource, c.token, c.lease)), c.state, "%+v", c)
	}
	for token, state := range map[string]string{"0": "23514", "9223372036854775807": "23514", "7": ""} { // by a restored dump
		wantState(t, e.db.unfenced(t.Context(), "INSERT INTO fencepost.marks (resource, token) VALUES ('restored', "+token+")"), state, "token %s", token)
	}
}
