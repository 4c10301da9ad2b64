package httpfence_test

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/httpfence"
	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/sqlfence"
)

// A write takes the account's row lock until it commits, so that seq is the
// order in which the writes took effect.
const (
	ledgerSchema = `
CREATE TABLE accounts (id text PRIMARY KEY, seq bigint NOT NULL DEFAULT 0, last_fencing_token bigint NOT NULL DEFAULT 0);
CREATE TABLE writes (seq bigint, token bigint);
INSERT INTO accounts (id) VALUES ('acme');`
	writeSQL = `WITH a AS (UPDATE accounts SET seq = seq + 1 WHERE id = 'acme' RETURNING seq)
INSERT INTO writes SELECT seq, $1 FROM a`
	// staleSQL counts the writes that came after one of a newer holder.
	staleSQL = `SELECT count(*) FILTER (WHERE token < highest), count(*) FROM (
  SELECT token, max(token) OVER (ORDER BY seq) AS highest FROM writes) w`
)

// replica is one process of the service, with a pool and a DB of its own.
type replica struct {
	db     *sqlfence.DB[pgx.Tx]
	pool   *pgxpool.Pool
	closes *sqlfence.Table
}

func newReplica(t testing.TB, url string) *replica {
	t.Helper()
	pool, err := pgxpool.New(context.Background(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	db, err := sqlfence.Pgx(pool, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	accounts, err := sqlfence.NewTable([]string{"accounts"}, []string{"id"}, &sqlfence.TableOptions{Rule: guard.SameOrNewer})
	if err != nil {
		t.Fatal(err)
	}
	return &replica{db, pool, accounts}
}

// surfaces are the ways to guard the handler; work is what takes its time.
var surfaces = map[string]func(p *replica, work func(*http.Request)) http.Handler{
	"admission alone": func(p *replica, work func(*http.Request)) http.Handler {
		fence := httpfence.New(p.db, httpfence.ChiParam("id"), nil)
		return route(fence.Admit, func(w http.ResponseWriter, r *http.Request) {
			work(r)
			claim, _ := guard.ClaimFrom(r.Context())
			if _, err := p.pool.Exec(r.Context(), writeSQL, int64(claim.Token)); err != nil {
				fence.Reject(w, r, err)
			}
		})
	},
	"Admit and a fenced statement": func(p *replica, work func(*http.Request)) http.Handler {
		fence := httpfence.New(p.db, httpfence.ChiParam("id"), nil)
		return route(fence.Admit, func(w http.ResponseWriter, r *http.Request) {
			work(r)
			claim, _ := guard.ClaimFrom(r.Context())
			err := pgx.BeginFunc(r.Context(), p.pool, func(tx pgx.Tx) error {
				if err := p.closes.Update(r.Context(), p.db.In(tx), claim, sqlfence.Key{claim.Resource}, sqlfence.Set{"seq": sqlfence.Raw("seq + 1")}); err != nil {
					return err
				}
				_, err := tx.Exec(r.Context(), `INSERT INTO writes SELECT seq, $1 FROM accounts WHERE id = 'acme'`, int64(claim.Token))
				return err
			})
			if err != nil {
				fence.Reject(w, r, err)
			}
		})
	},
	"Admit and a fenced transaction": func(p *replica, work func(*http.Request)) http.Handler {
		fence := httpfence.New(p.db, httpfence.ChiParam("id"), nil)
		return route(fence.Admit, func(w http.ResponseWriter, r *http.Request) {
			work(r)
			claim, _ := guard.ClaimFrom(r.Context())
			err := p.db.InTx(r.Context(), claim, func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Exec(ctx, writeSQL, int64(claim.Token))
				return err
			})
			if err != nil {
				fence.Reject(w, r, err)
			}
		})
	},
	"InTx": func(p *replica, work func(*http.Request)) http.Handler {
		fence := httpfence.New(p.db, httpfence.ChiParam("id"), nil)
		return route(fence.InTx(p.db.Transactor(), nil), func(w http.ResponseWriter, r *http.Request) {
			work(r)
			claim, _ := guard.ClaimFrom(r.Context())
			tx, _ := p.db.TxFrom(r.Context())
			if _, err := tx.Exec(r.Context(), writeSQL, int64(claim.Token)); err != nil {
				fence.Reject(w, r, err)
			}
		})
	},
}

func route(guarded func(http.Handler) http.Handler, h http.HandlerFunc) http.Handler {
	router := chi.NewRouter()
	router.With(guarded).Post("/accounts/{id}/close", h)
	return router
}

// TestP1HostileHandOver: 150 holders with four requests each overlap on two
// replicas, in handlers that take 0 to 6 ms. Admission alone lets stale writes
// through, which is the control; a write that compares lets none.
func TestP1HostileHandOver(t *testing.T) {
	for name, surface := range surfaces {
		t.Run(name, func(t *testing.T) {
			stale, total, acknowledged := handOver(t, surface)
			t.Logf("%d stale of %d writes", stale, total)
			switch {
			case total != acknowledged:
				t.Errorf("%d writes took effect, %d were acknowledged", total, acknowledged)
			case name == "admission alone" && stale <= 50:
				t.Errorf("the control shows only %d stale writes: the test is not hostile", stale)
			case name != "admission alone" && stale != 0:
				t.Errorf("%d stale writes", stale)
			}
		})
	}
}

func handOver(t *testing.T, surface func(*replica, func(*http.Request)) http.Handler) (stale, total, acknowledged int64) {
	const holders, requests = 150, 4
	url := pgtest.Database(t)
	inside := make([]chan struct{}, holders+1) // the holder has a request in the handler, or was refused
	for i := range inside {
		inside[i] = make(chan struct{}, 1)
	}
	enter := func(token guard.Token) {
		select {
		case inside[token] <- struct{}{}:
		default:
		}
	}
	var slowest time.Duration
	work := func(r *http.Request) {
		claim, _ := guard.ClaimFrom(r.Context())
		enter(claim.Token)
		time.Sleep(rand.N(slowest))
	}
	var replicas [2]*httptest.Server
	for i := range replicas {
		p := newReplica(t, url)
		if i == 0 {
			if _, err := p.pool.Exec(t.Context(), ledgerSchema); err != nil {
				t.Fatal(err)
			}
			slowest = max(6*time.Millisecond, 4*raiseTime(t, p))
		}
		replicas[i] = httptest.NewServer(surface(p, work))
		t.Cleanup(replicas[i].Close)
	}
	transport := &http.Transport{MaxIdleConnsPerHost: 64}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: httpfence.NewTransport(transport, []string{replicas[0].URL, replicas[1].URL}, nil)}

	var ok, newest atomic.Int64
	var group sync.WaitGroup
	for holder := 1; holder <= holders; holder++ {
		claim := guard.Claim{Resource: "acme", Token: guard.Token(holder)}
		for n := range requests {
			group.Go(func() {
				err := post(guard.WithClaim(context.Background(), claim), client, replicas[n%2].URL+"/accounts/acme/close")
				switch {
				case err == nil:
					ok.Add(1)
					if holder == holders {
						newest.Add(1)
					}
				case errors.Is(err, guard.ErrStale):
					enter(claim.Token)
				default:
					t.Errorf("token %d: %v", holder, err)
				}
			})
		}
		// The next holder comes while this one's handlers are at work.
		<-inside[holder]
	}
	group.Wait()
	if newest.Load() != requests {
		t.Errorf("only %d of %d requests of the newest holder succeeded", newest.Load(), requests)
	}
	p := newReplica(t, url)
	if err := p.pool.QueryRow(t.Context(), staleSQL).Scan(&stale, &total); err != nil {
		t.Fatal(err)
	}
	return stale, total, ok.Load()
}

// raiseTime is how long a hand-over takes here. Where that is milliseconds,
// handlers have to take as much longer, or nothing would overlap.
func raiseTime(t *testing.T, p *replica) time.Duration {
	t.Helper()
	const tries = 21
	times := make([]time.Duration, tries)
	for i := range times {
		start := time.Now()
		if _, err := p.db.Admit(t.Context(), guard.Claim{Resource: "warm-up", Token: guard.Token(i + 1)}); err != nil {
			t.Fatal(err)
		}
		times[i] = time.Since(start)
	}
	slices.Sort(times)
	return times[tries/2]
}

func post(ctx context.Context, client *http.Client, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if err := httpfence.ErrorFrom(resp); err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return errors.New(resp.Status)
	}
	return nil
}

// TestRestartForgetsInMemory: a replica that starts again with marks in memory
// admits a stale token; with PostgreSQL it does not. Nor does another replica.
func TestRestartForgetsInMemory(t *testing.T) {
	url := pgtest.Database(t)
	for name, c := range map[string]struct {
		start  func() guard.Store
		status int
	}{
		"control: in memory": {func() guard.Store { return guard.NewMemory(nil) }, http.StatusOK},
		"in PostgreSQL":      {func() guard.Store { return newReplica(t, url).db }, http.StatusPreconditionFailed},
	} {
		t.Run(name, func(t *testing.T) {
			serve := func(store guard.Store, token string) int {
				return send(httpfence.New(store, httpfence.Literal("acme"), nil).Admit(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})), "POST", "/", token).StatusCode
			}
			before := c.start()
			if status := serve(before, "11"); status != http.StatusOK {
				t.Fatalf("token 11: %d", status)
			}
			if status := serve(before, "10"); status != http.StatusPreconditionFailed {
				t.Fatalf("token 10 before the restart: %d", status)
			}
			if status := serve(c.start(), "10"); status != c.status {
				t.Errorf("token 10 after the restart: %d, want %d", status, c.status)
			}
		})
	}
}

// TestP2RaiseEndpoint: a new holder that raises before it reads loses no
// update of an older one that was still writing, because the raise waits for
// it. The control raises a mark that knows nothing of the transaction.
func TestP2RaiseEndpoint(t *testing.T) {
	for _, c := range []struct {
		name  string
		store func(*replica) guard.Store
		lost  bool
	}{
		{"the transaction's own mark", func(p *replica) guard.Store { return p.db }, false},
		{"control: another mark", func(*replica) guard.Store { return guard.NewMemory(nil) }, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newReplica(t, pgtest.Database(t))
			if _, err := p.pool.Exec(t.Context(), ledgerSchema); err != nil {
				t.Fatal(err)
			}
			fence := httpfence.New(c.store(p), httpfence.ChiParam("id"), nil)
			inside, proceed := make(chan struct{}), make(chan struct{})
			router := chi.NewRouter()
			router.With(fence.InTx(p.db.Transactor(), nil)).Post("/accounts/{id}/close", func(w http.ResponseWriter, r *http.Request) {
				close(inside)
				<-proceed
				tx, _ := p.db.TxFrom(r.Context())
				if _, err := tx.Exec(r.Context(), writeSQL, 10); err != nil {
					fence.Reject(w, r, err)
				}
			})
			router.Post("/accounts/{id}/raise", fence.Raise)

			old := make(chan int)
			go func() { old <- send(router, "POST", "/accounts/acme/close", "10").StatusCode }()
			<-inside
			raised := make(chan int)
			go func() { raised <- send(router, "POST", "/accounts/acme/raise", "11").StatusCode }()
			if c.lost { // it does not wait: the new holder would read now
				if status := <-raised; status != http.StatusNoContent {
					t.Errorf("raise: %d", status)
				}
			}
			select {
			case status := <-raised:
				t.Errorf("the raise did not wait: %d", status)
			case <-time.After(50 * time.Millisecond):
			}
			var before, after int64
			read := func(n *int64) {
				if err := p.pool.QueryRow(t.Context(), "SELECT seq FROM accounts").Scan(n); err != nil {
					t.Error(err)
				}
			}
			if c.lost {
				read(&before)
			}
			close(proceed)
			if status := <-old; status != http.StatusOK {
				t.Errorf("the old holder, which was first: %d", status)
			}
			if !c.lost {
				if status := <-raised; status != http.StatusNoContent {
					t.Errorf("raise: %d", status)
				}
				read(&before)
			}
			if read(&after); (before != after) != c.lost {
				t.Errorf("the new holder read %d, and the account is at %d", before, after)
			}
		})
	}
}
