package pglease_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient/internal/leasetest"
	"github.com/fencepost-go/fencepost/lockclient/pglock"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
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
	mustExec(t, f.pool, freeze(leasetest.Value[string](t, f.pool, `SELECT string_agg(pg_get_functiondef(p.oid), ';') FROM pg_proc p
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

// acquireOf asks for r under the lease ID mine, for a minute.
func acquireOf(until, waiting string) string {
	return "SELECT * FROM fencepost.acquire('{r}', '{mine}', '{o}', '{m}', '{60000000}', '{" + until + "}', '{" + waiting + "}', 'p', '5000', NULL, LEASES)"
}

// leaseRow inserts the row of a resource.
func leaseRow(resource, values string) string {
	return "INSERT INTO fencepost.leases (resource, token, lease_id, owner, acquired_at, expires_at) VALUES ('" + resource + "', " + values + ");"
}

var (
	asks    = acquireOf("T+1h", "f")
	hasty   = strings.Replace(asks, "5000", "20", 1) // lock_timeout
	waiting = acquireOf("T+1h", "t")
)

const (
	others     = "5, 'theirs', 'x', 'T-1m', "
	mine       = "5, 'mine', 'o', 'T-1m', "
	free       = "5, NULL, 'x', 'T-1m', "
	ended      = "FL001 fencepost: the attempt ended while it waited for its row"
	grantOf6   = "acquired_at=T granted=true now=T"
	grantedRow = "acquired_at=T expires_at=T+1m0s lease_id=mine metadata=m not_after=T+1h0m0s owner=o"
	rowOf6     = grantedRow + " resource=r token=6"
)

var acquireCases = []functionCase{
	{name: "no row", call: asks,
		answer:   "acquired_at=T granted=true now=T resource=r spent=false token=1",
		after:    "acquired_at=T expires_at=T+1m0s lease_id=mine metadata=m not_after=T+1h0m0s owner=o resource=r token=1",
		settings: "5s on"},
	{name: "no row, above the floor", before: leaseRow("", "41, NULL, '', '-infinity', '-infinity'"), call: asks,
		answer: "acquired_at=T granted=true now=T resource=r spent=false token=42"},
	{name: "free", before: leaseRow("r", free+"'T+5h'"), call: asks, answer: grantOf6 + " resource=r spent=false token=6", after: rowOf6},
	{name: "free, above the floor", before: leaseRow("", "41, NULL, '', '-infinity', '-infinity'") + leaseRow("r", free+"'T-1s'"), call: asks,
		answer: grantOf6 + " resource=r spent=false token=42"},
	{name: "ran out", before: leaseRow("r", others+"'T'"), call: asks,
		answer: grantOf6 + " reclaimed=true resource=r spent=false token=6", after: grantedRow + " reclaimed=true resource=r token=6"},
	{name: "held", before: leaseRow("r", others+"'T+1µs'"), call: asks,
		answer: "expires_at=T+1µs granted=false lease_id=theirs now=T owner=x reclaimed=false remaining=1 resource=r spent=false token=5",
		after:  "acquired_at=T-1m0s expires_at=T+1µs lease_id=theirs owner=x resource=r token=5"},
	{name: "own, longer", before: leaseRow("r", mine+"'T+1µs'"), call: asks,
		answer: "acquired_at=T-1m0s granted=true now=T reclaimed=false resource=r spent=false token=5",
		after:  "acquired_at=T-1m0s expires_at=T+1m0s lease_id=mine metadata=m not_after=T+1h0m0s owner=o reclaimed=false resource=r token=5"},
	{name: "own, not shorter", before: leaseRow("r", mine+"'T+2h'"), call: asks,
		answer: "acquired_at=T-1m0s granted=true now=T reclaimed=false resource=r spent=false token=5",
		after:  "acquired_at=T-1m0s expires_at=T+2h0m0s lease_id=mine metadata=m not_after=T+1h0m0s owner=o reclaimed=false resource=r token=5"},
	{name: "own, ran out", before: leaseRow("r", mine+"'T'"), call: asks,
		answer: grantOf6 + " reclaimed=false resource=r spent=false token=6", after: grantedRow + " reclaimed=false resource=r token=6"},
	{name: "own ID of another owner", before: leaseRow("r", "5, 'mine', 'x', 'T-1m', 'T+1µs'"), call: asks,
		answer: "expires_at=T+1µs granted=false lease_id=mine now=T owner=x reclaimed=false remaining=1 resource=r spent=false token=5"},
	{name: "own ID of another owner, ran out", before: leaseRow("r", "5, 'mine', 'x', 'T-1m', 'T'"), call: asks,
		answer: grantOf6 + " reclaimed=false resource=r spent=false token=6"},
	// A refusal does not wait for the row.
	{name: "held and locked", before: leaseRow("r", others+"'T+1s'"), locked: "SELECT FROM fencepost.leases FOR UPDATE", call: hasty,
		answer: "expires_at=T+1s granted=false lease_id=theirs now=T owner=x reclaimed=false remaining=1000000 resource=r spent=false token=5"},
	{name: "own ID of another owner, locked", before: leaseRow("r", "5, 'mine', 'x', 'T-1m', 'T+1s'"), locked: "SELECT FROM fencepost.leases FOR UPDATE", call: hasty,
		answer: "expires_at=T+1s granted=false lease_id=mine now=T owner=x reclaimed=false remaining=1000000 resource=r spent=false token=5"},
	{name: "free and locked", before: leaseRow("r", free+"'T-1s'"), locked: "SELECT FROM fencepost.leases FOR UPDATE", call: hasty,
		answer: "55P03 canceling statement due to lock timeout"},
	{name: "in time", call: acquireOf("T+1µs", "f"),
		answer: "acquired_at=T granted=true now=T resource=r spent=false token=1"},
	{name: "late", call: acquireOf("T", "f"), answer: "granted=false now=T reclaimed=false resource=r spent=false", after: "-"},
	{name: "another table", call: "SELECT * FROM fencepost.acquire('{r}', '{mine}', '{o}', '{m}', '{60000000}', '{T+1h}', '{f}', 'p', '5000', NULL, LEASES + 1)", answer: "-", after: "-"},
	{name: "another server", call: "SELECT * FROM fencepost.acquire('{r}', '{mine}', '{o}', '{m}', '{60000000}', '{T+1h}', '{f}', 'p', '5000', 'T', LEASES)", answer: "-", after: "-"},
	{name: "this server", call: "SELECT * FROM fencepost.acquire('{r}', '{mine}', '{o}', '{m}', '{60000000}', '{T+1h}', '{f}', 'p', '5000', pg_postmaster_start_time(), LEASES)",
		answer: "acquired_at=T granted=true now=T resource=r spent=false token=1"},
	{name: "isolation", isolation: pgx.RepeatableRead, call: asks, answer: refusedLevel},
	{name: "several, in the order of the resources",
		before: leaseRow("c", others+"'T+1s'"),
		call:   "SELECT o_resource, o_granted FROM fencepost.acquire('{b,a,c}', '{i,j,k}', '{o,o,o}', '{m,m,m}', '{1,1,1}', '{T+1h,T+1h,T+1h}', '{f,f,f}', 'p', '5000', NULL, LEASES) AS a WHERE a.o_granted",
		answer: `granted=true resource=a
			granted=true resource=b`},
	// Why a late attempt is refused depends on the row alone.
	{name: "reasons",
		before: leaseRow("a", others+"'T+1µs'") + leaseRow("b", others+"'T'") + leaseRow("c", mine+"'T+1h'") +
			leaseRow("d", "5, 'mine', 'x', 'T-1m', 'T+1h'") + leaseRow("e", "5, 'mine', 'x', 'T-1m', 'T'") +
			leaseRow("f", free+"'T-99999µs'") + leaseRow("g", free+"'T-100ms'") + leaseRow("h", free+"'T'") + leaseRow("i", free+"'T'") + leaseRow("k", others+"'T-1ms'") +
			"UPDATE fencepost.leases SET kept_for = 'q' WHERE resource IN ('f', 'g', 'k'); UPDATE fencepost.leases SET kept_for = 'p' WHERE resource = 'h'",
		call: `SELECT o_resource, o_token, o_remaining, o_lease_id, o_owner FROM fencepost.acquire('{a,b,c,d,e,f,g,h,i,k}', array_fill('mine'::text, '{10}'), array_fill('o'::text, '{10}'),
			array_fill(''::text, '{10}'), array_fill(1::bigint, '{10}'), array_fill('T'::timestamptz, '{10}'), array_fill(false, '{10}'), 'p', '5000', NULL, LEASES) ORDER BY 1`,
		answer: `lease_id=theirs owner=x remaining=1 resource=a token=5
			resource=b
			resource=c
			lease_id=mine owner=x remaining=3600000000 resource=d token=5
			resource=e
			owner=x remaining=-99999 resource=f token=5
			resource=g
			resource=h
			resource=i
			resource=k`},
	// A released lease is kept for one process.
	{name: "kept", before: leaseRow("r", free+"'T-99999µs'") + "UPDATE fencepost.leases SET kept_for = 'q'", call: waiting,
		answer: "expires_at=T-99.999ms granted=false now=T owner=x reclaimed=false remaining=-99999 resource=r spent=false token=5"},
	{name: "kept, long enough", before: leaseRow("r", free+"'T-100ms'") + "UPDATE fencepost.leases SET kept_for = 'q'", call: waiting,
		answer: grantOf6 + " resource=r spent=false token=6", after: rowOf6},
	{name: "kept, who asks does not wait", before: leaseRow("r", free+"'T'") + "UPDATE fencepost.leases SET kept_for = 'q'", call: asks,
		answer: grantOf6 + " resource=r spent=false token=6", after: rowOf6},
	{name: "kept for who asks", before: leaseRow("r", free+"'T'") + "UPDATE fencepost.leases SET kept_for = 'p'", call: waiting,
		answer: grantOf6 + " resource=r spent=false token=6", after: rowOf6},
	{name: "kept for nobody", before: leaseRow("r", free+"'T'"), call: waiting, answer: grantOf6 + " resource=r spent=false token=6"},
	{name: "kept, then ran out", before: leaseRow("r", others+"'T'") + "UPDATE fencepost.leases SET kept_for = 'q'", call: waiting,
		answer: grantOf6 + " reclaimed=true resource=r spent=false token=6"},
	// Who leaves the line.
	{name: "line: all before it", before: leaseRow("r", free+"'T-1s'") + "UPDATE fencepost.leases SET kept_for = 'q', waiters = '{s,p,u}'", call: waiting,
		answer: grantOf6 + " resource=r spent=false token=6", after: rowOf6 + ` waiters=["u"]`},
	{name: "line: it alone", before: leaseRow("r", free+"'T-1s'") + "UPDATE fencepost.leases SET waiters = '{s,p,u}'", call: waiting,
		answer: grantOf6 + " resource=r spent=false token=6", after: rowOf6 + ` waiters=["s", "u"]`},
	{name: "line: it was kept for it", before: leaseRow("r", free+"'T-1s'") + "UPDATE fencepost.leases SET kept_for = 'p', waiters = '{s,p,u}'", call: waiting,
		answer: grantOf6 + " resource=r spent=false token=6", after: rowOf6 + ` waiters=["s", "u"]`},
	{name: "line: it ran out", before: leaseRow("r", others+"'T-1s'") + "UPDATE fencepost.leases SET kept_for = 'q', waiters = '{s,p,u}'", call: waiting,
		answer: grantOf6 + " reclaimed=true resource=r spent=false token=6", after: grantedRow + " reclaimed=true resource=r token=6" + ` waiters=["s", "u"]`},
	{name: "line: the only one", before: leaseRow("r", free+"'T-1s'") + "UPDATE fencepost.leases SET waiters = '{p}'", call: waiting,
		answer: grantOf6 + " resource=r spent=false token=6", after: rowOf6 + ` waiters=[]`},
	{name: "line: it is not in it", before: leaseRow("r", free+"'T-1s'") + "UPDATE fencepost.leases SET kept_for = 'q', waiters = '{s,u}'", call: waiting,
		answer: grantOf6 + " resource=r spent=false token=6", after: rowOf6 + ` waiters=["s", "u"]`},
	{name: "line: it does not wait", before: leaseRow("r", free+"'T-1s'") + "UPDATE fencepost.leases SET kept_for = 'q', waiters = '{s,p,u}'", call: asks,
		answer: grantOf6 + " resource=r spent=false token=6", after: rowOf6 + ` waiters=["s", "p", "u"]`},
	{name: "line: one of two waits", before: leaseRow("a", free+"'T-1s'") + leaseRow("b", free+"'T-1s'") + "UPDATE fencepost.leases SET waiters = '{s,p}'",
		call: "SELECT o_token FROM fencepost.acquire('{a,b}', '{i,j}', '{o,o}', '{m,m}', '{1,1}', '{T+1h,T+1h}', '{f,t}', 'p', '5000', NULL, LEASES)",
		answer: `token=6
			token=6`,
		after: `acquired_at=T expires_at=T+1µs lease_id=i metadata=m not_after=T+1h0m0s owner=o resource=a token=6 waiters=["s", "p"]
			acquired_at=T expires_at=T+1µs lease_id=j metadata=m not_after=T+1h0m0s owner=o resource=b token=6 waiters=["s"]`},
	// Abandoned lease IDs.
	{name: "spent", before: leaseRow("r", free+"'T-1s'") + "UPDATE fencepost.leases SET spent_until = 'T+1µs'; INSERT INTO fencepost.spent VALUES ('r', 'mine', 'T+1µs')", call: asks,
		answer: "granted=false now=T reclaimed=false resource=r spent=true", after: `acquired_at=T-1m0s expires_at=T-1s owner=x resource=r spent_until=T+1µs token=5
			spent r mine T+1µs`},
	{name: "spent, but no longer", before: leaseRow("r", free+"'T-1s'") + "UPDATE fencepost.leases SET spent_until = 'T'; INSERT INTO fencepost.spent VALUES ('r', 'mine', 'T+1h')", call: asks,
		answer: grantOf6 + " resource=r spent=false token=6"},
	{name: "spent, others", before: leaseRow("r", free+"'T-1s'") + "UPDATE fencepost.leases SET spent_until = 'T+1h'; INSERT INTO fencepost.spent VALUES ('r', 'theirs', 'T+1h'), ('q', 'mine', 'T+1h')", call: asks,
		answer: grantOf6 + " resource=r spent=false token=6"},
	{name: "spent, others, and late", before: "INSERT INTO fencepost.spent VALUES ('r', 'theirs', 'T+1h'), ('q', 'mine', 'T+1h'), ('r', 'mine', 'T')", call: acquireOf("T", "f"),
		answer: "granted=false now=T reclaimed=false resource=r spent=false"},
	// What changed while the call waited for the row.
	{name: "meanwhile granted", before: leaseRow("r", free+"'T-1s'"), meanwhile: "UPDATE fencepost.leases SET token = 6, lease_id = 'theirs', owner = 'o', expires_at = 'T+1h'", call: asks,
		answer: "expires_at=T+1h0m0s granted=false lease_id=theirs now=T owner=o reclaimed=false remaining=3600000000 resource=r spent=false token=6"},
	{name: "meanwhile granted to another owner", before: leaseRow("r", free+"'T-1s'"), meanwhile: "UPDATE fencepost.leases SET token = 6, lease_id = 'mine', expires_at = 'T+1h'", call: asks,
		answer: "expires_at=T+1h0m0s granted=false lease_id=mine now=T owner=x reclaimed=false remaining=3600000000 resource=r spent=false token=6"},
	{name: "meanwhile granted to another owner, and over", before: leaseRow("r", free+"'T-1s'"),
		meanwhile: "UPDATE fencepost.leases SET token = 6, lease_id = 'mine', acquired_at = 'T', expires_at = 'T+1s'; UPDATE clock SET t = 'T+2s'", call: asks,
		answer: "acquired_at=T+2s granted=true now=T+2s reclaimed=false resource=r spent=false token=7",
		after:  "acquired_at=T+2s expires_at=T+1m2s lease_id=mine metadata=m not_after=T+1h0m0s owner=o reclaimed=false resource=r token=7"},
	{name: "meanwhile granted to others, and over", before: leaseRow("r", free+"'T-1s'"),
		meanwhile: "UPDATE fencepost.leases SET token = 6, lease_id = 'theirs', owner = 'o', acquired_at = 'T', expires_at = 'T+1s'; UPDATE clock SET t = 'T+1s'", call: asks,
		answer: "acquired_at=T+1s granted=true now=T+1s reclaimed=true resource=r spent=false token=7",
		after:  "acquired_at=T+1s expires_at=T+1m1s lease_id=mine metadata=m not_after=T+1h0m0s owner=o reclaimed=true resource=r token=7"},
	// A waiter has set its mark, so that the conditions are checked again.
	{name: "meanwhile marked, own", before: leaseRow("r", mine+"'T+1s'"), meanwhile: "UPDATE fencepost.leases SET wake_until = 'T+5s'; UPDATE clock SET t = 'T+999999µs'", call: asks,
		answer: "acquired_at=T-1m0s granted=true now=T+999.999ms reclaimed=false resource=r spent=false token=5"},
	{name: "meanwhile marked, own, and over", before: leaseRow("r", mine+"'T+1s'"), meanwhile: "UPDATE fencepost.leases SET wake_until = 'T+5s'; UPDATE clock SET t = 'T+1s'", call: asks,
		answer: "granted=false now=T+1s reclaimed=false resource=r spent=false",
		after:  "acquired_at=T-1m0s expires_at=T+1s lease_id=mine owner=o resource=r token=5 wake_until=T+5s"},
	{name: "meanwhile marked, own, over before", before: leaseRow("r", mine+"'T'"), meanwhile: "UPDATE fencepost.leases SET wake_until = 'T+5s'; UPDATE clock SET t = 'T+1s'", call: asks,
		answer: "acquired_at=T+1s granted=true now=T+1s reclaimed=false resource=r spent=false token=6"},
	{name: "meanwhile late", before: leaseRow("r", free+"'T-1s'"), meanwhile: "UPDATE fencepost.leases SET token = 6; UPDATE clock SET t = 'T+1h'", call: asks,
		answer: "granted=false now=T+1h0m0s reclaimed=false resource=r spent=false",
		after:  "acquired_at=T-1m0s expires_at=T-1s owner=x resource=r token=6"},
	{name: "meanwhile spent", before: leaseRow("r", free+"'T-1s'"),
		meanwhile: "UPDATE fencepost.leases SET spent_until = 'T+1h'; INSERT INTO fencepost.spent VALUES ('r', 'mine', 'T+1h')", call: asks,
		answer: "granted=false now=T reclaimed=false resource=r spent=true"},
	{name: "meanwhile late, and only locked", before: leaseRow("r", free+"'T-1s'"), meanwhile: "SELECT FROM fencepost.leases FOR UPDATE; UPDATE clock SET t = 'T+1h'", call: asks,
		answer: ended, after: "acquired_at=T-1m0s expires_at=T-1s owner=x resource=r token=5"},
	{name: "meanwhile in time, and only locked", before: leaseRow("r", free+"'T-1s'"), meanwhile: "SELECT FROM fencepost.leases FOR UPDATE; UPDATE clock SET t = 'T+59s'", call: asks,
		answer: "acquired_at=T granted=true now=T+59s resource=r spent=false token=6",
		after:  "acquired_at=T expires_at=T+1m0s lease_id=mine metadata=m not_after=T+1h0m0s owner=o resource=r token=6"},
	{name: "spent, others, and it itself too long ago", before: leaseRow("r", free+"'T-1s'") + "UPDATE fencepost.leases SET spent_until = 'T+1h'; INSERT INTO fencepost.spent VALUES ('r', 'mine', 'T')", call: asks,
		answer: grantOf6 + " resource=r spent=false token=6"},
	{name: "meanwhile late, and created", meanwhile: leaseRow("r", free+"'T'") + "UPDATE clock SET t = 'T+1h'", call: asks,
		answer: "granted=false now=T+1h0m0s reclaimed=false resource=r spent=false"},
	{name: "one of two late", before: leaseRow("a", free+"'T-1s'"),
		answer: `granted=true resource=a
			granted=false resource=a
			granted=false resource=b`,
		call: "SELECT o_resource, o_granted FROM fencepost.acquire('{a,b}', '{i,j}', '{o,o}', '{m,m}', '{1,1}', '{T+1h,T}', '{f,f}', 'p', '5000', NULL, LEASES)"},
	{name: "meanwhile kept", before: leaseRow("r", free+"'T-1s'"), meanwhile: "UPDATE fencepost.leases SET token = 6, expires_at = 'T-1µs', kept_for = 'q'", call: waiting,
		answer: "expires_at=T-1µs granted=false now=T owner=x reclaimed=false remaining=-1 resource=r spent=false token=6"},
	{name: "meanwhile created", meanwhile: leaseRow("r", others+"'T+1µs'"), call: asks,
		answer: "expires_at=T+1µs granted=false lease_id=theirs now=T owner=x reclaimed=false remaining=1 resource=r spent=false token=5"},
	{name: "meanwhile created and free", meanwhile: leaseRow("r", free+"'T'"), call: asks, answer: grantOf6 + " resource=r spent=false token=6"},
	{name: "meanwhile created by its own first attempt", meanwhile: leaseRow("r", mine+"'T+1m'"), call: asks,
		answer: "acquired_at=T-1m0s granted=true now=T reclaimed=false resource=r spent=false token=5"},
	{name: "meanwhile one of two created", meanwhile: leaseRow("a", free+"'T'"),
		call: "SELECT o_resource, o_granted, o_token FROM fencepost.acquire('{a,b}', '{i,j}', '{o,o}', '{m,m}', '{1,1}', '{T+1h,T+1h}', '{f,f}', 'p', '5000', NULL, LEASES)",
		answer: `granted=true resource=b token=1
			granted=true resource=a token=6
			granted=true resource=b token=1`},
	// The floor was raised under the table's lock, and the own lease ran out.
	{name: "meanwhile the floor was raised", before: leaseRow("r", mine+"'T+1s'"),
		meanwhile: "LOCK TABLE fencepost.leases IN SHARE ROW EXCLUSIVE MODE; INSERT INTO fencepost.leases (resource, token) VALUES ('', 41); UPDATE clock SET t = 'T+1s'", call: asks,
		answer: "acquired_at=T+1s granted=true now=T+1s reclaimed=false resource=r spent=false token=42",
		after: `token=41
			acquired_at=T+1s expires_at=T+1m1s lease_id=mine metadata=m not_after=T+1h0m0s owner=o reclaimed=false resource=r token=42`},
	{name: "no row, beside one that is held and being renewed", before: leaseRow("b", others+"'T+1s'"), locked: "UPDATE fencepost.leases SET expires_at = 'T+2s'",
		call: "SELECT o_resource, o_granted, o_token FROM fencepost.acquire('{a,b}', '{i,j}', '{o,o}', '{m,m}', '{1,1}', '{T+1h,T+1h}', '{f,f}', 'p', '20', NULL, LEASES)",
		answer: `granted=true resource=a token=1
			granted=false resource=a
			granted=false resource=b token=5`},
	{name: "some with a row", before: leaseRow("a", free+"'T-1s'") + leaseRow("c", others+"'T+1s'"),
		call: "SELECT o_resource, o_granted, o_token FROM fencepost.acquire('{a,b,c}', '{i,j,k}', '{o,o,o}', '{m,m,m}', '{1,1,1}', '{T+1h,T+1h,T+1h}', '{f,f,f}', 'p', '5000', NULL, LEASES)",
		answer: `granted=true resource=a token=6
			granted=true resource=b token=1
			granted=false resource=a
			granted=false resource=b
			granted=false resource=c token=5`},
}

// TestAcquireFunction: what fencepost.acquire answers and writes in each state of
// the row, to the microsecond.
func TestAcquireFunction(t *testing.T) { newFunctionTests(t).check(t, acquireCases) }

// TestGrantAfterAWait: whether a lease is over is decided by the clock after the
// wait for its row. Here the lease is granted and ends while the statement waits,
// so the start time of its transaction is before both.
func TestGrantAfterAWait(t *testing.T) {
	t.Parallel()
	const asBuilt, early = "THEN u.now ELSE clock_timestamp() END)\n      AND u.not_after", "THEN u.now ELSE now() END)\n      AND u.not_after"
	granted := func(t *testing.T, over string) bool {
		pool := pgtest.Pool(t)
		exec := func(sql string) {
			t.Helper()
			if _, err := pool.Exec(t.Context(), sql); err != nil {
				t.Fatal(err)
			}
		}
		testkit.Must(t, pglock.Migrate(t.Context(), pool))
		acquire := leasetest.Value[string](t, pool, "SELECT pg_get_functiondef('fencepost.acquire'::regproc)")
		if !strings.Contains(acquire, asBuilt) && !strings.Contains(acquire, early) {
			t.Fatal("the function has another condition")
		}
		exec(strings.Replace(acquire, asBuilt, over, 1))
		exec("INSERT INTO fencepost.leases (resource, token) VALUES ('r', 1)")
		tx := leasetest.Begun(t, pool, "SELECT FROM fencepost.leases WHERE resource = 'r' FOR UPDATE")
		got := make(chan int64, 1)
		go func() {
			var granted int64
			err := pool.QueryRow(context.Background(), `SELECT count(*) FILTER (WHERE o_granted)
				FROM fencepost.acquire($1, $2, $3, $4, $5, $6, $7, $8, $9, NULL, 'fencepost.leases'::regclass::oid::bigint)`, []string{"r"}, []string{"late"}, []string{"o"}, []string{""}, []int64{60e6},
				[]time.Time{time.Now().Add(time.Hour)}, []bool{false}, "process", "60000").Scan(&granted)
			testkit.Check(t, err)
			got <- granted
		}()
		pgtest.Blocked(t, pool, "fencepost.acquire(", 1)
		if _, err := tx.Exec(t.Context(), `UPDATE fencepost.leases SET token = 2, lease_id = 'short', acquired_at = clock_timestamp(),
			expires_at = clock_timestamp() + interval '20 milliseconds' WHERE resource = 'r'`); err != nil {
			t.Fatal(err)
		}
		exec("SELECT pg_sleep(0.03)")
		testkit.Must(t, tx.Commit(t.Context()))
		return <-got == 1
	}
	t.Run("as built", func(t *testing.T) {
		if !granted(t, asBuilt) {
			t.Error("a lease that ended during the wait was not granted")
		}
	})
	t.Run("control", func(t *testing.T) {
		if granted(t, early) {
			t.Error("the control was granted: the schedule shows nothing")
		}
	})
}
