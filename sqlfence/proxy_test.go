package sqlfence

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"net"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/faultproxy"
	"github.com/fencepost-go/fencepost/internal/longtest"
	"github.com/fencepost-go/fencepost/internal/pgerr"
	"github.com/fencepost-go/fencepost/internal/pgtest"
)

// proxy stands between a DB and the server and reads what the client sends,
// message by message (PostgreSQL documentation, 55.7).
type proxy struct {
	*faultproxy.Proxy

	mu      sync.Mutex
	rule    func(message string) fate
	rewrite func(message []byte) []byte
	fates   map[*faultproxy.Conn]fate // those of connections whose client is not heard any more
}

// fate is what happens to a message of the client.
type fate int

const (
	forward   fate = iota
	cutBefore      // the message is not forwarded, the connection is cut
	cutAfter       // it is forwarded, and cut as soon as the server answers
	mute           // it is forwarded, and the answer never comes
)

// newProxy returns a proxy and the configuration that makes a DB use it.
func (e *env) newProxy() (*proxy, func(*pgx.ConnConfig)) {
	e.Helper()
	config, err := pgconn.ParseConfig(e.url)
	must(e, err)
	network, address := pgconn.NetworkAddress(config.Host, config.Port)
	through, err := faultproxy.New(network, address, &faultproxy.Options{Split: readMessage})
	must(e, err)
	e.Cleanup(through.Close)
	p := &proxy{Proxy: through, fates: map[*faultproxy.Conn]fate{}}
	through.Set(p.decide)
	host, port, _ := net.SplitHostPort(through.Addr())
	number, _ := strconv.ParseUint(port, 10, 16)
	return p, func(c *pgx.ConnConfig) {
		c.Host, c.Port = host, uint16(number)
		c.TLSConfig, c.Fallbacks = nil, nil
		c.LookupFunc = func(context.Context, string) ([]string, error) { return []string{host}, nil }
	}
}

// set makes rule decide about messages from now on.
func (p *proxy) set(rule func(message string) fate) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rule = rule
}

// change makes rewrite replace messages from now on.
func (p *proxy) change(rewrite func(message []byte) []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rewrite = rewrite
}

func (p *proxy) decide(m *faultproxy.Message) {
	p.mu.Lock()
	rule, rewrite, what := p.rule, p.rewrite, p.fates[m.Conn]
	p.mu.Unlock()
	switch {
	case what == mute, what != forward && !m.Answer:
		m.Fate = faultproxy.Drop
		return
	case what == cutAfter:
		m.Fate = faultproxy.Cut
		return
	case m.Answer:
		return
	}
	if rewrite != nil {
		m.Data = rewrite(m.Data)
	}
	if rule != nil {
		what = rule(string(m.Data))
	}
	if what == cutBefore {
		m.Fate = faultproxy.Cut
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fates[m.Conn] = what
}

var commitWord = regexp.MustCompile(`(?i)\bcommit\b`)

// rolledBack replaces the COMMIT in a query or a statement to be prepared with
// ROLLBACK, so that the server answers a COMMIT as if the transaction had failed.
func rolledBack(message []byte) []byte {
	if message[0] != 'Q' && message[0] != 'P' {
		return message
	}
	message = commitWord.ReplaceAll(message, []byte("ROLLBACK"))
	binary.BigEndian.PutUint32(message[1:5], uint32(len(message)-1))
	return message
}

// on applies what to the messages that contain text, whatever its case.
func on(text string, what fate) func(string) fate {
	return func(message string) fate {
		if strings.Contains(strings.ToLower(message), text) {
			return what
		}
		return forward
	}
}

// onCommit applies what to the COMMIT of a transaction: a simple query, or the
// prepared statement of a pipeline, which the server answers at its Sync.
func onCommit(what fate) func(string) fate {
	digest := sha256.Sum256([]byte("COMMIT"))
	name := "\x00stmtcache_" + hex.EncodeToString(digest[:24]) + "\x00"
	var bound atomic.Bool
	return func(message string) fate {
		switch {
		case message[0] == 'Q':
			return on("commit\x00", what)(message)
		case message[0] == 'B' && strings.Contains(message, name):
			bound.Store(what != cutBefore)
			if what == cutBefore {
				return what
			}
		case message[0] == 'S' && bound.CompareAndSwap(true, false):
			return what
		}
		return forward
	}
}

// readMessage reads one message: a type, absent in the first, a length that
// counts itself, and the rest.
func readMessage(r io.Reader, first bool) ([]byte, error) {
	head := make([]byte, 5)
	if first {
		head = head[:4]
	}
	if _, err := io.ReadFull(r, head); err != nil {
		return nil, err
	}
	rest := make([]byte, int(binary.BigEndian.Uint32(head[len(head)-4:]))-4)
	_, err := io.ReadFull(r, rest)
	return append(head, rest...), err
}

// pgBouncer starts PgBouncer with transaction pooling in front of the database
// and returns its port. Its databases are "few", with three connections to the
// server, and "one", with one.
func (e *env) pgBouncer(t *testing.T) uint16 { t.Helper(); return e.pgBouncerIn(t, "transaction") }

// pgBouncerIn is pgBouncer in another pool_mode.
func (e *env) pgBouncerIn(t *testing.T, mode string) uint16 {
	t.Helper()
	return pgtest.PgBouncer(t, e.admin.Config().ConnConfig, "one", map[string]int{"few": 3, "one": 1}, "pool_mode = "+mode, "max_client_conn = 200").Port
}

// pooledModes are the exec modes of pgx without prepared statements.
var pooledModes = []pgx.QueryExecMode{pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol}

func (e *env) through(port uint16, database string, mode pgx.QueryExecMode) fence {
	return e.open(nil, func(c *pgx.ConnConfig) {
		c.Host, c.Port, c.Database, c.Fallbacks, c.TLSConfig = "127.0.0.1", port, database, nil, nil
		c.DefaultQueryExecMode = mode
	})
}

// TestPgBouncer (P1, P2, P4, P6): every way works, and refuses, when many
// clients share connections to the server.
func TestPgBouncer(t *testing.T) {
	t.Parallel()
	for driver := range openers {
		for i, mode := range pooledModes {
			if !longtest.Long && i != driver {
				continue
			}
			t.Run(openers[driver].driver+"/"+mode.String(), func(t *testing.T) {
				t.Parallel()
				e := newEnv(t, driver)
				db := e.through(e.pgBouncer(t), "few", mode)
				ctx := t.Context()
				e.ledgerTorture("triggers", e.byTrigger(db, "", e.guardLedger), campaign(4))
				e.freshLedger()
				e.ledgerTorture("InTx", db.fenced, campaign(2))
				e.createPairs()
				e.exec("INSERT INTO pairs (a, b) VALUES (1, 'x')")
				pairs := e.table("pairs", []string{"a", "b"}, nil)
				noError(t, pairs.Update(ctx, db, claimOf("r", 6), Key{1, "x"}, Set{"v": "new"}))
				wantReason(t, pairs.Update(ctx, db, claimOf("r", 5), Key{1, "x"}, Set{"v": "old"}), guard.ReasonStale, "a stale statement")
				// A raise waits for a transaction on another connection.
				open := make(chan error, 1)
				err := db.fenced(ctx, claimOf("r", 7), func(ctx context.Context, tx testTx) error {
					go func() { open <- db.Raise(context.Background(), claimOf("r", 8)) }()
					e.waitForWaiters(1)
					_, err := tx.exec(ctx, "INSERT INTO pairs (a, b) VALUES (2, 'y')")
					return err
				})
				noError(t, errors.Join(err, <-open))
				wantReason(t, db.fenced(ctx, claimOf("r", 7), func(context.Context, testTx) error { return nil }), guard.ReasonStale, "a stale transaction")
			})
		}
	}
}

// TestPgBouncerClaimsDoNotLeak (P1): a claim that was presented ends with its
// transaction, although the next client's transaction runs on the same
// connection to the server; nor does one that was set for the session, which stays there. The
// control is a session that says for which transaction it is.
func TestPgBouncerClaimsDoNotLeak(t *testing.T) {
	e := someEnv(t)
	e.guardWriters()
	port := e.pgBouncer(t)
	a, b := e.through(port, "one", pgx.QueryExecModeExec), e.through(port, "one", pgx.QueryExecModeExec)
	backend := func(db fence) (pid int64) {
		if _, err := db.row(t.Context(), "SELECT pg_backend_pid()", nil, &pid); err != nil {
			t.Fatal(err)
		}
		return pid
	}
	if backend(a) != backend(b) {
		t.Fatal("the clients do not share their connection")
	}
	unclaimed := func() error { return ErrorFrom(b.unfenced(t.Context(), "UPDATE items SET v = 9 WHERE id = 1")) }
	noError(t, presenting(a, "UPDATE items SET v = 8 WHERE id = 1", claimOf("a", 5)))
	noError(t, a.fenced(t.Context(), claimOf("a", 5), func(context.Context, testTx) error { return nil }))
	wantReason(t, unclaimed(), guard.ReasonMissing, "another client without a claim")
	set := func(db fence, forSession bool, end string) error {
		return ErrorFrom(db.plain(t.Context(), inTurn(
			running("SELECT set_config('fencepost.claims', concat(pg_current_xact_id(), ' ', $1::text), $2)", claimsSetting(claimOf("a", 5)), !forSession),
			running(end))))
	}
	const update = "UPDATE items SET v = 9 WHERE id = 1"
	must(t, a.unfenced(t.Context(), "SELECT set_config('fencepost.claims', $1::text, false)", claimsSetting(claimOf("a", 5))))
	wantReason(t, unclaimed(), guard.ReasonMissing, "after a claim that was set for the session")
	e.wantWritten("the transaction that set it for the session", set(a, true, update))
	wantReason(t, unclaimed(), guard.ReasonMissing, "after a claim that was set for the session in a transaction")
	must(t, e.db.Raise(t.Context(), claimOf("a", 6)))
	wantReason(t, unclaimed(), guard.ReasonMissing, "the same after a takeover")
	wantReason(t, set(b, false, update), guard.ReasonStale, "one that presents")
	undo := e.mutate("claims", "split_part(setting, ' ', 1) = pg_current_xact_id()::text", "setting <> ''")
	defer undo()
	wantReason(t, unclaimed(), guard.ReasonStale, "a setting of the session that counts, the control")
}

// TestPgBouncerPreparedStatements (P5): pgx's default mode prepares statements,
// which two clients on one server connection do not share. The error says which
// mode to set.
func TestPgBouncerPreparedStatements(t *testing.T) {
	e := someEnv(t)
	port := e.pgBouncer(t)
	e.createPairs()
	e.exec("INSERT INTO pairs (a, b) VALUES (1, 'x')")
	pairs := e.table("pairs", []string{"a", "b"}, nil)
	a, b := e.through(port, "one", pgx.QueryExecModeCacheStatement), e.through(port, "one", pgx.QueryExecModeCacheStatement)
	must(t, pairs.Update(t.Context(), a, claimOf("r", 1), Key{1, "x"}, Set{"v": "a"}))
	err := pairs.Update(t.Context(), b, claimOf("r", 2), Key{1, "x"}, Set{"v": "b"})
	if err == nil || !strings.Contains(err.Error(), "QueryExecModeExec") {
		t.Errorf("the second client: %v", err)
	}
}

// TestPgBouncerModes (P6): fences work in session mode. In statement mode they are ErrSetup, at
// once, and a migration makes nothing; the control is the transaction mode.
func TestPgBouncerModes(t *testing.T) {
	for i, mode := range []string{"session", "transaction", "statement"} {
		t.Run(mode, func(t *testing.T) {
			e := onDatabase(t, i%2, pgtest.Database(t))
			port := e.pgBouncerIn(t, mode)
			db := e.through(port, "few", pgx.QueryExecModeExec)
			err := db.Migrate(t.Context())
			if mode != "statement" {
				noError(t, err, "migration")
				noError(t, db.fenced(t.Context(), claimOf("r", 5), running("SELECT 1")), "InTx")
				noError(t, db.Raise(t.Context(), claimOf("r", 6)), "Raise")
				wantReason(t, db.fenced(t.Context(), claimOf("r", 5), ran), guard.ReasonStale, "a stale transaction")
				return
			}
			wantSays(t, err, guard.ReasonSetup, "pool_mode", "migration")
			e.wantInt(0, "schemas that the migration made", "SELECT count(*) FROM pg_namespace WHERE nspname = 'fencepost'")
			must(t, e.db.Migrate(t.Context()))
			must(t, e.db.Raise(t.Context(), claimOf("r", 5)))
			e.createPairs()
			for what, call := range e.calls(db, claimOf("r", 5), "InTx", "Retire", "Verify", "Triggers") {
				wantSays(t, call(t.Context()), guard.ReasonSetup, "pool_mode", what)
			}
			wantSays(t, db.Raise(t.Context(), claimOf("r", 6)), guard.ReasonSetup, "pool_mode", "Raise")
		})
	}
}

// TestPGlite (P6): a server with one session is ErrSetup at once. Here it only says what PGlite
// says of itself, and has no other session either: .github/TESTED.md names the real one.
func TestPGlite(t *testing.T) {
	e := onDatabase(t, 0, pgtest.Database(t))
	e.exec(`CREATE OR REPLACE FUNCTION pg_catalog.version() RETURNS text LANGUAGE sql AS
		'SELECT ''PostgreSQL 18.6 (PGlite 0.5.14) on wasm32-unknown-emscripten, compiled by emcc, 32-bit'''`)
	for what, call := range e.calls(e.db, claimOf("r", 5), "Migrate", "Verify") {
		wantSays(t, call(t.Context()), guard.ReasonSetup, "PGlite", what)
	}
	e.wantInt(0, "schemas that the migration made", "SELECT count(*) FROM pg_namespace WHERE nspname = 'fencepost'")
}

// TestOutdatedPlan (P2, P6): after a column that a raise reads has changed its type, one raise
// at most is refused in a process, as unavailable and with the way out, also behind a pooler
// that keeps prepared statements for its clients (PgBouncer 1.21 and later, with
// max_prepared_statements), as keptPlans does here. The control is a statement that is sent as
// before: it is refused for good.
func TestOutdatedPlan(t *testing.T) {
	for i, o := range openers {
		t.Run(o.driver, func(t *testing.T) {
			e := newEnv(t, i)
			e.createPairs()
			column := "by_" + o.driver // the process remembers the statement
			e.exec("INSERT INTO pairs (a, b) VALUES (1, 'x'); ALTER TABLE pairs ADD " + column + " int NOT NULL DEFAULT 0")
			p, through := e.newProxy()
			p.change(keptPlans())
			db := e.on(e.connect(1, through, func(c *pgx.ConnConfig) { c.DefaultQueryExecMode = pgx.QueryExecModeCacheStatement }), nil)
			table := e.table("pairs", []string{"a", "b"}, &TableOptions{Rule: guard.SameOrNewer})
			raise := func() error {
				var n int64
				return table.Raise(t.Context(), db, claimOf("r", 5), Key{1, "x"}, Dest{column: &n})
			}
			must(t, raise())
			e.exec("ALTER TABLE pairs ALTER " + column + " TYPE bigint")
			wantSays(t, raise(), guard.ReasonUnavailable, "RECONNECT", "the first")
			for range 3 {
				noError(t, raise(), "the others")
			}
			read := func() error { return db.unfenced(t.Context(), "SELECT "+column+" FROM pairs WHERE a = $1", 1) }
			must(t, read())
			e.exec("ALTER TABLE pairs ALTER " + column + " TYPE text")
			for range 3 {
				wantState(t, read(), pgerr.NotSupported, "the control")
			}
		})
	}
}

// keptPlans makes of a client's messages what a pooler sends that keeps prepared statements: what
// its client closes stays, and what it prepares under a name that is there is not prepared.
func keptPlans() func(message []byte) []byte {
	there, others := map[string]bool{}, byte(0)
	return func(message []byte) []byte {
		switch message[0] {
		case 0: // a connection begins
			clear(there)
		case 'P': // Parse: the name is first
			name, _, _ := bytes.Cut(message[5:], []byte{0})
			if len(name) > 0 && there[string(name)] {
				others++
				message[5], message[6] = '_', 'A'+others // another one of the same length, which nobody uses
			}
			there[string(name)] = true
		case 'C': // Close, of a statement
			if message[5] == 'S' && len(message) > 7 {
				message[6] = '-'
			}
		}
		return message
	}
}
