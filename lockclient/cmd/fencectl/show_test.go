package main

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/urfave/cli/v3"
)

// truth says which claims a fence admits: the mark's, the lease's, an older one
// and the next grant's.
type truth struct{ mark, lease, older, next bool }

// errNotKept ends a transaction that only tries a claim.
var errNotKept = errors.New("not kept")

// admits presents a claim to a real fence. What it writes is rolled back.
func admits(t *testing.T, pool *pgxpool.Pool, claim guard.Claim) bool {
	t.Helper()
	err := fenced(t, pool).InTx(t.Context(), claim, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SELECT"); err != nil {
			return err
		}
		return errNotKept
	})
	var refused *guard.RejectedError
	if !errors.Is(err, errNotKept) && !errors.As(err, &refused) {
		t.Fatalf("%+v: %v", claim, err)
	}
	return errors.Is(err, errNotKept)
}

// opened returns a session of the program's, as a command would open it.
func opened(t *testing.T, url string) *session {
	t.Helper()
	s, err := onPool(dial(t, url), time.Minute, 0)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func advance(t *testing.T, s *session, resource string, above guard.Token) {
	t.Helper()
	if _, err := s.op.Advance(t.Context(), resource, above); err != nil {
		t.Fatal(err)
	}
}

// TestPartialAudit: show says so if it has not searched all of the audit.
func TestPartialAudit(t *testing.T) {
	t.Parallel()
	url, pool := database(t)
	lease := hold(t, pool, "w", "r", time.Hour)
	must(t, url, "force-unlock", lease.Resource(), "--actor", "a", "--reason", "r", "--yes")
	for _, others := range []int{searchedMost - 2, searchedMost} {
		exec1(t, pool, `INSERT INTO fencepost.audit (id, action, resource, actor, reason, request_id, token, cut_state, cut_token, cut_owner, cut_acquired_at, cut_expires_at)
			SELECT i + (SELECT max(id) FROM fencepost.audit), 'force_unlock', 'r:' || i, 'a', 'b', gen_random_uuid(), 1, 'free', 1, '', now(), now() FROM generate_series(1, $1 - (SELECT count(*) FROM fencepost.audit WHERE resource <> 'r')) i`, others)
		out := must(t, url, "show", "r")
		if partial := strings.Contains(out, "there may be more"); partial != (others == searchedMost) || partial == strings.Contains(out, lockadmin.ActionForceUnlock) {
			t.Errorf("after %d records of other names: %s", others, out)
		}
	}
}

// TestAuditNotRead: show says so to a role that may not read the audit.
func TestAuditNotRead(t *testing.T) {
	t.Parallel()
	url, pool := database(t)
	hold(t, pool, "w", "r", time.Hour)
	must(t, url, "force-unlock", "r", "--actor", "a", "--reason", "it hangs", "--yes")
	at := as(t, url, pool)
	login, _, _ := strings.Cut(strings.TrimPrefix(at, "postgres://"), ":")
	t.Cleanup(func() { exec1(t, pool, "DROP OWNED BY "+login); exec1(t, pool, "DROP ROLE "+login) })
	exec1(t, pool, "GRANT USAGE ON SCHEMA fencepost TO "+login)
	exec1(t, pool, "GRANT SELECT ON fencepost.leases, fencepost.marks, fencepost.migrations TO "+login)
	for at, partial := range map[string]bool{url: false, at: true} {
		if out := must(t, at, "show", "r"); strings.Contains(out, "the audit was not read: ") != partial || strings.Contains(out, "it hangs") == partial {
			t.Errorf("partial: %v: %s", partial, out)
		}
		if out := must(t, at, "show", "r", "-o", "json"); strings.Contains(out, `"auditPartial":true`) != partial {
			t.Errorf("partial: %v: %s", partial, out)
		}
	}
}

// shows prints a view for people.
func shows(v *view, out io.Writer) error {
	return (&call{app: &app{out: out}, cmd: &cli.Command{}}).printView(v)
}

// TestVerdictsAreTrue: every sentence of show, on a database in which it is
// printed, is what a real fence does with the claims that it mentions.
func TestVerdictsAreTrue(t *testing.T) {
	t.Parallel()
	url, pool := database(t)
	raise := func(claim guard.Claim) {
		if err := fenced(t, pool).Raise(t.Context(), claim); err != nil {
			t.Fatal(err)
		}
	}
	s := opened(t, url)
	cut := func(lease *lockclient.Lease, more ...string) {
		must(t, url, append([]string{"force-unlock", lease.Resource(), "--actor", "a", "--reason", "r", "--yes"}, more...)...)
	}
	seen := map[string]bool{"unread": true} // below
	for _, c := range []struct {
		name, verdict string
		make          func(lease *lockclient.Lease)
		truth
	}{
		{"unmarked", "unmarked", func(*lockclient.Lease) {}, truth{lease: true, older: true, next: true}},
		{"unmarked-free", "unmarked", func(l *lockclient.Lease) { l.Release(t.Context()) }, truth{lease: true, older: true, next: true}},
		{"current", "current", func(l *lockclient.Lease) { raise(l.Claim()) }, truth{mark: true, lease: true, next: true}},
		{"expired", "expired", func(l *lockclient.Lease) {
			raise(l.Claim())
			exec1(t, pool, "UPDATE fencepost.leases SET expires_at = clock_timestamp() WHERE resource = $1", l.Resource())
		}, truth{mark: true, lease: true, next: true}},
		{"released", "released", func(l *lockclient.Lease) { raise(l.Claim()); l.Release(t.Context()) }, truth{mark: true, lease: true, next: true}},
		{"released-otherwise", "released", func(l *lockclient.Lease) {
			l.Release(t.Context())
			raise(guard.Claim{Resource: l.Resource(), Token: l.Token(), LeaseID: "never granted"})
		}, truth{mark: true, next: true}},
		{"invalidated", "invalidated", func(l *lockclient.Lease) { raise(l.Claim()); cut(l, "--raise") }, truth{mark: true, next: true}},
		{"invalidated-free", "invalidated", func(l *lockclient.Lease) { l.Release(t.Context()); cut(l, "--raise") }, truth{mark: true, next: true}},
		{"behind", "behind", func(l *lockclient.Lease) {
			raise(guard.Claim{Resource: l.Resource(), Token: l.Token() - 1, LeaseID: "old"})
		}, truth{mark: true, lease: true, older: true, next: true}},
		{"behind-cut", "behind", func(l *lockclient.Lease) { raise(l.Claim()); cut(l) }, truth{mark: true, lease: true, next: true}},
		{"ahead", "ahead", func(l *lockclient.Lease) {
			raise(guard.Claim{Resource: l.Resource(), Token: l.Token() + 1, LeaseID: "later"})
			if _, err := s.op.AdvanceFloor(t.Context(), 100); err != nil {
				t.Fatal(err)
			}
		}, truth{mark: true, next: true}},
		{"conflict", "conflict", func(l *lockclient.Lease) {
			raise(guard.Claim{Resource: l.Resource(), Token: l.Token(), LeaseID: "another"})
		}, truth{mark: true, next: true}},
		{"conflict-empty", "conflict", func(l *lockclient.Lease) { raise(guard.Claim{Resource: l.Resource(), Token: l.Token()}) }, truth{mark: true, next: true}},
		{"mark_ahead", "mark_ahead", func(l *lockclient.Lease) {
			raise(guard.Claim{Resource: l.Resource(), Token: 1 << 50, LeaseID: "made up"})
		}, truth{mark: true}},
		{"ahead-by-one", "mark_ahead", func(l *lockclient.Lease) { // of two grants the second is admitted
			raise(guard.Claim{Resource: l.Resource(), Token: l.Token() + 1, LeaseID: "made up"})
		}, truth{mark: true}},
		{"invalidated-otherwise", "ungranted", func(l *lockclient.Lease) {
			cut(l)
			raise(guard.Claim{Resource: l.Resource(), Token: l.Token() + 1, LeaseID: "not the request's"})
		}, truth{mark: true, next: true}},
		{"advanced", "ungranted", func(l *lockclient.Lease) {
			above := l.Token() + 10
			l.Release(t.Context())
			raise(guard.Claim{Resource: l.Resource(), Token: above, LeaseID: "elsewhere"})
			advance(t, s, l.Resource(), above)
		}, truth{mark: true, next: true}},
		// The last, since the floor is every resource's.
		{"floor_only", "floor_only", func(l *lockclient.Lease) {
			exec1(t, pool, "INSERT INTO fencepost.marks (resource, token, raised_at) VALUES ('old', $1, '2000-01-01')", int64(l.Token())-1)
			if _, err := fenced(t, pool).Retire(t.Context(), time.Now().Add(-time.Hour)); err != nil {
				t.Fatal(err)
			}
		}, truth{lease: true, next: true}},
	} {
		advance(t, s, c.name, 4)
		lease := hold(t, pool, "w", c.name, time.Hour)
		c.make(lease)
		v, err := s.look(t.Context(), c.name)
		if err != nil || v.Verdict != c.verdict {
			t.Fatalf("%s: %v: %+v in place of %s", c.name, err, v, c.verdict)
		}
		var out strings.Builder
		if err := shows(v, &out); err != nil || !strings.Contains(out.String(), verdicts[c.verdict]) {
			t.Errorf("%s: %v: %s", c.name, err, out.String())
		}
		seen[v.Verdict] = true
		// What is admitted raises the mark, so the oldest comes first.
		got := truth{older: admits(t, pool, guard.Claim{Resource: c.name, Token: lease.Token() - 1, LeaseID: "old"})}
		if v.Mark != nil {
			got.mark = admits(t, pool, guard.Claim{Resource: c.name, Token: v.Mark.Token, LeaseID: v.Mark.LeaseID})
		}
		got.lease = admits(t, pool, lease.Claim())
		exec1(t, pool, "UPDATE fencepost.leases SET lease_id = NULL WHERE resource = $1", c.name)
		got.next = admits(t, pool, hold(t, pool, "next", c.name, time.Hour).Claim())
		if got != c.truth {
			t.Errorf("%s says %q, and the fence admits %+v, expected %+v", c.name, verdicts[c.verdict], got, c.truth)
		}
	}
	for verdict := range verdicts {
		if !seen[verdict] && verdict != "elsewhere" { // that one is of other engines, see TestOneForm
			t.Errorf("%s is not tested", verdict)
		}
	}
	exec1(t, pool, "ALTER TABLE fencepost.marks RENAME TO elsewhere")
	if out := must(t, url, "show", "current"); !strings.Contains(out, verdicts["unread"]) {
		t.Error(out)
	}
}

// TestShowRaises: the command that show prints fences a holder that was cut
// without --raise, even one that has not written yet; for a holder that nobody cut
// it prints none.
func TestShowRaises(t *testing.T) {
	t.Parallel()
	url, pool := database(t)
	leases := map[string]*lockclient.Lease{}
	for _, resource := range []string{"behind", "unmarked"} {
		leases[resource] = hold(t, pool, "w", resource, time.Hour)
	}
	if err := fenced(t, pool).Raise(t.Context(), leases["behind"].Claim()); err != nil {
		t.Fatal(err)
	}
	for resource, lease := range leases {
		if out := must(t, url, "show", resource); strings.Contains(out, "to fence it now") {
			t.Error(out)
		}
		must(t, url, "force-unlock", resource, "--actor", "a", "--reason", "r", "--yes")
		_, command, found := strings.Cut(must(t, url, "show", resource), "to fence it now: fencectl ")
		command, _, _ = strings.Cut(command, "\n")
		if !found {
			t.Fatal("show does not say how to raise the invalidated claim of " + resource)
		}
		if !admits(t, pool, lease.Claim()) {
			t.Errorf("control: the cut holder of %s is refused before", resource)
		}
		must(t, url, append(strings.Fields(command), "--yes")...)
		if admits(t, pool, lease.Claim()) {
			t.Errorf("the cut holder of %s still writes", resource)
		}
	}
}

// TestOwnerOfFreeLeaseIsNotNamed: force-unlocking a lease that nobody holds
// names nobody: not as cut, not in the audit, not as the owner of the invalidated
// token, once or twice.
func TestOwnerOfFreeLeaseIsNotNamed(t *testing.T) {
	t.Parallel()
	url, pool := database(t)
	hold(t, pool, "former", "free", time.Hour).Release(t.Context())
	for range 2 {
		r := fencectl(t, url, "force-unlock", "free", "--actor", "a", "--reason", "r", "--yes")
		if r.code != exitOK || strings.Contains(r.out+r.errOut, "former") || strings.Contains(r.errOut, "cut holder") || !strings.Contains(r.out, "held by:               nobody\n") {
			t.Errorf("%+v", r)
		}
	}
	for _, args := range [][]string{{"audit"}, {"show", "free"}, {"list", "--state", "free"}} {
		if out := must(t, url, args...); strings.Contains(out, "former") {
			t.Errorf("%q: %s", args, out)
		}
	}
	hold(t, pool, "crashed", "expired", time.Hour)
	exec1(t, pool, "UPDATE fencepost.leases SET expires_at = clock_timestamp() WHERE resource = 'expired'")
	if out := must(t, url, "force-unlock", "expired", "--actor", "a", "--reason", "r", "--yes"); !strings.Contains(out, "nobody; crashed until it expired") {
		t.Errorf("%s", out)
	}
	hold(t, pool, "holder", "held", time.Hour) // the control
	if out := must(t, url, "force-unlock", "held", "--actor", "a", "--reason", "r", "--yes"); !strings.Contains(out, "held by:               holder\n") {
		t.Errorf("%s", out)
	}
}

// TestClockSetBack: a lease that was granted later than the server's clock shows is
// explained, and doctor finds it.
func TestClockSetBack(t *testing.T) {
	t.Parallel()
	url, pool := database(t)
	hold(t, pool, "w", "r", time.Hour)
	if out := must(t, url, "show", "r"); strings.Contains(out, "set back") {
		t.Error(out)
	}
	exec1(t, pool, "UPDATE fencepost.leases SET acquired_at = acquired_at + interval '2 hours' WHERE resource = 'r'")
	if out := must(t, url, "show", "r"); !strings.Contains(out, "the server's clock was set back since it was granted") {
		t.Error(out)
	}
	if out := fencectl(t, url, "doctor").out; !strings.Contains(out, "clock set back") {
		t.Error(out)
	}
}
