package pgadmin

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin"

	"github.com/jackc/pgx/v5"
)

// TestInspectObstacles: a VACUUM FULL that waits behind a dump, and keeps everybody out
// meanwhile, is named, with the dump, and does not make Inspect fail; the dump's snapshot
// and row-level security are seen. Without them nothing is.
func TestInspectObstacles(t *testing.T) {
	t.Parallel()
	owner := migrated(t)
	o := newRoleOperator(t, owner)
	read := func() (in inspection) {
		err := o.do(t.Context(), func(ctx context.Context, conn *pgx.Conn, _ string) (err error) {
			in, err = inspect(ctx, conn)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return in
	}
	if in := read(); in.locker != 0 || in.rowSecurity != nil {
		t.Errorf("control: %+v", in)
	}
	mustExec(t, owner, "ALTER TABLE fencepost.spent ENABLE ROW LEVEL SECURITY")
	if in := read(); !slices.Equal(in.rowSecurity, []string{"spent"}) {
		t.Errorf("row-level security: %q", in.rowSecurity)
	}
	mustExec(t, owner, "ALTER TABLE fencepost.spent DISABLE ROW LEVEL SECURITY")
	connect := func() *pgx.Conn {
		conn, err := pgx.ConnectConfig(t.Context(), owner.Config().ConnConfig)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close(context.Background()) })
		return conn
	}
	dump, vacuum := connect(), connect()
	if _, err := dump.Exec(t.Context(), "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM fencepost.leases"); err != nil {
		t.Fatal(err)
	}
	if in := read(); in.snapshot != int(dump.PgConn().PID()) || in.snapshotAge <= 0 {
		t.Errorf("the dump's snapshot: process %d, %v", in.snapshot, in.snapshotAge)
	}
	done := make(chan error, 1)
	go func() {
		_, err := vacuum.Exec(context.Background(), "VACUUM FULL fencepost.leases")
		done <- err
	}()
	eventually(t, "it waits", func() bool {
		in := read()
		return in.locker == int(vacuum.PgConn().PID()) && slices.Equal(in.lockerWaitsFor, []int32{int32(dump.PgConn().PID())})
	})
	if _, err := dump.Exec(t.Context(), "ROLLBACK"); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	if in := read(); in.locker != 0 || in.snapshot == int(dump.PgConn().PID()) {
		t.Errorf("afterwards: %+v", in)
	}
}

// TestInspectRowLock: a forgotten transaction that has locked rows of the leases is named, with
// what it does, and the statement that ends it. Without it there is none.
func TestInspectRowLock(t *testing.T) {
	t.Parallel()
	owner := migrated(t)
	o := newRoleOperator(t, owner)
	blocker := func() lockadmin.Finding {
		t.Helper()
		found, err := o.Inspect(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return of(t, found, "blocker")
	}
	if f := blocker(); f.Severity != lockadmin.SeverityOK {
		t.Errorf("control: %+v", f)
	}
	conn, err := pgx.ConnectConfig(t.Context(), owner.Config().ConnConfig)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if _, err := conn.Exec(t.Context(), "BEGIN; SELECT FROM fencepost.leases FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	pid := conn.PgConn().PID()
	testkit.Eventually(t, "it has been open for a second", func() bool {
		f := blocker()
		return strings.Contains(f.Detail, fmt.Sprintf("server process %d (idle in transaction)", pid)) && strings.Contains(f.Remedy, "pg_terminate_backend")
	})
}

// TestInspectWithoutRights: a role without any is told so, and what could not be seen is not
// called fine. A reader, the control, sees everything.
func TestInspectWithoutRights(t *testing.T) {
	t.Parallel()
	owner, names, as := testRoles(t, "")
	reading := as(names.Reader)
	inspected := func() []lockadmin.Finding {
		t.Helper()
		found, err := newRoleOperator(t, reading).Inspect(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	settings := []string{lockadmin.SettingSchema, "schema objects", "timeline", "locked", "blocker", "row-level security", "clock set back"}
	for _, setting := range settings {
		if f := of(t, inspected(), setting); f.Severity != lockadmin.SeverityOK && setting != "timeline" {
			t.Errorf("control: %+v", f)
		}
	}
	mustExec(t, owner, "REVOKE ALL ON SCHEMA fencepost FROM "+names.Reader+"; REVOKE ALL ON ALL TABLES IN SCHEMA fencepost FROM "+names.Reader)
	found := inspected()
	for _, setting := range settings {
		if f := of(t, found, setting); f.Severity == lockadmin.SeverityOK {
			t.Errorf("%+v", f)
		}
	}
	if f := of(t, found, lockadmin.SettingSchema); !strings.Contains(f.Detail, "permission denied") || !strings.Contains(f.Remedy, "fencectl roles") || strings.Contains(f.Remedy, "migrate") {
		t.Errorf("%+v", f)
	}
}
