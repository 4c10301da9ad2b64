package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost-go/fencepost/guard"
)

// unwritable is a standard output that nobody reads.
type unwritable struct{}

func (unwritable) Write([]byte) (int, error) { return 0, syscall.EPIPE }

// A reader that goes away does not keep a command that cuts from raising, or from saying
// that it could not.
func TestReaderGoesAway(t *testing.T) {
	t.Parallel()
	url, pool := database(t)
	lease := hold(t, pool, "worker-1", "billing", time.Hour)
	tried := false
	_ = fenced(t, pool).InTx(t.Context(), lease.Claim(), func(ctx context.Context, tx pgx.Tx) error { // the raise waits for it
		if _, err := tx.Exec(ctx, "SELECT"); err != nil {
			return err
		}
		tried = true
		r, w, err := os.Pipe()
		if err != nil {
			return err
		}
		defer w.Close()
		r.Close()
		cmd := program(t, []string{"DATABASE_URL=" + url}, "force-unlock", "billing", "--actor", "ana", "--reason", "it hangs", "--raise", "--raise-timeout", "200ms", "--yes")
		var errOut strings.Builder
		cmd.Stdout, cmd.Stderr = w, &errOut
		if cmd.Run(); cmd.ProcessState.ExitCode() != exitPartial || !strings.Contains(errOut.String(), "go on with") {
			t.Errorf("%v: %s", cmd.ProcessState, errOut.String())
		}
		return nil
	})
	if !tried {
		t.Error("there was no transaction")
	}
}

// TestPartialExitCode: a command that fails after it has changed something does not
// exit with a code that says that nothing was changed, and its message says what
// was. The control of each is the same command that changes nothing before.
func TestPartialExitCode(t *testing.T) {
	t.Parallel()
	t.Run("purge", func(t *testing.T) {
		t.Parallel()
		url, pool := database(t)
		// The second of three rows cannot be deleted, and each is a batch.
		exec1(t, pool, `CREATE FUNCTION public.busy() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN IF old.resource = 'r1' THEN RAISE EXCEPTION 'busy' USING ERRCODE = '55P03'; END IF; RETURN old; END $$`)
		exec1(t, pool, "CREATE TRIGGER busy BEFORE DELETE ON fencepost.leases FOR EACH ROW EXECUTE FUNCTION public.busy()")
		for _, c := range []struct{ first, code int }{{0, exitPartial}, {1, exitUnavailable}} {
			for n := c.first; n < 3; n++ {
				if err := hold(t, pool, "w", fmt.Sprint("r", n), time.Minute).Release(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			exec1(t, pool, "UPDATE fencepost.leases SET acquired_at = acquired_at - interval '30 days', expires_at = expires_at - interval '30 days'")
			r := fencectl(t, url, "--timeout", "1s", "purge", "--batch", "1", "--yes")
			left := value[int](t, pool, "SELECT count(*) FROM fencepost.leases WHERE resource <> ''")
			if r.code != c.code || left != 2 || strings.Contains(r.errOut, "1 row deleted") != (c.code == exitPartial) {
				t.Errorf("exit code %d, want %d, with %d of %d rows left: %s", r.code, c.code, left, 3-c.first, r.errOut)
			}
		}
	})
	t.Run("nothing can be printed", func(t *testing.T) {
		t.Parallel()
		url, pool := database(t)
		hold(t, pool, "w", "held", time.Hour)
		raise := func(token guard.Token) {
			if err := fenced(t, pool).Raise(t.Context(), guard.Claim{Resource: "marked", Token: token, LeaseID: "x"}); err != nil {
				t.Fatal(err)
			}
		}
		raise(7000)
		for _, c := range []struct{ line, done string }{
			{"force-unlock held --actor a --reason r --yes", "may still write until a higher token arrives"},
			{"force-unlock held --actor a --reason r --raise --yes", "is invalidated, which"},
			{"marks raise other 5 --lease-id l --above-issuer --yes", "the mark of other is 5"},
			{"marks reset marked --from 7000 --to 6000 --issuers-last 6000 --actor a --reason r --yes", "the mark of marked is 6000, was 7000"},
			{"marks retire --older-than 1us --yes", "marks retired, the floor is"},
			{"advance other 8000 --yes", "every later token is above 8000"},
			{"advance --floor 9000 --yes", "every later token is above 9000"},
			{"purge --older-than 1ms --yes", "deleted"},
			{"epoch raise --yes", "the epoch is"},
			{"migrate --yes", "version"},
		} {
			for _, format := range []string{"table", "json"} {
				if strings.HasPrefix(c.line, "marks re") && format == "json" { // done before
					break
				}
				var errOut strings.Builder
				code := run(t.Context(), onDatabase(url, append(strings.Fields(c.line), "-o", format)), nil, unwritable{}, &errOut)
				if code != exitPartial || !strings.Contains(errOut.String(), c.done) || !strings.Contains(errOut.String(), "could not be printed") {
					t.Errorf("%s: exit code %d, %s", c.line, code, errOut.String())
				}
			}
		}
		// The control: what changes nothing is no part.
		if code := run(t.Context(), onDatabase(url, []string{"show", "held"}), nil, unwritable{}, io.Discard); code != exitOther {
			t.Errorf("show: exit code %d", code)
		}
	})
	t.Run("marks retire", func(t *testing.T) {
		t.Parallel()
		url, pool := database(t)
		floor := func() int64 {
			return value[int64](t, pool, "SELECT coalesce(max(token), 0) FROM fencepost.leases WHERE resource = ''")
		}
		if err := fenced(t, pool).Raise(t.Context(), guard.Claim{Resource: "old", Token: 7000, LeaseID: "x"}); err != nil {
			t.Fatal(err)
		}
		exec1(t, pool, "UPDATE fencepost.marks SET raised_at = '2000-01-01'")
		hold(t, pool, "w", "r", time.Minute)
		before := floor()
		waits := []string{"marks", "retire", "--wait", "1s", "--yes"}
		r := fencectl(t, url, waits...)
		if after := floor(); after == before || r.code != exitPartial || !strings.Contains(r.errOut, "waiting for 1 lease") || !strings.Contains(r.errOut, "no mark was retired") {
			t.Errorf("exit code %d, want %d; the floor went from %d to %d: %s", r.code, exitPartial, before, after, r.errOut)
		}
		// With -o json standard error has the error and nothing else.
		r = fencectl(t, url, append(waits, "-o", "json")...)
		var said struct {
			Code    int
			Message string
		}
		if err := json.Unmarshal([]byte(r.errOut), &said); err != nil || said.Code != exitPartial || !strings.Contains(said.Message, "no mark was retired") {
			t.Errorf("%v, exit code %d: %s", err, r.code, r.errOut)
		}
		// The store fails: the floor is raised, and the marks are there.
		exec1(t, pool, "UPDATE fencepost.leases SET lease_id = NULL WHERE resource = 'r'")
		exec1(t, pool, "ALTER FUNCTION fencepost.retire RENAME TO gone")
		if r := fencectl(t, url, "marks", "retire", "--wait", "0s", "--yes"); r.code != exitPartial || !strings.Contains(r.errOut, "no mark was retired") {
			t.Errorf("exit code %d, want %d: %s", r.code, exitPartial, r.errOut)
		}
		must(t, url, "marks", "retire", "--older-than", "1000000h", "--yes") // nothing to do
	})
}
