package pgadmin

import (
	"context"
	"slices"
	"testing"

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
