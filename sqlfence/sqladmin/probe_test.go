package sqladmin

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/internal/testkit"
)

// rewritten is a connection to a server that takes some words of SQL for others.
type rewritten struct {
	net.Conn
	words *strings.Replacer
}

// Write is given whole messages. Those that begin a connection have no type, and
// the first byte of a length is 0.
func (c *rewritten) Write(b []byte) (int, error) {
	if b[0] == 0 {
		return c.Conn.Write(b)
	}
	var sent []byte
	for rest := b; len(rest) > 0; {
		length := 1 + int(binary.BigEndian.Uint32(rest[1:]))
		kind, body := rest[0], rest[5:length]
		if kind == 'P' || kind == 'Q' {
			body = []byte(c.words.Replace(string(body)))
		}
		sent = append(binary.BigEndian.AppendUint32(append(sent, kind), uint32(4+len(body))), body...)
		rest = rest[length:]
	}
	if _, err := c.Conn.Write(sent); err != nil {
		return 0, err
	}
	return len(b), nil
}

// adminOf is an Admin on a server that takes some words for others.
func adminOf(t *testing.T, url string, words ...string) *Admin {
	t.Helper()
	config, err := pgxpool.ParseConfig(url)
	testkit.Must(t, err)
	config.MaxConns = 1 // the probe has a second session all the same
	dial := config.ConnConfig.DialFunc
	config.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := dial(ctx, network, address)
		return &rewritten{Conn: c, words: strings.NewReplacer(words...)}, err
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	testkit.Must(t, err)
	t.Cleanup(pool.Close)
	return Pgx(pool)
}

// TestProbe: a server on which one of the properties is a stub is refused, by name of
// the property, before anything is created; the server itself is the control.
func TestProbe(t *testing.T) {
	const lock, shared = "pg_catalog.pg_advisory_xact_lock(", "pg_catalog.pg_advisory_xact_lock_shared("
	for property, c := range map[string]struct {
		want  error
		words []string
	}{
		"all are there":                           {nil, nil},
		"locks are functions that return":         {lacksExclusion, []string{lock, "pg_catalog.abs(", shared, "pg_catalog.abs("}},
		"the exclusive lock returns":              {lacksExclusion, []string{lock, "pg_catalog.abs("}},
		"the shared lock returns":                 {lacksExclusion, []string{shared, "pg_catalog.abs("}},
		"the shared lock is taken for another":    {lacksExclusion, []string{shared + "$1", lock + "-$1"}},
		"pg_locks is empty":                       {lacksShow, []string{"FROM pg_catalog.pg_locks", "FROM (SELECT * FROM pg_catalog.pg_locks LIMIT 0) AS pg_locks"}},
		"locks are the session's":                 {lacksEnd, []string{lock, "pg_catalog.pg_advisory_lock(", shared, "pg_catalog.pg_advisory_lock_shared("}},
		"READ COMMITTED is another level":         {lacksFreshness, []string{"read committed", "repeatable read"}},
		"every transaction is visible":            {lacksFreshness, []string{"pg_catalog.pg_visible_in_snapshot($3::text::pg_catalog.xid8, pg_catalog.pg_current_snapshot())", "$3::text IS NOT NULL"}},
		"version 12":                              {lacks("the server has version 12, PostgreSQL 13 or newer is needed"), []string{"pg_catalog.current_setting('server_version_num')", "'120009'"}},
		"there are no advisory locks":             {guard.ErrSetup, []string{lock, "pg_catalog.no_such_lock("}},
		"there are no transaction IDs of 64 bits": {guard.ErrSetup, []string{"pg_catalog.pg_current_xact_id()", "pg_catalog.no_such_id()"}},
	} {
		t.Run(property, func(t *testing.T) {
			t.Parallel()
			url := pgtest.Database(t)
			pool := pgtest.Connect(t, url)
			admin := adminOf(t, url, c.words...)
			_, verified := admin.Verify(t.Context(), Verification{})
			migrated := admin.Migrate(t.Context())
			for call, err := range map[string]error{"Probe": admin.Probe(t.Context()), "Verify": verified, "Migrate": migrated} {
				switch {
				case c.want == nil && call == "Verify": // there was no schema yet
					if guard.ReasonOf(err) != guard.ReasonSetup || !strings.Contains(err.Error(), "schema fencepost") {
						t.Errorf("%s: %v", call, err)
					}
				case c.want == nil:
					if err != nil {
						t.Errorf("%s: %v", call, err)
					}
				case guard.ReasonOf(err) != guard.ReasonSetup || !errors.Is(err, c.want):
					t.Errorf("%s: got %v, want ErrSetup and %v", call, err, c.want)
				}
			}
			var there bool
			if err := pool.QueryRow(t.Context(), "SELECT to_regnamespace('fencepost') IS NOT NULL").Scan(&there); err != nil || there != (c.want == nil) {
				t.Errorf("the schema is there: %v, %v", there, err)
			}
		})
	}
}

// ending ends the session that holds an advisory lock when another session is about
// to ask for it, by a statement that has a word.
type ending struct {
	word string
	by   *pgxpool.Pool
	end  func(pid int)
}

func (e *ending) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	if !strings.Contains(q.SQL, e.word) {
		return ctx
	}
	const holder = "FROM pg_locks WHERE locktype = 'advisory' AND granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
	var pid int
	if err := e.by.QueryRow(context.Background(), "SELECT pid "+holder).Scan(&pid); err != nil {
		return ctx // nobody holds one yet
	}
	e.end(pid)
	for there := ctx.Err() == nil; there; { // pgx does not end a transaction when its context ends
		if err := e.by.QueryRow(context.Background(), "SELECT EXISTS (SELECT "+holder+")").Scan(&there); err != nil {
			panic(err)
		}
	}
	return ctx
}

func (*ending) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// TestProbeLosesItsHolder: where the first session ends during the probe, nobody
// holds the lock that the second asks for. The probe is not known to have failed for
// the server's sake, and says that it could not see.
func TestProbeLosesItsHolder(t *testing.T) {
	for _, word := range []string{probeExclusiveSQL, "pg_visible_in_snapshot"} {
		pool := pgtest.Pool(t)
		config := pool.Config()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		for _, c := range []struct {
			how  string
			ctx  context.Context
			end  func(pid int)
			want error
		}{
			{"terminated", t.Context(), func(pid int) {
				if _, err := pool.Exec(t.Context(), "SELECT pg_terminate_backend($1)", pid); err != nil {
					t.Error(err)
				}
			}, guard.ErrUnavailable},
			{"cancelled", ctx, func(int) { cancel() }, context.Canceled},
		} {
			config.ConnConfig.Tracer = &ending{word, pool, c.end}
			traced, err := pgxpool.NewWithConfig(t.Context(), config.Copy())
			testkit.Must(t, err)
			if err := Pgx(traced).Probe(c.ctx); !errors.Is(err, c.want) || guard.ReasonOf(err) != guard.ReasonUnavailable {
				t.Errorf("%s before %q: %v, want ErrUnavailable", c.how, word, err)
			}
			traced.Close()
		}
	}
}

// TestMarksReadsARange: listing a prefix reads the index from there to its end.
func TestMarksReadsARange(t *testing.T) {
	pool := pgtest.Pool(t)
	testkit.Must(t, Pgx(pool).Migrate(t.Context()))
	if _, err := pool.Exec(t.Context(), "INSERT INTO fencepost.marks SELECT 'k' || n, 1 FROM generate_series(1, 20000) AS n; ANALYZE fencepost.marks"); err != nil {
		t.Fatal(err)
	}
	rows, err := pool.Query(t.Context(), "EXPLAIN ANALYZE "+marksSQL, 10, "k777", "", beyond("k777"))
	testkit.Must(t, err)
	defer rows.Close()
	var plan strings.Builder
	for rows.Next() {
		var line string
		testkit.Must(t, rows.Scan(&line))
		plan.WriteString(line + "\n")
	}
	if text := plan.String(); !strings.Contains(text, "Index Scan using marks_pkey") || strings.Contains(text, "Rows Removed") {
		t.Error(text)
	}
}

// TestExpectedObjects: Verify knows every function, table, column and trigger of the schema, and
// who may call it.
func TestExpectedObjects(t *testing.T) {
	pool := pgtest.Pool(t)
	testkit.Must(t, Pgx(pool).Migrate(t.Context()))
	kinds := map[string]int{}
	for _, o := range schema().Objects() {
		kinds[o.Kind]++
		if o.Guarded {
			kinds["guarded"]++
		}
	}
	for kind, sql := range map[string]string{
		"function": "SELECT count(*) FROM pg_proc WHERE pronamespace = 'fencepost'::regnamespace",
		"guarded":  "SELECT count(*) FROM pg_proc WHERE pronamespace = 'fencepost'::regnamespace AND NOT has_function_privilege('public', oid, 'EXECUTE')",
		"table":    "SELECT count(*) FROM pg_class WHERE relnamespace = 'fencepost'::regnamespace AND relkind = 'r' AND relname <> 'migrations'",
		"column":   "SELECT count(*) FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid WHERE relnamespace = 'fencepost'::regnamespace AND relkind = 'r' AND relname <> 'migrations' AND attnum > 0",
		"trigger":  "SELECT count(*) FROM pg_trigger t JOIN pg_class c ON c.oid = tgrelid WHERE relnamespace = 'fencepost'::regnamespace AND NOT tgisinternal",
	} {
		var n int
		testkit.Must(t, pool.QueryRow(t.Context(), sql).Scan(&n))
		if n != kinds[kind] {
			t.Errorf("%s: %d are expected, the database has %d", kind, kinds[kind], n)
		}
	}
}
