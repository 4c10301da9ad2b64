package pgtest

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Tests with one key share one migration and nothing else, also when they begin
// at once.
func TestMigrated(t *testing.T) {
	t.Parallel()
	var calls atomic.Int32
	migrate := func(ctx context.Context, pool *pgxpool.Pool) error {
		calls.Add(1)
		_, err := pool.Exec(ctx, "CREATE TABLE mine (n int); INSERT INTO mine VALUES (1)")
		return err
	}
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			pool := Migrated(t, "TestMigrated", migrate)
			var sum int
			err := pool.QueryRow(t.Context(), "WITH more AS (INSERT INTO mine VALUES (2)) SELECT sum(n)::int FROM mine").Scan(&sum)
			if err == nil {
				err = pool.QueryRow(t.Context(), "SELECT sum(n)::int FROM mine").Scan(&sum)
			}
			if err != nil || sum != 3 {
				t.Errorf("sum %d (%v), want 3: what was migrated and what this copy added", sum, err)
			}
		})
	}
	group.Wait()
	MigratedDatabase(t, "TestMigrated with another key", migrate)
	if n := calls.Load(); n != 2 {
		t.Errorf("%d migrations for two keys", n)
	}
}

// On a server that outlives its processes, a template goes when the next
// process makes one; a template of a process that lives stays.
func TestAbandonedTemplate(t *testing.T) {
	server := shared(t)
	t.Setenv(databaseURLVariable, server.URL())
	migrate := func(context.Context, *pgxpool.Pool) error { return nil }
	abandoned, err := newTemplate(server.URL(), migrate)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(abandoned, "fencepost_scratch_template_") {
		t.Errorf("the template is %s", abandoned)
	}
	lives, err := newTemplate(server.URL(), migrate)
	if err != nil {
		t.Fatal(err)
	}
	if !exists(t, server.URL(), abandoned) {
		t.Fatal("a template was dropped that its process still has")
	}
	// What the end of the first one's process does.
	unlock := func(conn *pgx.Conn) error {
		return execute(t.Context(), conn, "SELECT pg_advisory_unlock(hashtextextended('"+abandoned+"', 0))")
	}
	if err := administer(t.Context(), server.URL(), unlock); err != nil {
		t.Fatal(err)
	}
	if _, err := newTemplate(server.URL(), migrate); err != nil {
		t.Fatal(err)
	}
	if exists(t, server.URL(), abandoned) || !exists(t, server.URL(), lives) {
		t.Errorf("abandoned %t, lives %t", exists(t, server.URL(), abandoned), exists(t, server.URL(), lives))
	}
}
