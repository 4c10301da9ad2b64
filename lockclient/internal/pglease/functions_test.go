package pglease_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost-go/fencepost/internal/testkit"
)

// functionCase is one call of a function of the schema. In its texts T is the
// moment that the functions take for the current time, T+1s a second after it.
type functionCase struct {
	name   string
	before string // SQL: what is there before
	// meanwhile is SQL that is carried out before the call and committed when the
	// call waits for it; locked is SQL that is rolled back after the call.
	meanwhile, locked string
	then, late        string // SQL, when the call waits: in the transaction of meanwhile, and in one that is rolled back after the call
	isolation         pgx.TxIsoLevel
	call              string // a query; LEASES is the number of the table
	answer            string // its rows, the notifications, or the error
	after             string // the rows of leases, spent, audit and epoch; "" is not compared, "-" is none
	settings          string // lock_timeout and synchronous_commit at the end; "" is not compared
}

// functionTests are the functions on a database of their own. They read the time
// from a table.
type functionTests struct {
	pool  *pgxpool.Pool
	conn  *pgx.Conn // of the calls
	heard []string
}

const frozenClock = `CREATE TABLE clock (t timestamptz NOT NULL);
	CREATE FUNCTION frozen() RETURNS timestamptz LANGUAGE plpgsql VOLATILE AS 'BEGIN RETURN (SELECT t FROM public.clock); END';
	ALTER TABLE fencepost.spent ALTER until SET DEFAULT public.frozen() + interval '1 hour';
	ALTER TABLE fencepost.audit DISABLE TRIGGER USER;
	ALTER TABLE fencepost.audit ALTER at SET DEFAULT public.frozen();
	CREATE SEQUENCE records;
	ALTER TABLE fencepost.audit ALTER id SET DEFAULT nextval('public.records');
	DELETE FROM fencepost.epoch;
	INSERT INTO clock VALUES ('epoch')`

func newFunctionTests(t *testing.T) *functionTests {
	t.Helper()
	f := &functionTests{pool: dial(t, migrated(t), func(c *pgxpool.Config) {
		c.ConnConfig.RuntimeParams["timezone"] = "UTC"
		c.ConnConfig.RuntimeParams["jit"] = "off" // frozen reads all of its table
		c.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	})}
	mustExec(t, f.pool, frozenClock)
	mustExec(t, f.pool, freeze(value[string](t, f.pool, `SELECT string_agg(pg_get_functiondef(p.oid), ';') FROM pg_proc p
		WHERE p.pronamespace = 'fencepost'::regnamespace AND p.prosrc ~ 'clock_timestamp|pg_sleep'`)))
	config := f.pool.Config().ConnConfig.Copy()
	config.RuntimeParams["synchronous_commit"] = "local"
	config.OnNotification = func(_ *pgconn.PgConn, n *pgconn.Notification) {
		f.heard = append(f.heard, n.Channel+": "+n.Payload)
	}
	conn, err := pgx.ConnectConfig(t.Context(), config)
	testkit.Must(t, err)
	t.Cleanup(func() { conn.Close(context.Background()) })
	for _, name := range []string{"", ".p", ".q", ".s", ".u", ".v"} {
		if _, err := conn.Exec(t.Context(), `LISTEN "fencepost.leases`+name+`"`); err != nil {
			t.Fatal(err)
		}
	}
	f.conn = conn
	return f
}

// freeze makes functions read the time from the table, and wait for a lock
// instead of sleeping.
func freeze(functions string) string {
	return strings.NewReplacer("clock_timestamp()", "public.frozen()", "pg_sleep(0.1)", "pg_advisory_xact_lock_shared(1)").Replace(functions)
}

// run carries out a case and returns what differs from it.
func (f *functionTests) run(c functionCase) (wrong []string) {
	ctx := context.Background()
	exec := func(conn interface {
		Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	}, sql string) {
		if _, err := conn.Exec(ctx, timed(sql)); err != nil && len(wrong) == 0 {
			wrong = append(wrong, fmt.Sprintf("%s: %v", sql, err))
		}
	}
	defer exec(f.pool, "DELETE FROM fencepost.audit; DELETE FROM fencepost.epoch; DELETE FROM fencepost.leases; DELETE FROM fencepost.spent")
	exec(f.pool, "UPDATE clock SET t = 'T'; "+c.before)
	other, err := f.pool.Begin(ctx)
	if err != nil {
		return []string{err.Error()}
	}
	defer other.Rollback(ctx)
	third, err := f.pool.Begin(ctx)
	if err != nil {
		return []string{err.Error()}
	}
	defer third.Rollback(ctx)
	exec(other, c.meanwhile+c.locked)
	f.heard = nil
	got := make(chan string, 1)
	var settings string
	go func() {
		var answer string
		err := pgx.BeginTxFunc(ctx, f.conn, pgx.TxOptions{IsoLevel: c.isolation}, func(tx pgx.Tx) error {
			err := tx.QueryRow(ctx, `SELECT coalesce(string_agg(`+fields("a.a")+`, E'\n' ORDER BY n), '') FROM (SELECT to_jsonb(x), row_number() OVER () FROM (`+
				timed(c.call)+`) AS x) AS a(a, n)`).Scan(&answer)
			if err == nil {
				err = tx.QueryRow(ctx, "SELECT current_setting('lock_timeout') || ' ' || current_setting('synchronous_commit')").Scan(&settings)
			}
			return err
		})
		var pg *pgconn.PgError
		if errors.As(err, &pg) {
			answer = pg.Code + " " + pg.Message
		} else if err != nil {
			answer = err.Error()
		}
		got <- answer
	}()
	if c.meanwhile != "" {
		var answer *string
		pid := f.conn.PgConn().PID()
		for end, waits := time.Now().Add(testkit.Patience), false; !waits && answer == nil && time.Now().Before(end); {
			select {
			case a := <-got:
				answer = &a
			case <-time.After(2 * time.Millisecond):
				f.pool.QueryRow(ctx, `SELECT wait_event_type = 'Lock' IS TRUE FROM pg_stat_activity WHERE pid = $1`, pid).Scan(&waits)
			}
		}
		if answer != nil {
			wrong = append(wrong, "the call did not wait: "+*answer)
			got <- *answer
		}
		exec(other, c.then)
		exec(third, c.late)
		if err := other.Commit(ctx); err != nil {
			return []string{err.Error()}
		}
	}
	answer := <-got
	other.Rollback(ctx)
	third.Rollback(ctx)
	var left, after string
	if err := f.conn.QueryRow(ctx, "SELECT current_setting('lock_timeout') || ' ' || current_setting('synchronous_commit')").Scan(&left); err != nil || left != "0 local" {
		wrong = append(wrong, fmt.Sprintf("the session is left with %q, %v", left, err))
		exec(f.conn, "SET lock_timeout = 0; SET synchronous_commit = local")
	}
	err = f.pool.QueryRow(ctx, `SELECT coalesce(string_agg(`+fields("to_jsonb(r)")+`, E'\n' ORDER BY r.resource), '')
		|| coalesce((SELECT string_agg(E'\nspent '||s.resource||' '||s.lease_id||' '||s.until, '' ORDER BY s.resource, s.lease_id) FROM fencepost.spent s), '')
		|| coalesce((SELECT string_agg(E'\naudit '||`+fields("to_jsonb(a) - 'id' - 'database_user'")+`, '' ORDER BY a.id) FROM fencepost.audit a), '')
		|| coalesce((SELECT concat_ws(' ', E'\nepoch', e.base, CASE WHEN e.system_identifier = (SELECT system_identifier::text FROM pg_control_system()) THEN 'here' END,
			CASE WHEN e.database = (SELECT oid FROM pg_database WHERE datname = current_database()) THEN 'in this database' END,
			CASE WHEN e.leases = 'fencepost.leases'::regclass THEN 'in this table' END) FROM fencepost.epoch e), '')
		FROM fencepost.leases r`).Scan(&after)
	if err != nil {
		return []string{err.Error()}
	}
	for _, n := range f.heard {
		answer += "\n" + n
	}
	compare := func(what, got, want string) {
		got, want = relative(strings.TrimSpace(got)), strings.TrimSpace(indent.ReplaceAllString(want, "\n"))
		if want == "-" {
			want = ""
		}
		if got != want {
			wrong = append(wrong, fmt.Sprintf("%s\n%s\nwant\n%s", what, got, want))
		}
	}
	compare("answer", answer, c.answer)
	if c.after != "" {
		compare("after", after, c.after)
	}
	if c.settings != "" {
		compare("settings", settings, c.settings)
	}
	return wrong
}

// fields is an expression for the fields of a JSON object that are not NULL, empty
// or the beginning of time.
func fields(object string) string {
	return `(SELECT string_agg(regexp_replace(key, '^o_', '')||'='||value, ' ' ORDER BY key) FROM jsonb_each_text(` + object + `)
		WHERE value <> '' AND value <> '-infinity')`
}

var (
	moment  = regexp.MustCompile(`\bT([+-][0-9][0-9a-zµ.]*)?\b`)
	instant = regexp.MustCompile(`\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+)?\+00(:00)?`)
	process = regexp.MustCompile(`process \d+`)
	indent  = regexp.MustCompile(`\n\s+`)
	start   = time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)
)

// timed replaces T+1s by a time, relative does the reverse. The number of a server
// process is N.
func timed(sql string) string {
	sql = strings.ReplaceAll(sql, "LEASES", "'fencepost.leases'::regclass::oid::bigint")
	return moment.ReplaceAllStringFunc(sql, func(s string) string {
		var d time.Duration
		if len(s) > 1 {
			var err error
			if d, err = time.ParseDuration(s[1:]); err != nil {
				panic(err)
			}
		}
		return start.Add(d).Format("2006-01-02 15:04:05.999999+00")
	})
}

func relative(text string) string {
	text = process.ReplaceAllString(text, "process N")
	return instant.ReplaceAllStringFunc(text, func(s string) string {
		at, err := time.Parse("2006-01-02 15:04:05", strings.Replace(s[:strings.LastIndex(s, "+00")], "T", " ", 1))
		switch d := at.Sub(start); {
		case err != nil || d.Abs() > 100*time.Hour:
			return s
		case d > 0:
			return "T+" + d.String()
		case d < 0:
			return "T" + d.String()
		}
		return "T"
	})
}

// check carries out cases.
func (f *functionTests) check(t *testing.T, cases []functionCase) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			for _, wrong := range f.run(c) {
				t.Error(wrong)
			}
		})
	}
}
