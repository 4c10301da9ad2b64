package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgerr"
	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin/pgadmin"
	"github.com/fencepost-go/fencepost/lockclient/pglock"
	"github.com/fencepost-go/fencepost/sqlfence"
	"github.com/fencepost-go/fencepost/sqlfence/sqladmin"
)

// TestAdopt: at no step do two workers write, on the way there and back.
func TestAdopt(t *testing.T) {
	testkit.CaptureDefault(t)
	t.Setenv("FENCEPOST_DATABASE_URL", pgtest.Database(t)) // else run starts a server of its own
	var out bytes.Buffer
	if err := run(t.Context(), &out); err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	if n := strings.Count(out.String(), "at most 1 at work"); n != 9 {
		t.Errorf("%d steps, want 9:\n%s", n, &out)
	}
}

// ready returns a service with both schemas.
func ready(t *testing.T) *service {
	t.Helper()
	testkit.CaptureDefault(t)
	pool := pgtest.Pool(t)
	s, err := newService(pool)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.client.Close(context.Background()) })
	if err := errors.Join(s.create(t.Context()), pglock.Migrate(t.Context(), pool), sqladmin.Pgx(pool).Migrate(t.Context())); err != nil {
		t.Fatal(err)
	}
	return s
}

// TestOneLockEach is the control: the old version and the one with leases alone do
// not exclude each other. Both locks do, which the same schedule shows.
func TestOneLockEach(t *testing.T) {
	for name, c := range map[string]struct {
		second func(*service) version
		most   int
	}{"leases alone": {func(s *service) version { return s.leased }, 2}, "both": {func(s *service) version { return s.both }, 1}} {
		s := ready(t)
		err := s.underAdvisoryLock(t.Context(), "acme", func(conn querier) error {
			s.inside++ // an old worker that is at work until the end of this function
			defer func() { s.inside-- }()
			if c.most > 1 {
				return c.second(s)(t.Context(), "acme")
			}
			waits, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- c.second(s)(waits, "acme") }()
			pgtest.Blocked(t, s.pool, "pg_advisory_lock", 1)
			cancel()
			if err := <-ended; err == nil {
				t.Error("the second worker was let in")
			}
			return nil
		})
		if most := max(s.most, 1); err != nil || most != c.most {
			t.Errorf("%s: %d at work at once, %v, want %d", name, most, err, c.most)
		}
	}
}

// TestTriggers: what the triggers say to a worker of the old version at each step.
func TestTriggers(t *testing.T) {
	s := ready(t)
	trigger := sqladmin.Trigger{Table: []string{"balances"}, Resource: names, Columns: map[string]string{"tenant": "tenant"}}
	for _, reports := range []bool{true, false} {
		trigger.InsecureReportOnly = reports
		if err := sqladmin.Pgx(s.pool).InstallTrigger(t.Context(), trigger); err != nil {
			t.Fatal(err)
		}
		err := sqlfence.ErrorFrom(s.old(t.Context(), "acme"))
		if reports && err != nil || !reports && !errors.Is(err, guard.ErrMissing) {
			t.Errorf("report-only %t: the old version got %v", reports, err)
		}
		if err := s.leased(t.Context(), "acme"); err != nil {
			t.Errorf("report-only %t: the new version got %v", reports, err)
		}
	}
}

// TestReadme runs the page's SQL in its order, with what its table of rights says
// between: the owner of the schema migrates and makes the roles, the owner of the table
// installs triggers, and the service writes. Each is refused without its grant.
func TestReadme(t *testing.T) {
	s := ready(t)
	page, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := func(language string) (found []string) {
		for _, m := range regexp.MustCompile("(?s)```"+language+"\n(.*?)```").FindAllSubmatch(page, -1) {
			found = append(found, string(m[1]))
		}
		return found
	}
	worker, err := os.ReadFile("worker.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, code := range blocks("go") {
		if code = "\t" + strings.ReplaceAll(strings.TrimSpace(code), "\n", "\n\t"); !strings.Contains(string(worker), code) {
			t.Errorf("worker.go does not have\n%s", code)
		}
	}
	conn, err := s.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	exec := func(sql string) error {
		_, err := conn.Conn().PgConn().Exec(t.Context(), sql).ReadAll()
		return err
	}
	run := func(sql string) {
		t.Helper()
		if err := exec(sql); err != nil {
			t.Errorf("%v\n%s", err, sql)
		}
	}
	refused := func(sql string) {
		t.Helper()
		run("SAVEPOINT before")
		if err := exec(sql); pgerr.State(err) != pgerr.Privilege {
			t.Errorf("%v, want a missing right:\n%s", err, sql)
		}
		run("ROLLBACK TO before")
	}
	as := func(role string) { t.Helper(); run("SET LOCAL SESSION AUTHORIZATION " + role) }
	sql := blocks("sql")
	if len(sql) != 4 || len(blocks("go")) != 2 {
		t.Fatalf("%d blocks of SQL: the check is broken", len(sql))
	}
	trigger := sqladmin.Trigger{Table: []string{"balances"}, Resource: names, Columns: map[string]string{"tenant": "tenant"}, InsecureReportOnly: true}
	run("BEGIN; DROP SCHEMA fencepost CASCADE")
	defer run("ROLLBACK") // roles belong to the server
	run(sql[0])
	run("GRANT CREATE ON DATABASE " + conn.Conn().Config().Database + " TO fence_owner")
	as("fence_owner")
	run(pglock.MigrationSQL() + sqladmin.MigrationSQL())
	run(must(pgadmin.RolesSQL(nil)) + must(sqladmin.RolesSQL(nil)))
	as("billing_app")
	refused("SELECT fencepost.present('balance:acme', 1, 'lease')")
	refused(must(sqladmin.TriggerSQL(trigger)))
	as("billing_ddl")
	run(must(sqladmin.TriggerSQL(trigger)))
	as("DEFAULT")
	run(sql[1])
	as("billing_app")
	run("UPDATE balances SET cents = cents + 1; SELECT fencepost.raise('balance:acme', 1, 'lease', 1000)")
	as("billing_ddl")
	trigger.InsecureReportOnly = false
	run(must(sqladmin.TriggerSQL(trigger)))
	run(sql[2] + sql[3])
	run(must(sqladmin.RemoveTriggerSQL(trigger.Table)))
}

func must(sql string, err error) string {
	if err != nil {
		panic(err)
	}
	return sql
}
