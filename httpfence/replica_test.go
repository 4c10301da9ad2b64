package httpfence_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
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
	"github.com/fencepost-go/fencepost/internal/longtest"
	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/sqlfence"
	"github.com/fencepost-go/fencepost/sqlfence/sqladmin"
	"github.com/fencepost-go/fencepost/sqlfence/sqlrow"
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

// ledger returns the URL of a database with sqlfence's schema and the ledger's.
func ledger(t testing.TB) string {
	return pgtest.MigratedDatabase(t, "ledger", func(ctx context.Context, pool *pgxpool.Pool) error {
		err := sqladmin.Pgx(pool).Migrate(ctx)
		if err == nil {
			_, err = pool.Exec(ctx, ledgerSchema)
		}
		return err
	})
}

// replica is one process of the service, with a pool and a DB of its own.
type replica struct {
	db     *sqlfence.DB[pgx.Tx]
	pool   *pgxpool.Pool
	rows   sqlrow.Executor
	closes *sqlrow.Table
}

func newReplica(t testing.TB, url string) *replica {
	t.Helper()
	pool, err := pgxpool.New(context.Background(), url)
	testkit.Must(t, err)
	t.Cleanup(pool.Close)
	// The timeout for a hanging holder must not end one that a slow machine
	// delays.
	db, err := sqlfence.Pgx(pool, &sqlfence.Options{
		LockTimeout: testkit.Patience, IdleTimeout: testkit.Patience, TerminateAfter: testkit.Patience, CommitTimeout: testkit.Patience,
	})
	testkit.Must(t, err)
	rows := sqlrow.Pgx(pool)
	accounts, err := sqlrow.NewTable([]string{"accounts"}, []string{"id"}, nil, &sqlrow.TableOptions{InsecureAnyResource: true, Rule: guard.SameOrNewer})
	testkit.Must(t, err)
	return &replica{db, pool, rows, accounts}
}

// fence guards with the replica's marks and transactions. Most tests here
// distinguish holders only by their tokens.
func (p *replica) fence() *httpfence.TxMiddleware {
	return guard.Must(httpfence.NewTx(p.db.Transactor(), httpfence.ChiParam("id"), &httpfence.Options{
		MaxWait: testkit.Patience, TokenOnly: true, InsecureAnyResource: true,
		Logger: slog.New(slog.DiscardHandler),
	}))
}

// surfaces are the ways to guard the handler; work is what takes its time.
var surfaces = map[string]func(p *replica, work func(*http.Request)) http.Handler{
	"admission alone": func(p *replica, work func(*http.Request)) http.Handler {
		fence := p.fence()
		return route(fence.Admit, func(w http.ResponseWriter, r *http.Request) {
			work(r)
			claim, _ := guard.ClaimFrom(r.Context())
			if _, err := p.pool.Exec(r.Context(), writeSQL, int64(claim.Token)); err != nil {
				fence.Reject(w, r, err)
			}
		})
	},
	"Admit and a fenced statement": func(p *replica, work func(*http.Request)) http.Handler {
		fence := p.fence()
		return route(fence.Admit, func(w http.ResponseWriter, r *http.Request) {
			work(r)
			claim, _ := guard.ClaimFrom(r.Context())
			err := pgx.BeginFunc(r.Context(), p.pool, func(tx pgx.Tx) error {
				if err := p.closes.Update(r.Context(), sqlrow.Pgx(tx), claim, sqlrow.Key{claim.Resource}, sqlrow.Set{"seq": sqlrow.Raw("seq + 1")}); err != nil {
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
	"InTx": func(p *replica, work func(*http.Request)) http.Handler {
		fence := p.fence()
		return route(fence.InTx, func(w http.ResponseWriter, r *http.Request) {
			work(r)
			claim, _ := guard.ClaimFrom(r.Context())
			tx, _ := p.db.TxFrom(r.Context())
			if _, err := tx.Exec(r.Context(), writeSQL, int64(claim.Token)); err != nil {
				fence.Reject(w, r, err)
				return
			}
			w.WriteHeader(http.StatusOK)
		})
	},
}

func route(guarded func(http.Handler) http.Handler, h http.HandlerFunc) http.Handler {
	router := chi.NewRouter()
	router.With(guarded).Post("/accounts/{id}/close", h)
	return router
}

func post(ctx context.Context, client *http.Client, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, nil)
	if err != nil {
		return err
	}
	resp, err := httpfence.Do(client, req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	_, err = io.Copy(io.Discard, resp.Body)
	return err
}

// holders is how many follow each other; the control needs half of them to have
// written late.
var holders = longtest.ByLength(12, 150)

// TestP1HostileHandOver: many holders with four requests each overlap on two
// replicas, in handlers that take 0 to 6 ms. Every other holder is inside its
// handlers until its successor's write is acknowledged, and then writes.
// Admission by itself lets each of those writes through, which is the control; a
// write that compares lets none through.
func TestP1HostileHandOver(t *testing.T) {
	for name, surface := range surfaces {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stale, total, acknowledged := handOver(t, surface, name != "InTx")
			t.Logf("%d stale of %d writes", stale, total)
			switch {
			case total != acknowledged:
				t.Errorf("%d writes took effect, %d were acknowledged", total, acknowledged)
			case name == "admission alone" && stale < int64(holders/2):
				t.Errorf("the control shows only %d stale writes: the test is not hostile", stale)
			case name != "admission alone" && stale != 0:
				t.Errorf("%d stale writes", stale)
			}
		})
	}
}

// handOver runs all holders. overtaken says that every other one waits in its
// handlers to be overtaken. Behind InTx that would never end: there a successor
// waits until they have ended, so only the time that handlers take is hostile.
func handOver(t *testing.T, surface func(*replica, func(*http.Request)) http.Handler, overtaken bool) (stale, total, acknowledged int64) {
	const requests = 4
	url := ledger(t)
	ctx, fail := context.WithTimeout(context.Background(), testkit.Patience) // ends a hang
	defer fail()
	await := func(c <-chan struct{}) {
		select {
		case <-c:
		case <-ctx.Done():
		}
	}
	written := make([]chan struct{}, holders+1) // closed when a write of the holder is acknowledged
	wrote := make([]sync.Once, holders+1)
	for i := range written {
		written[i] = make(chan struct{})
	}
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
		if overtaken && claim.Token%2 == 1 {
			await(written[claim.Token+1])
			return
		}
		time.Sleep(rand.N(slowest))
	}
	var replicas [2]*httptest.Server
	for i := range replicas {
		p := newReplica(t, url)
		if i == 0 {
			slowest = max(6*time.Millisecond, 4*raiseTime(t, p))
		}
		replicas[i] = httptest.NewServer(surface(p, work))
		t.Cleanup(replicas[i].Close)
	}
	transport := &http.Transport{MaxIdleConnsPerHost: 64}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: guard.Must(httpfence.NewTransport(transport, []string{replicas[0].URL, replicas[1].URL}, nil))}

	var ok, newest atomic.Int64
	var group sync.WaitGroup
	for holder := 1; holder <= holders; holder++ {
		claim := guard.Claim{Resource: "acme", Token: guard.Token(holder)}
		for n := range requests {
			group.Go(func() {
				err := post(guard.WithClaim(ctx, claim), client, replicas[n%2].URL+"/accounts/acme/close")
				switch {
				case err == nil:
					ok.Add(1)
					wrote[holder].Do(func() { close(written[holder]) })
					if holder == holders {
						newest.Add(1)
					}
				case errors.Is(err, guard.ErrStale):
					enter(claim.Token)
				default:
					t.Errorf("token %d: %v", holder, err)
					fail()
				}
			})
		}
		// The next holder arrives while this one's handlers are at work.
		await(inside[holder])
		if overtaken && holder%2 == 0 {
			await(written[holder])
		}
	}
	group.Wait()
	if newest.Load() != requests {
		t.Errorf("only %d of %d requests of the newest holder succeeded", newest.Load(), requests)
	}
	p := newReplica(t, url)
	testkit.Must(t, p.pool.QueryRow(t.Context(), staleSQL).Scan(&stale, &total))
	return stale, total, ok.Load()
}

// raiseTime is how long a hand-over takes here. If that is milliseconds,
// handlers must take that much longer, or nothing would overlap.
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

// TestP2RaiseEndpoint: a new holder that raises before it reads loses no
// update of an older one that was still writing, because the raise waits for
// it. The control raises a mark that is unrelated to the transaction.
func TestP2RaiseEndpoint(t *testing.T) {
	for _, c := range []struct {
		name string
		lost bool
	}{
		{"the transaction's own mark", false},
		{"control: another mark", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := newReplica(t, ledger(t))
			fence := p.fence()
			raising := fence.Middleware
			if c.lost {
				raising = guard.Must(httpfence.New(guard.NewMemory(), httpfence.ChiParam("id"), nil))
			}
			inside, proceed := make(chan struct{}), make(chan struct{})
			router := chi.NewRouter()
			router.With(fence.InTx).Post("/accounts/{id}/close", func(w http.ResponseWriter, r *http.Request) {
				close(inside)
				<-proceed
				tx, _ := p.db.TxFrom(r.Context())
				if _, err := tx.Exec(r.Context(), writeSQL, 10); err != nil {
					fence.Reject(w, r, err)
					return
				}
				w.WriteHeader(http.StatusOK)
			})
			router.Post("/accounts/{id}/raise", raising.Raise)

			old := make(chan int)
			go func() { old <- send(router, "POST", "/accounts/acme/close", "10").StatusCode }()
			<-inside
			raised := make(chan int)
			go func() { raised <- send(router, "POST", "/accounts/acme/raise", "11").StatusCode }()
			if c.lost { // the raise does not wait: the new holder would read now
				if status := <-raised; status != http.StatusNoContent {
					t.Errorf("raise: %d", status)
				}
			}
			if !c.lost {
				pgtest.Blocked(t, p.pool, "fencepost.raise(", 1)
				select {
				case status := <-raised:
					t.Errorf("the raise did not wait: %d", status)
				default:
				}
			}
			var before, after int64
			read := func(n *int64) {
				testkit.Check(t, p.pool.QueryRow(t.Context(), "SELECT seq FROM accounts").Scan(n))
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

// TestRequestsAreReportedOnce: if one observer watches a fence and the
// sqlfence.DB that is its store and its transactor, each request gives one
// event, from the fence. The control is the handler's own transaction, which
// the fence does not know about.
func TestRequestsAreReportedOnce(t *testing.T) {
	var events []guard.Event
	observer := guard.ObserverFunc(func(_ context.Context, e guard.Event) { events = append(events, e) })
	pool := guard.Must(pgxpool.New(t.Context(), ledger(t)))
	defer pool.Close()
	db, err := sqlfence.Pgx(pool, &sqlfence.Options{Observer: observer})
	testkit.Must(t, err)
	resource := func(*http.Request) (string, error) { return "r", nil }
	fence, err := httpfence.NewTx(db.Transactor(), resource, &httpfence.Options{Observer: observer, InsecureAnyResource: true})
	testkit.Must(t, err)
	nothing := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	for _, c := range []struct {
		what    string
		token   string
		handler http.Handler
		reason  guard.Reason
	}{
		{"Raise", "5", http.HandlerFunc(fence.Raise), guard.ReasonNone},
		{"admitted", "5", fence.Admit(nothing), guard.ReasonNone},
		{"refused by Admit", "4", fence.Admit(nothing), guard.ReasonStale},
		{"InTx", "5", fence.InTx(nothing), guard.ReasonNone},
		{"refused by InTx", "4", fence.InTx(nothing), guard.ReasonStale},
		{"refused without a token", "", fence.Admit(nothing), guard.ReasonMissing},
	} {
		events = nil
		r := httptest.NewRequest(http.MethodPost, "/", http.NoBody)
		if c.token != "" {
			r.Header.Set(httpfence.TokenHeader, c.token)
			r.Header.Set(httpfence.LeaseHeader, "lease-"+c.token)
		}
		c.handler.ServeHTTP(httptest.NewRecorder(), r)
		if len(events) != 1 || events[0].Surface != guard.SurfaceHTTP || events[0].Reason != c.reason {
			t.Errorf("%s: events %+v", c.what, events)
		}
	}
	events = nil
	if err := db.Raise(t.Context(), guard.Claim{Resource: "r", Token: 4}); err == nil || len(events) != 1 || events[0].Surface != guard.SurfaceSQL {
		t.Errorf("control: %v, events %+v", err, events)
	}
}
