package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/internal/opcmd"
)

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
		for _, c := range []struct{ first, code int }{{0, opcmd.ExitPartial}, {1, opcmd.ExitUnavailable}} {
			for n := c.first; n < 3; n++ {
				if err := hold(t, pool, "w", fmt.Sprint("r", n), time.Minute).Release(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			exec1(t, pool, "UPDATE fencepost.leases SET acquired_at = acquired_at - interval '30 days', expires_at = expires_at - interval '30 days'")
			r := fencectl(t, url, "--timeout", "1s", "purge", "--batch", "1", "--yes")
			left := value[int](t, pool, "SELECT count(*) FROM fencepost.leases WHERE resource <> ''")
			if r.code != c.code || left != 2 || strings.Contains(r.errOut, "1 row deleted") != (c.code == opcmd.ExitPartial) {
				t.Errorf("exit code %d, want %d, with %d of %d rows left: %s", r.code, c.code, left, 3-c.first, r.errOut)
			}
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
		if after := floor(); after == before || r.code != opcmd.ExitPartial || !strings.Contains(r.errOut, "waiting for 1 lease") || !strings.Contains(r.errOut, "no mark was retired") {
			t.Errorf("exit code %d, want %d; the floor went from %d to %d: %s", r.code, opcmd.ExitPartial, before, after, r.errOut)
		}
		// With -o json standard error has the error and nothing else.
		r = fencectl(t, url, append(waits, "-o", "json")...)
		var said struct {
			Code    int
			Message string
		}
		if err := json.Unmarshal([]byte(r.errOut), &said); err != nil || said.Code != opcmd.ExitPartial || !strings.Contains(said.Message, "no mark was retired") {
			t.Errorf("%v, exit code %d: %s", err, r.code, r.errOut)
		}
		// The store fails: the floor is raised, and the marks are there.
		exec1(t, pool, "UPDATE fencepost.leases SET lease_id = NULL WHERE resource = 'r'")
		exec1(t, pool, "ALTER FUNCTION fencepost.retire RENAME TO gone")
		if r := fencectl(t, url, "marks", "retire", "--wait", "0s", "--yes"); r.code != opcmd.ExitPartial || !strings.Contains(r.errOut, "no mark was retired") {
			t.Errorf("exit code %d, want %d: %s", r.code, opcmd.ExitPartial, r.errOut)
		}
		must(t, url, "marks", "retire", "--older-than", "1000000h", "--yes") // nothing to do
	})
}
