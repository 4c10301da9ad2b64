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
	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/lockclient/pglock"
	"github.com/fencepost-go/fencepost/sqlfence"
	"github.com/fencepost-go/fencepost/sqlfence/sqladmin"
)

// TestAdopt: at no step do two workers write, on the way there and back.
func TestAdopt(t *testing.T) {
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
			for waiting := 0; waiting == 0; {
				if err := conn.QueryRow(t.Context(), "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted").Scan(&waiting); err != nil {
					t.Fatal(err)
				}
			}
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

// TestReadmeSQL runs the page's SQL in its order.
func TestReadmeSQL(t *testing.T) {
	s := ready(t)
	page, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```sql\n(.*?)```").FindAllSubmatch(page, -1)
	conn, err := s.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	run := func(sql string) {
		if _, err := conn.Conn().PgConn().Exec(t.Context(), sql).ReadAll(); err != nil {
			t.Errorf("%v\n%s", err, sql)
		}
	}
	run("BEGIN")
	defer run("ROLLBACK") // roles belong to the server
	for _, block := range blocks {
		run(string(block[1]))
	}
	if len(blocks) < 3 {
		t.Errorf("%d blocks: the check is broken", len(blocks))
	}
}
