package sqlfence

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgtest"
)

var time2001 = time.Date(2001, 1, 1, 0, 0, 0, 0, time.UTC)

// mortal is the server that tests may kill and start again. They take turns, and
// each leaves it running.
var mortal struct {
	sync.Mutex
	server *pgtest.Server
}

func mortalServer(t *testing.T) *pgtest.Server {
	t.Helper()
	t.Parallel()
	mortal.Lock()
	t.Cleanup(mortal.Unlock)
	if mortal.server == nil {
		s, err := pgtest.Start(context.Background(), &pgtest.Options{Settings: map[string]string{
			"max_prepared_transactions": "4", "wal_level": "logical", "wal_writer_delay": "10s",
		}})
		must(t, err)
		mortal.server = s // it ends with this process
	}
	return mortal.server
}

// newEnvOn is a new database of a server.
func newEnvOn(t *testing.T, driver int, s *pgtest.Server) *env {
	t.Helper()
	url, drop, err := s.NewDatabase(t.Context())
	must(t, err)
	t.Cleanup(drop)
	return newEnvAt(t, driver, url)
}

func restart(t *testing.T, s *pgtest.Server, envs ...*env) {
	t.Helper()
	must(t, s.Restart(context.Background()))
	for _, e := range envs {
		e.admin.Reset()
		e.reconnect()
	}
}

// survivors are the ways to raise a mark, each with what must then be there.
var survivors = []struct {
	name  string
	raise func(ctx context.Context, e *env, db fence, token guard.Token) error
	there func(ctx context.Context, e *env, db fence, token guard.Token) bool
}{
	{"Raise", func(ctx context.Context, _ *env, db fence, token guard.Token) error {
		return db.Raise(ctx, claimOf("r", token))
	}, markIs("r")},
	{"Admit", func(ctx context.Context, _ *env, db fence, token guard.Token) error {
		_, err := db.Admit(ctx, claimOf("r", token))
		return err
	}, markIs("r")},
	{"Enter", func(ctx context.Context, _ *env, db fence, token guard.Token) error {
		return entering(db)(ctx, claimOf("r", token), func(context.Context, testTx) error { return nil })
	}, markIs("r")},
	{"Retire", func(ctx context.Context, e *env, db fence, token guard.Token) error {
		e.exec("INSERT INTO fencepost.marks (resource, token, raised_at) VALUES ('old', $1, '2000-01-01')", int64(token-1))
		r, err := db.Retire(ctx, time2001)
		if r.Count != 1 || r.Floor != token-1 {
			e.Errorf("%+v", r)
		}
		return err
	}, func(ctx context.Context, _ *env, db fence, token guard.Token) bool {
		mark, err := db.Mark(ctx, "unknown")
		return err == nil && mark == guard.Mark{Token: token - 1, Floor: true}
	}},
	{"Takeover", func(_ context.Context, e *env, db fence, token guard.Token) error { return e.take(db, token, "row") }, rowIs("row")},
	{"Takeover in a transaction", func(ctx context.Context, e *env, db fence, token guard.Token) error {
		return db.plain(ctx, func(_ context.Context, tx testTx) error { return e.take(tx.in(), token, "row") })
	}, rowIs("row")},
}

func markIs(resource string) func(context.Context, *env, fence, guard.Token) bool {
	return func(ctx context.Context, _ *env, db fence, token guard.Token) bool {
		mark, err := db.Mark(ctx, resource)
		return err == nil && mark.Token == token && !mark.Floor
	}
}

// rowIs reports whether the row's older holder is refused.
func rowIs(id string) func(context.Context, *env, fence, guard.Token) bool {
	return func(ctx context.Context, e *env, db fence, token guard.Token) bool {
		err := e.takenTable().Update(ctx, db, claimOf("r", token-1), Key{id}, Set{"v": 7})
		return errors.Is(err, guard.ErrStale)
	}
}

func (e *env) takenTable() *Table {
	return e.table("taken", []string{"id"}, &TableOptions{Rule: guard.SameOrNewer})
}

func (e *env) take(q Querier, token guard.Token, id string) error {
	return e.takenTable().Raise(context.Background(), q, claimOf("r", token), Key{id}, nil)
}

// TestRaiseSurvivesCrash (P2, P3): on a server whose default is
// synchronous_commit=off, what raised a mark and was acknowledged is there after
// a crash. One way in each round, because each saves what was before it. The
// control in each round leaves the setting alone; it is made last, because a
// synchronous commit after it would save it.
func TestRaiseSurvivesCrash(t *testing.T) {
	s := mortalServer(t)
	envs := make([]*env, len(openers))
	for i := range openers {
		e := newEnvOn(t, i, s)
		e.exec("CREATE TABLE taken (id text PRIMARY KEY, v int, last_fencing_token bigint NOT NULL DEFAULT 0); INSERT INTO taken VALUES ('row'), ('control')")
		def := e.text("SELECT pg_get_functiondef('fencepost.raise'::regproc)")
		def = strings.Replace(def, "fencepost.raise(", "fencepost.raise_unsafe(", 1)
		e.exec(strings.Replace(def, "fencepost.make_durable(), ", "", 1))
		e.exec("ALTER DATABASE " + pgx.Identifier{e.text("SELECT current_database()")}.Sanitize() + " SET synchronous_commit = off")
		e.admin.Reset()
		e.reconnect()
		envs[i] = e
	}
	ctx, first := t.Context(), rand.IntN(len(envs))
	lost, rounds := map[bool]int{}, campaign(len(survivors))
	// The server may write a control to disk on its own, as it does with one in
	// ten; then there is another round.
	for round := 0; round < rounds || (lost[true] == 0 || lost[false] == 0) && round < rounds+20; round++ {
		token, way := guard.Token(2*round+2), survivors[round%len(survivors)]
		e := envs[(first+round+round/len(survivors))%len(envs)]
		if err := way.raise(ctx, e, e.db, token); err != nil {
			t.Fatalf("%s, %s: %v", e.driver, way.name, err)
		}
		ofRow := strings.HasPrefix(way.name, "Takeover")
		if ofRow {
			unlifted := e.altered(func(sql string) string {
				return strings.Replace(sql, "ANY (ARRAY['off', 'local'])", "ANY (ARRAY['never'])", 1)
			}, func() {})
			must(t, e.take(unlifted, token, "control"))
		} else {
			e.exec("SELECT fencepost.raise_unsafe('control', $1, '', 1000)", int64(token))
		}
		must(t, s.StopImmediate())
		restart(t, s, envs...)
		if !way.there(ctx, e, e.db, token) {
			t.Errorf("%s, %s: token %d is not there", e.driver, way.name, token)
		}
		control := markIs("control")
		if ofRow {
			control = rowIs("control")
		}
		if !control(ctx, e, e.db, token) {
			lost[ofRow]++
		}
	}
	if lost[false] == 0 || lost[true] == 0 {
		t.Error("no raise, or no takeover, of the control was lost: the test cannot fail")
	}
	t.Logf("the control lost %d raises and %d takeovers", lost[false], lost[true])
}
