package sqlfence

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/longtest"
	"github.com/fencepost-go/fencepost/internal/pgerr"
	"github.com/fencepost-go/fencepost/sqlfence/internal/sqlkit"
)

// TestMarksDecide (P1, P4, P6): for every small mark, floors included, and
// every claim, InTx, Raise, Admit, Enter at each level and the database function enter
// agree with guard.Decide by SameOrNewer, and the mark is afterwards what it must be.
func TestMarksDecide(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		surfaces := []string{"InTx", "Raise", "Admit"}
		if e.driver == "pgx" || longtest.Long { // the rest is the database's
			surfaces = append(surfaces, "enter", "Enter, read committed", "Enter, repeatable read", "Enter, serializable")
		}
		for _, problem := range e.compareMarks(5, surfaces...) {
			t.Error(problem)
		}
	})
}

// TestMarksDecideControls: each comparison in the database functions is needed.
func TestMarksDecideControls(t *testing.T) {
	e := someEnv(t)
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
		undo := e.mutate(m.function, m.old, m.new)
		if len(e.compareMarks(1, m.surface)) == 0 {
			t.Errorf("%s: the comparison with guard.Decide did not notice", name)
		}
		undo()
	}
	if problems := e.compareMarks(1, "enter", "Raise"); len(problems) != 0 {
		t.Errorf("the functions as they were: %s", problems)
	}
}

// TestVerdictOfNothing (P5): the function in SQL admits nothing that is not there. What it says of
// marks and claims is in TestMarksDecide.
func TestVerdictOfNothing(t *testing.T) {
	e := someEnv(t)
	for call, want := range map[string]string{
		"NULL, 'l', 5, 'l', false": "stale", "5, NULL, 5, 'l', false": "conflict", "5, 'l', 5, NULL, false": "conflict",
		"5, 'l', 5, 'l', NULL": "stale", "5, 'l', 5, 'l', false": "current", "5, 'l', NULL, NULL, false": "newer",
	} {
		e.wantText(want, call, "SELECT fencepost.verdict("+call+")")
	}
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
				_, err := tx.int(ctx, "SELECT $1::bigint", 1)
				ran = err == nil
				if got, ok := guard.ClaimFrom(ctx); !ok || got != claim {
					return fmt.Errorf("the callback's context carries %+v", got)
				}
				return err
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
	for _, level := range levels {
		if name := "Enter, " + level; slices.Contains(names, name) {
			in := entering(e.serverDefault("default_transaction_isolation", level))
			surfaces[name] = func(ctx context.Context, claim guard.Claim) error {
				return in(ctx, claim, func(context.Context, testTx) error { return nil })
			}
		}
	}
	// A floor is one for all resources, and a mark is one resource's.
	groups := [][]guard.Mark{marks}
	for _, token := range someTokens {
		groups = append(groups, []guard.Mark{{Token: token, Floor: true}})
	}
	// Where there is a mark, a floor beside it does not count.
	own := slices.DeleteFunc(slices.Clone(marks), func(m guard.Mark) bool { return m.Token == guard.NoToken })
	groups = append(groups, append([]guard.Mark{{Token: guard.MaxToken - 1, Floor: true}}, own...))
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

// neverRaise are surfaces that raise no mark, with the reason of their refusal, which
// says to raise first.
var neverRaise = map[string]guard.Reason{"enter": guard.ReasonUnavailable, "Enter, repeatable read": guard.ReasonInvalid, "Enter, serializable": guard.ReasonInvalid}

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
		if reason, never := neverRaise[name]; never && c.claim.Token > c.mark.Token {
			if pgerr.State(err) != pgerr.MustRaise || guard.ReasonOf(err) != reason {
				problem = fmt.Sprintf("got %v, want %s with SQLSTATE %s", err, reason, pgerr.MustRaise)
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
	e := someEnv(t)
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
}

// TestMarkLimits: the functions and the table of marks have the limits of a claim, for callers
// that do not validate theirs.
func TestMarkLimits(t *testing.T) {
	e := newEnvOf(t, "pgx")
	for _, c := range []struct {
		resource, lease int
		token           string
		state           string
	}{
		{512, 128, "1", ""}, {512, 0, "9223372036854775806", ""}, {513, 0, "1", "22023"}, {1, 129, "1", "22023"}, {2, 0, "0", "22023"}, {3, 0, "9223372036854775807", "22023"},
	} {
		wantState(t, e.db.unfenced(t.Context(), fmt.Sprintf("SELECT fencepost.raise(repeat('r', %d), %s, repeat('l', %d), 1000)", c.resource, c.token, c.lease)), c.state, "%+v", c)
	}
	for values, state := range map[string]string{ // by a restored dump
		"'restored', 0, ''": "23514", "'restored', 9223372036854775807, ''": "23514", "'restored', 7, ''": "",
		"repeat('r', 513), 7, ''": "23514", "'longer', 7, repeat('l', 129)": "23514",
	} {
		wantState(t, e.db.unfenced(t.Context(), "INSERT INTO fencepost.marks (resource, token, lease_id) VALUES ("+values+")"), state, "%s", values)
	}
}

// Variants of marks that do harm without losing data, kept to show that the
// tests detect them.

// sharingTheRow is an enter that takes a lock on the mark's row instead of the
// advisory lock. It keeps stale writers out as well.
const sharingTheRow = `CREATE OR REPLACE FUNCTION fencepost.enter(p_resource text, p_token bigint, p_lease text, p_lock_timeout_ms integer, p_idle_timeout_ms integer)
	RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$ BEGIN
		PERFORM FROM fencepost.marks WHERE resource = p_resource AND token = p_token AND lease_id = p_lease FOR SHARE;
		IF NOT FOUND THEN PERFORM fencepost.refuse_entry(p_resource, p_token, p_lease); END IF; END $$`

// overtakes starts transactions of the mark's holder while a raise waits, each
// before the previous one has ended, and returns how many got in front of the
// raise; at most three.
func (e *env) overtakes() (n int) {
	e.Helper()
	e.putMark("r", guard.Mark{Token: 5, LeaseID: "lease-5"})
	ctx := context.Background()
	last := e.holding(claimOf("r", 5))
	raised := e.start(func(func()) error { return e.raise(claimOf("r", 6)) })
	for n < 3 {
		leave := make(chan struct{})
		late := e.start(func(paused func()) error {
			return e.db.fenced(ctx, claimOf("r", 5), func(context.Context, testTx) error {
				paused()
				<-leave
				return nil
			})
		})
		before := last
		last = func() error { close(leave); return <-late }
		if e.int(blockedSQL) == 2 { // it is behind the raise
			last = func() error {
				close(leave)
				if err := <-late; guard.ReasonOf(err) != guard.ReasonStale {
					return fmt.Errorf("the one behind the raise: %v, want stale", err)
				}
				return nil
			}
			noError(e, before())
			break
		}
		n++
		noError(e, before())
		e.waitForBlocked(1) // the raise, again: for the newcomer
	}
	noError(e, errors.Join(last(), <-raised))
	return n
}

// TestRaiseIsNotStarved (P2): the lock's queue is fair: a transaction that
// arrives while a raise waits is behind it. The control locks the mark's row
// FOR SHARE: new transactions join those that are in, for as long as any
// arrive; and lock_timeout does not end the wait, because it applies to each of
// them.
func TestRaiseIsNotStarved(t *testing.T) {
	e := someEnv(t)
	e.createWritten()
	if n := e.overtakes(); n != 0 {
		t.Errorf("%d transactions got in front of a raise that waited", n)
	}
	e.exec(sharingTheRow)
	if n := e.overtakes(); n != 3 {
		t.Errorf("FOR SHARE, the control: %d transactions got in front of the raise, want all 3", n)
	}
}

// TestRaiseDoesNotLower (P1, P3): a raise that arrives while a newer one is not
// yet committed is refused. The control takes no lock: it has read the mark
// before, and overwrites the newer one with its own.
func TestRaiseDoesNotLower(t *testing.T) {
	e := someEnv(t)
	overtaken := func() (mark guard.Mark, err error) {
		e.putMark("r", guard.Mark{Token: 5, LeaseID: "lease-5"})
		tx := e.begin(raiseSQL, "r", 7, "lease-7", 0)
		raised := e.start(func(func()) error { return e.db.Raise(context.Background(), claimOf("r", 6)) })
		must(t, tx.Commit(t.Context()))
		err = <-raised
		mark, markErr := e.db.Mark(t.Context(), "r")
		if markErr != nil {
			t.Fatal(markErr)
		}
		return mark, err
	}
	if mark, err := overtaken(); mark.Token != 7 || guard.ReasonOf(err) != guard.ReasonStale {
		t.Errorf("the mark is %+v, and the older raise got %v", mark, err)
	}
	e.mutate("raise", "PERFORM pg_advisory_xact_lock(", "PERFORM (")
	if mark, err := overtaken(); mark.Token != 6 || err != nil {
		t.Errorf("without the lock, the control: the mark is %+v, and the older raise got %v", mark, err)
	}
}

// TestRaisedAtIsNotTheBegin: a raise that waited is dated when it was done:
// with now(), which is when its transaction began, it would be retired at once.
func TestRaisedAtIsNotTheBegin(t *testing.T) {
	e := someEnv(t)
	e.createWritten()
	retiredOf := func(older, newer guard.Token) int64 {
		end := e.holding(claimOf("r", older))
		raised := make(chan error, 1)
		go func() { raised <- e.db.Raise(context.Background(), claimOf("r", newer)) }()
		e.waitForWaiters(1)
		var before time.Time
		must(t, e.admin.QueryRow(t.Context(), "SELECT clock_timestamp()").Scan(&before))
		must(t, end())
		must(t, <-raised)
		retired, err := e.db.Retire(t.Context(), before)
		must(t, err)
		return retired.Count
	}
	if n := retiredOf(5, 6); n != 0 {
		t.Errorf("%d marks were retired", n)
	}
	e.mutate("raise", "clock_timestamp()", "now()")
	if n := retiredOf(7, 8); n != 1 {
		t.Errorf("with now(), the control: %d marks were retired", n)
	}
}

// TestRetireIsBounded (P5): a retirement does not raise the floor above the last
// token of the issuer, nor, if that is not known, to where no token is above it;
// it changes nothing, and names the mark if the driver can. The control is one of
// the same marks within the bound, after which every resource without a mark
// refuses what the issuer issues.
func TestRetireIsBounded(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		retire := func(last guard.Token) (guard.Retired, error) {
			return e.db.RetireUpTo(t.Context(), time.Now().Add(time.Hour), last)
		}
		const most = guard.Token(math.MaxInt64 - 1)
		e.exec("INSERT INTO fencepost.marks (resource, token) VALUES ('a', 7), ('b', $1)", int64(most))
		for what, call := range map[string]func() (guard.Retired, error){
			"the highest token": func() (guard.Retired, error) { return e.db.Retire(t.Context(), time.Now().Add(time.Hour)) },
			"above the issuer":  func() (guard.Retired, error) { return retire(8) },
		} {
			_, err := call()
			var rejected *guard.RejectedError
			if !errors.Is(err, guard.ErrMarkAhead) || !errors.As(err, &rejected) || rejected.Claim.Resource != "b" && e.driver == "pgx" {
				t.Errorf("%s: %v", what, err)
			}
		}
		e.wantInt(2, "marks are left", "SELECT count(*) FROM fencepost.marks WHERE resource <> ''")
		if got, err := retire(most); err != nil || got.Count != 2 || got.Floor != most {
			t.Errorf("the control: %+v, %v", got, err)
		}
		wantReason(t, e.db.Raise(t.Context(), claimOf("c", 8)), guard.ReasonStale, "under the highest floor")
		// The repair compares, and is recorded.
		reset := func(from, to, last guard.Token) error {
			return e.db.ResetFloor(t.Context(), from, to, last, "ops", "a made-up token")
		}
		for want, err := range map[guard.Reason]error{
			guard.ReasonStale:   reset(most-1, 7, 8),
			guard.ReasonInvalid: reset(most, 9, 8),
		} {
			wantReason(t, err, want)
		}
		must(t, reset(most, 7, 8))
		wantReason(t, reset(most, 7, 8), guard.ReasonConflict, "twice")
		wantReason(t, e.db.Raise(t.Context(), claimOf("c", 7)), guard.ReasonStale, "at the new floor")
		noError(t, e.db.Raise(t.Context(), claimOf("c", 8)), "above the new floor")
		n := 0
		for r, err := range e.db.Resets(t.Context(), 0) {
			if n++; err != nil || r.Resource != "" || r.FromToken != most || r.ToToken != 7 || r.Actor != "ops" {
				t.Errorf("recorded: %+v, %v", r, err)
			}
		}
		if n != 1 {
			t.Errorf("%d resets were recorded, want 1", n)
		}
		e.exec("DELETE FROM fencepost.marks WHERE resource = ''")
		wantReason(t, reset(7, 8, 8), guard.ReasonNotFound, "without a floor")
	})
}
