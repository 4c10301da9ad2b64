package sqlfence

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/guard/guardtest"
	"github.com/fencepost-go/fencepost/internal/longtest"
	"github.com/fencepost-go/fencepost/sqlfence/sqladmin"
)

// pageSize is how many entries an Admin reads at once.
const pageSize = 500

// TestReset: a poisoned mark is lowered to what the issuer issued, tokens above
// it are admitted again and others not, and the record says who did it and why.
func TestReset(t *testing.T) {
	e := newEnvOf(t, "pgx")
	poisoned, repaired := guard.Mark{Token: 1 << 60, LeaseID: "made up"}, guard.Mark{Token: 7, LeaseID: "lease-7"}
	e.putMark("r", poisoned)
	if err := e.db.Raise(t.Context(), claimOf("r", 8)); !errors.Is(err, guard.ErrStale) {
		t.Fatalf("the mark is not ahead: %v", err)
	}
	must(t, e.db.Reset(t.Context(), "r", poisoned, repaired, 7, "operator", "restored the issuer"))
	if mark, err := e.db.Mark(t.Context(), "r"); err != nil || mark != repaired {
		t.Errorf("the mark is %+v, %v", mark, err)
	}
	wantReason(t, e.db.Raise(t.Context(), claimOf("r", 6)), guard.ReasonStale, "a token below the new mark")
	noError(t, e.db.Raise(t.Context(), claimOf("r", 8)), "a token above the new mark")
	resets, err := collect(e.db.Resets(t.Context(), 0))
	if err != nil || len(resets) != 1 {
		t.Fatalf("%+v, %v", resets, err)
	}
	got := resets[0]
	if got.ID < 1 || time.Since(got.At).Abs() > time.Hour || got.Role == "" {
		t.Errorf("the record has %+v", got)
	}
	got.ID, got.At, got.Role = 0, time.Time{}, ""
	if want := (sqladmin.Reset{Resource: "r", FromToken: 1 << 60, FromLease: "made up", ToToken: 7, ToLease: "lease-7", IssuersLast: 7, Actor: "operator", Reason: "restored the issuer"}); got != want {
		t.Errorf("the record is %+v, want %+v", got, want)
	}
}

// TestResetCompares: a mark that is not the one the operator saw is left alone,
// and the reason says how it differs; so is one if an input is invalid.
func TestResetCompares(t *testing.T) {
	e := newEnvOf(t, "pgx")
	mark, to := guard.Mark{Token: 50, LeaseID: "a"}, guard.Mark{Token: 7}
	for what, c := range map[string]struct {
		resource string
		from     guard.Mark
		want     guard.Reason
	}{
		"raised since":  {"r", guard.Mark{Token: 49, LeaseID: "a"}, guard.ReasonStale},
		"lowered since": {"r", guard.Mark{Token: 51, LeaseID: "a"}, guard.ReasonConflict},
		"another lease": {"r", guard.Mark{Token: 50}, guard.ReasonConflict},
		"no mark":       {"s", mark, guard.ReasonNotFound},
	} {
		e.putMark("r", mark)
		var rejected *guard.RejectedError
		err := e.db.Reset(t.Context(), c.resource, c.from, to, 9, "operator", "why")
		if guard.ReasonOf(err) != c.want || !errors.As(err, &rejected) || rejected.Claim.Token != c.from.Token || c.resource == "r" && rejected.Mark != mark {
			t.Errorf("%s: got %v, want %s with the mark", what, err, c.want)
		}
	}
	call := func(resource string, from, to guard.Mark, last guard.Token, actor, reason string) error {
		return e.db.Reset(t.Context(), resource, from, to, last, actor, reason)
	}
	wantInvalid(t, "above the issuer's last", call("r", mark, to, 6, "op", "why"), "to", `"7"`)
	wantInvalid(t, "no issuer's last", call("r", mark, to, 0, "op", "why"), "token", "0")
	wantInvalid(t, "blank actor", call("r", mark, to, 9, " \t\u00a0", "why"), "actor", "")
	wantInvalid(t, "long actor", call("r", mark, to, 9, strings.Repeat("x", 129), "why"), "actor", "xxx")
	wantInvalid(t, "blank reason", call("r", mark, to, 9, "op", " \n\u2003"), "reason", "")
	wantInvalid(t, "long reason", call("r", mark, to, 9, "op", strings.Repeat("x", 1025)), "reason", "xxx")
	wantInvalid(t, "NUL", call("r", mark, to, 9, "op", "a\x00b"), "reason", `\x00`)
	wantInvalid(t, "no token", call("r", guard.Mark{}, to, 9, "op", "why"), "token", "")
	wantInvalid(t, "resource", call("", mark, to, 9, "op", "why"), "resource", "")
	wantInvalid(t, "floor", call("r", guard.Mark{Token: 50, Floor: true}, to, 9, "op", "why"), "from", `"50"`)
	over, cancel := context.WithCancel(t.Context())
	cancel()
	wantReason(t, e.db.Reset(over, "r", mark, to, 9, "op", "why"), guard.ReasonUnavailable, "a context that is over")
	wantInvalid(t, "inside InTx", e.db.fenced(t.Context(), claimOf("s", 5), func(ctx context.Context, _ testTx) error {
		return e.db.Reset(ctx, "r", mark, to, 9, "op", "why")
	}), "Reset", `"r"`)
	e.wantInt(0, "resets are on record", "SELECT count(*) FROM fencepost.mark_resets")
	if now, err := e.db.Mark(t.Context(), "r"); err != nil || now != mark {
		t.Errorf("the mark is %+v, %v", now, err)
	}
}

// TestResetWaits (P1): a reset waits for the transactions that entered under
// the mark. The control takes no lock and does not.
func TestResetWaits(t *testing.T) {
	e := someEnv(t)
	e.createWritten()
	// waited says whether a reset ends only after the transaction.
	waited := func() bool {
		e.putMark("r", guard.Mark{Token: 5, LeaseID: "lease-5"})
		end := e.holding(claimOf("r", 5))
		reset := e.start(func(func()) error {
			return e.db.Reset(context.Background(), "r", guard.Mark{Token: 5, LeaseID: "lease-5"}, guard.Mark{Token: 4}, 9, "op", "why")
		})
		waited := len(reset) == 0
		noError(t, errors.Join(end(), <-reset))
		return waited
	}
	if !waited() {
		t.Error("the reset did not wait")
	}
	e.mutate("reset", "PERFORM pg_advisory_xact_lock(", "PERFORM (")
	if waited() {
		t.Error("the control waited")
	}
}

// TestResetsAreKept: a role that may reset and read cannot change or delete the
// record, nor the marks; not even the owner does by mistake.
func TestResetsAreKept(t *testing.T) {
	e := someEnv(t)
	role := e.newRole("operator", "")
	e.exec("GRANT USAGE ON SCHEMA fencepost TO " + role +
		"; GRANT EXECUTE ON FUNCTION fencepost.reset TO " + role + "; GRANT SELECT ON fencepost.mark_resets, fencepost.marks TO " + role)
	e.putMark("r", guard.Mark{Token: 9})
	as := func(role, sql string) error {
		_, err := e.admin.Exec(t.Context(), "BEGIN; SET LOCAL ROLE "+role+";"+sql+";COMMIT")
		if err != nil {
			e.admin.Reset()
		}
		return err
	}
	must(t, as(role, "SELECT fencepost.reset('r', 9, '', 8, '', 8, 'op', 'why', 1000), (SELECT count(*) FROM fencepost.mark_resets)"))
	for _, sql := range []string{"UPDATE fencepost.mark_resets SET actor = 'x'", "DELETE FROM fencepost.mark_resets", "TRUNCATE fencepost.mark_resets"} {
		wantState(t, e.db.plain(context.Background(), inTurn(running("SET LOCAL session_replication_role = replica"), running(sql))), "42501", "%s as a replica", sql)
		for _, who := range []string{role, "CURRENT_USER"} {
			if who == "CURRENT_USER" {
				who = e.text("SELECT quote_ident(current_user)")
			}
			wantState(t, as(who, sql), "42501", "%s: %s", who, sql)
		}
	}
	for _, sql := range []string{"UPDATE fencepost.marks SET token = 1", "INSERT INTO fencepost.mark_resets OVERRIDING SYSTEM VALUE SELECT * FROM fencepost.mark_resets",
		"SELECT fencepost.raise('r', 10, '', 1000)"} {
		wantState(t, as(role, sql), "42501", "%s", sql)
	}
	// What callers outside this module must not omit either.
	for _, call := range []string{"'r', 8, '', 7, '', 6, 'op', 'why'", "'r', 8, '', 7, '', NULL, 'op', 'why'", "'r', 8, '', 7, '', 9, ' ', 'why'", "'r', 8, '', 7, '', 9, 'op', NULL"} {
		if err := as(role, "SELECT fencepost.reset("+call+", 1000)"); err == nil {
			t.Errorf("reset(%s) was carried out", call)
		}
	}
	e.wantInt(1, "resets are on record", "SELECT count(*) FROM fencepost.mark_resets")
}

// TestPages: marks and resets are read page by page, in order, each once.
func TestPages(t *testing.T) {
	e := newEnvOf(t, "pgx")
	ctx := context.Background()
	names := []string{"a", "b", "b/1", "b/2", "b/\U0010ffff", "b/\U0010ffffz", "b0", "c", "\ud7ff", "\ue000"}
	for i, name := range names {
		must(t, e.db.Raise(ctx, claimOf(name, guard.Token(i+1))))
	}
	e.exec("INSERT INTO fencepost.marks VALUES ('', 1)")
	for _, c := range []struct {
		prefix string
		want   []string
	}{{"", names}, {"b", names[1:7]}, {"b/", names[2:6]}, {"b/\U0010ffff", names[4:6]}, {"\ud7ff", names[8:9]}, {"x", nil}} {
		var got []string
		for m, err := range e.db.Marks(ctx, c.prefix) {
			must(t, err)
			got = append(got, m.Resource)
			if i := slices.Index(names, m.Resource); i < 0 || m.Token != guard.Token(i+1) || m.LeaseID != claimOf("", m.Token).LeaseID || time.Since(m.RaisedAt).Abs() > time.Hour {
				t.Errorf("%+v", m)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("prefix %q: %q, want %q", c.prefix, got, c.want)
		}
	}
	for i := range 3 {
		must(t, e.db.Reset(ctx, "c", guard.Mark{Token: guard.Token(8 - i), LeaseID: map[bool]string{true: "lease-8"}[i == 0]}, guard.Mark{Token: guard.Token(7 - i)}, 9, "op", fmt.Sprint("reset ", i)))
	}
	all, err := collect(e.db.Resets(ctx, 0))
	if err != nil || len(all) != 3 || all[0].Reason != "reset 0" || all[2].Reason != "reset 2" {
		t.Fatalf("%+v, %v", all, err)
	}
	rest, err := collect(e.db.Resets(ctx, all[0].ID))
	if err != nil || !slices.Equal(rest, all[1:]) {
		t.Errorf("after the first: %+v, %v", rest, err)
	}
	for range e.db.Marks(ctx, "") { // a caller that stops is not called again, and no connection is kept
		break
	}
	_, err = collect(e.db.Marks(ctx, "a\x00"))
	wantInvalid(t, "prefix", err, "prefix", `\x00`)
	_, err = collect(e.db.Resets(ctx, -1))
	wantInvalid(t, "after", err, "after", "-1")
	// More than a page, to one past its end and to its end.
	for n, extra := range []int{pageSize + 1, pageSize - 1} {
		prefix := fmt.Sprintf("many%d/", n)
		e.exec("INSERT INTO fencepost.marks SELECT $1::text || lpad(n::text, 5, '0'), n FROM generate_series(1, $2::int) n", prefix, pageSize+extra)
		seen := 0
		for m, err := range e.db.Marks(ctx, prefix) {
			if seen++; err != nil || m.Resource != fmt.Sprintf("%s%05d", prefix, seen) || m.Token != guard.Token(seen) {
				t.Fatalf("mark %d: %+v, %v", seen, m, err)
			}
		}
		if seen != pageSize+extra {
			t.Errorf("%d marks were listed, want %d", seen, pageSize+extra)
		}
	}
	// A listing that cannot be read is an error, and not an empty one (P5).
	e.exec("ALTER TABLE fencepost.marks RENAME TO away; ALTER TABLE fencepost.mark_resets RENAME TO away_resets")
	for m, err := range e.db.Marks(ctx, "") {
		if guard.ReasonOf(err) != guard.ReasonSetup || m != (sqladmin.ResourceMark{}) {
			t.Errorf("without the table: %+v, %v", m, err)
		}
	}
	_, err = collect(e.db.Resets(ctx, 0))
	wantReason(t, err, guard.ReasonSetup, "resets without the table")
	e.exec("ALTER TABLE fencepost.away RENAME TO marks; ALTER TABLE fencepost.away_resets RENAME TO mark_resets")
}

// collect reads a listing to its end or its error.
func collect[Entry any](all iter.Seq2[Entry, error]) (entries []Entry, err error) {
	for entry, err := range all {
		if err != nil {
			return entries, err
		}
		entries = append(entries, entry)
	}
	return entries, nil
}

// store is what package guardtest needs to test the marks of a database.
func (e *env) store() guardtest.Harness {
	other := e.connect(poolSize)
	return guardtest.Harness{
		New: func(ctx context.Context) (guard.Store, error) {
			_, err := e.admin.Exec(ctx, "DELETE FROM fencepost.marks")
			return e.open(nil), err
		},
		Replica: func(context.Context, guard.Store) (guard.Store, error) { return e.on(other, nil), nil },
		Rounds:  6,
		Margin:  2 * time.Millisecond,
	}
}

// TestStore: the marks of a database are a guard.Store, shared by replicas and
// kept across a restart of the process.
func TestStore(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		h := e.store()
		h.Reopen = func(context.Context, guard.Store) (guard.Store, error) { return e.single(), nil }
		if longtest.Long {
			h.Rounds = 0 // as many as the suite wants
		}
		guardtest.Run(t, h)
	})
}

// TestStoreControls: the suite detects a broken database function.
func TestStoreControls(t *testing.T) {
	type mutation struct{ function, old, new string }
	for name, mutations := range map[string][]mutation{
		// All callers that race for a new resource have read that it has no
		// mark before the first of them writes one.
		"no lock, read before written": {{"raise", "PERFORM pg_advisory_xact_lock(", "PERFORM ("},
			{"raise", "INSERT INTO fencepost.marks", "PERFORM public.meet() WHERE starts_with(p_resource, 'new '); INSERT INTO fencepost.marks"}},
		"retire forgets the floor": {{"retire", "ELSIF retired > 0", "ELSIF false"}},
		"retire lowers the floor":  {{"retire", "greatest(f.token, excluded.token)", "excluded.token"}},
	} {
		t.Run(name, func(t *testing.T) {
			e := someEnv(t)
			h := e.store()
			h.Rounds = 1
			e.exec(fmt.Sprintf(`CREATE SEQUENCE met;
				CREATE FUNCTION meet() RETURNS void LANGUAGE plpgsql AS $$ DECLARE n bigint := nextval('public.met'); BEGIN
					WHILE (SELECT last_value FROM public.met) < (n + %[1]d - 1) / %[1]d * %[1]d LOOP PERFORM pg_sleep(0.001); END LOOP; END $$`, 8)) // guardtest's callers
			for _, m := range mutations {
				e.mutate(m.function, m.old, m.new)
			}
			if failures := guardtest.Check(t.Context(), h); len(failures) == 0 {
				t.Error("the suite passed")
			}
		})
	}
}

// crossRetire makes two retirements meet the same rows in opposite order: the
// first sees a before b and waits in front of them; then a is written again and
// comes after b for the second, which waits between the two.
func (e *env) crossRetire() (err error) {
	e.Helper()
	ctx := context.Background()
	e.exec(`TRUNCATE fencepost.marks;
		INSERT INTO fencepost.marks (resource, token, raised_at) VALUES ('first', 1, '2000-03-01'), ('a', 2, '2000-01-01'), ('b', 3, '2000-01-01'), ('between', 4, '2000-01-01')`)
	hold := func(resource string) (release func()) {
		tx := e.begin("SELECT FROM fencepost.marks WHERE resource = $1 FOR UPDATE", resource)
		return func() { tx.Rollback(ctx) }
	}
	waiting := func(n int) {
		e.waitFor("the retirements", "SELECT ("+blockedSQL+") = $1", n)
	}
	done := make(chan error, 2)
	retire := func(month time.Month) {
		_, err := e.db.Retire(ctx, time.Date(2000, month, 2, 0, 0, 0, 0, time.UTC))
		done <- err
	}
	releaseFirst, releaseBetween := hold("first"), hold("between")
	go retire(time.March)
	waiting(1)
	e.exec("UPDATE fencepost.marks SET lease_id = 'x' WHERE resource = 'a'")
	go retire(time.January)
	waiting(2)
	releaseFirst()
	waiting(2) // the first is at b now, if it may proceed to it
	releaseBetween()
	return errors.Join(<-done, <-done)
}

// TestRetireTogether: two retirements at once do not deadlock. The control takes no
// lock, and does.
func TestRetireTogether(t *testing.T) {
	e := someEnv(t)
	e.db = e.serverDefault("deadlock_timeout", "50ms")
	noError(t, e.crossRetire())
	e.mutate("retire", "PERFORM pg_advisory_xact_lock(", "PERFORM (")
	wantSays(t, e.crossRetire(), guard.ReasonUnavailable, "40P01", "without the lock, the control")
}

// TestLostReset (P5): a reset that loses its connection at its statement changed
// nothing; at its COMMIT nobody knows.
func TestLostReset(t *testing.T) {
	e := newEnvOf(t, "pgx")
	p, through := e.newProxy()
	db := e.open(nil, through)
	for what, c := range map[string]struct {
		rule func(string) fate
		want guard.Reason
		to   int64
	}{
		"the statement":    {on("fencepost.reset(", cutBefore), guard.ReasonUnavailable, 5},
		"COMMIT, not sent": {onCommit(cutBefore), guard.ReasonOutcomeUnknown, 5},
		"COMMIT":           {onCommit(cutAfter), guard.ReasonOutcomeUnknown, 4},
	} {
		e.exec("DELETE FROM fencepost.marks")
		must(t, e.db.Raise(t.Context(), claimOf("r", 5)))
		p.set(c.rule)
		err := db.Reset(t.Context(), "r", guard.Mark{Token: 5, LeaseID: "lease-5"}, guard.Mark{Token: 4}, 9, "op", "why")
		p.set(nil)
		wantReason(t, err, c.want, "%s", what)
		e.wantInt(c.to, what+": the mark", "SELECT token FROM fencepost.marks WHERE resource = 'r'")
	}
}
