package sqlfence

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/testkit"
)

// setRoles are the ways in which a login gets another role in each of its sessions.
var setRoles = map[string]struct {
	attributes string
	always     bool // ALTER ROLE ... SET ROLE, as Vault is told to; else the program asks for the role
}{
	"of the login":              {"LOGIN PASSWORD 'secret'", true},
	"of the login, NOINHERIT":   {"LOGIN NOINHERIT PASSWORD 'secret'", true},
	"of the program, NOINHERIT": {"LOGIN NOINHERIT PASSWORD 'secret'", false},
}

// group is a role with an enforcer's rights, of which login makes members that write as it.
func (e *env) group(what string) (group string, login func(what, attributes string, always bool, opts *Options) (string, fence)) {
	e.Helper()
	group = e.newRole(what, "NOLOGIN")
	e.exec("GRANT USAGE ON SCHEMA fencepost TO " + group + "; GRANT INSERT ON written TO " + group +
		"; GRANT EXECUTE ON FUNCTION fencepost.raise, fencepost.enter, fencepost.set_marker, fencepost.holders, fencepost.session TO " + group)
	return group, func(what, attributes string, always bool, opts *Options) (string, fence) {
		name := e.newRole(what, attributes+" IN ROLE "+group)
		if always {
			e.exec("ALTER ROLE " + name + " SET ROLE " + group)
		}
		return name, e.open(opts, func(c *pgx.ConnConfig) {
			c.User, c.Password = name, "secret"
			if !always {
				c.RuntimeParams["role"] = group
			}
		})
	}
}

// TestSetRole (P2): a raise ends the sessions of its own login whatever role they, and it,
// have taken: the server shows and ends sessions by the role at the moment.
func TestSetRole(t *testing.T) {
	someDriver(t, func(t *testing.T, e *env) {
		e.createWritten()
		for what, c := range setRoles {
			e.exec("DELETE FROM fencepost.marks; DELETE FROM written")
			group, login := e.group("g" + itoa(len(what)))
			_, db := login("l"+itoa(len(what)), c.attributes, c.always, &Options{TerminateAfter: time.Millisecond, RaiseTimeout: patience})
			for how, sql := range map[string]string{"idle": "SELECT 1", "at work": "SELECT pg_sleep(3600)"} {
				e.exec("DELETE FROM fencepost.marks")
				must(t, db.Raise(t.Context(), claimOf("r", 5)))
				var as string
				next := make(chan struct{})
				old := e.start(func(paused func()) error {
					return db.fenced(context.Background(), claimOf("r", 5), func(ctx context.Context, tx testTx) error {
						if _, err := tx.in().Exec(ctx, "INSERT INTO written VALUES (5)", nil); err != nil {
							return err
						}
						if err := tx.in().Query(ctx, "SELECT current_user::text", nil, func(scan func(...any) error) error { return scan(&as) }); err != nil {
							return err
						}
						paused()
						if how == "idle" {
							<-next
						}
						_, err := tx.exec(ctx, sql)
						return err
					})
				})
				noError(t, db.Raise(t.Context(), claimOf("r", 6)), "%s, %s", what, how)
				close(next)
				wantReason(t, <-old, guard.ReasonStale, "the holder: %s, %s", what, how)
				if as != group {
					t.Errorf("%s: the holder is %s, want %s", what, as, group)
				}
			}
			e.wantInt(0, "rows of the old holder", "SELECT count(*) FROM written")
		}
	})
}

// TestOtherLogin (P2, P6): a login may not see and end the sessions of another one, also if
// both write as the same role. A raise that waits for one says which rights it lacks, and
// Verify says so before. With the rights it ends the session.
func TestOtherLogin(t *testing.T) {
	someDriver(t, func(t *testing.T, e *env) {
		e.createWritten()
		group, login := e.group("group")
		_, old := login("old", "LOGIN PASSWORD 'secret'", true, nil)
		name, db := login("new", "LOGIN PASSWORD 'secret'", true, &Options{TerminateAfter: time.Millisecond, RaiseTimeout: patience})
		verify := func() (found []string) {
			t.Helper()
			all, err := e.db.Verify(t.Context(), Verification{Role: group})
			must(t, err)
			for _, f := range all {
				if strings.Contains(f.Problem, "may not see") {
					found = append(found, f.String())
				}
			}
			return found
		}
		must(t, db.Raise(t.Context(), claimOf("r", 5)))
		end := e.holdingOn(old, claimOf("r", 5))
		looked := e.countLooks()
		endRaise := e.raising(db, claimOf("r", 6))
		looked(3)
		wantSays(t, endRaise(), guard.ReasonUnavailable, "grant this login pg_read_all_stats and pg_signal_backend", "the raise")
		if found := verify(); len(found) != 2 || !strings.Contains(strings.Join(found, " "), name) {
			t.Errorf("Verify found %q, want one of each login", found)
		}
		e.exec("GRANT pg_read_all_stats TO " + name)
		endRaise = e.raising(db, claimOf("r", 6))
		looked(6)
		wantSays(t, endRaise(), guard.ReasonUnavailable, "may not end: grant it pg_signal_backend", "the raise, which sees")
		e.exec("REVOKE pg_read_all_stats FROM " + name + "; GRANT pg_read_all_stats, pg_signal_backend TO " + group)
		noError(t, db.Raise(t.Context(), claimOf("r", 6)), "the raise, which sees and may end")
		if end() == nil {
			t.Error("the old holder was not ended")
		}
		if found := verify(); len(found) != 0 {
			t.Errorf("Verify found %q", found)
		}
	})
}

// TestExclusiveStranger (P6): a raise that waits for a session that only took the resource's
// lock, for all or for one, says so and does not end it. Who holds it exclusively blocks the
// transactions of the holder, too, and they name the session.
func TestExclusiveStranger(t *testing.T) {
	someDriver(t, func(t *testing.T, e *env) {
		must(t, e.db.Raise(t.Context(), claimOf("r", 5)))
		stranger, err := e.admin.Acquire(t.Context())
		must(t, err)
		defer stranger.Release()
		pid := "pid " + itoa(int(stranger.Conn().PgConn().PID()))
		for _, lock := range []string{"SELECT pg_advisory_lock_shared(%s)", "BEGIN; SELECT pg_advisory_lock_shared(%s)", "SELECT pg_advisory_lock(%s)", "BEGIN; SELECT pg_advisory_xact_lock(%s)"} {
			_, err := stranger.Exec(t.Context(), fmt.Sprintf(lock, "fencepost.lock_key('r')"))
			must(t, err)
			var log logged
			looked := e.countLooks()
			endRaise := e.raising(e.open(&Options{RaiseTimeout: patience, TerminateAfter: time.Millisecond, Logger: slog.New(slog.NewTextHandler(&log, nil))}), claimOf("r", 6))
			looked(3)
			waited := map[string]error{"a raise": endRaise()}
			testkit.Eventually(t, "the report", func() bool { return strings.Contains(log.String(), "waits for older holders") })
			if strings.Contains(log.String(), "terminating") {
				t.Errorf("%q: logged %s", lock, &log)
			}
			if !strings.Contains(lock, "shared") {
				hasty := e.open(&Options{LockTimeout: time.Millisecond})
				waited["InTx"] = hasty.fenced(t.Context(), claimOf("r", 5), ran)
				_, waited["Exec"] = hasty.fencedExec(t.Context(), claimOf("r", 5), "SELECT 1")
				waited["Enter"] = hasty.plain(t.Context(), enters(claimOf("r", 5)))
			}
			for what, err := range waited {
				wantSays(t, err, guard.ReasonUnavailable, pid, "%s, %s", lock, what)
				wantSays(t, err, guard.ReasonUnavailable, "without entering", "%s, %s", lock, what)
			}
			_, err = stranger.Exec(t.Context(), "SELECT pg_advisory_unlock_all(); COMMIT") // it was not ended
			must(t, err)
		}
		noError(t, e.db.Raise(t.Context(), claimOf("r", 6)))
	})
}
