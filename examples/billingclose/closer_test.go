//go:build unix

package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/httpfence"
	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/s3fence/s3test"
	"github.com/fencepost-go/fencepost/sqlfence/sqladmin"
)

// place is what the fenced closer writes to.
type place struct {
	pool   *pgxpool.Pool
	ledger *httptest.Server
	store  *s3test.Server
	fenced *fenced
}

// newPlace is a place of the test's own.
func newPlace(t *testing.T) *place {
	t.Helper()
	t.Parallel()
	p := newBooks(t)
	p.store = s3test.Start(&s3test.Options{Buckets: []string{exportBucket}})
	t.Cleanup(p.store.Close)
	var err error
	if p.fenced, err = newFenced(t.Context(), p.pool, p.ledger.URL, newS3(p.store.URL())); err != nil {
		t.Fatal(err)
	}
	return p
}

// newBooks is a place without exports.
func newBooks(t *testing.T) *place {
	t.Helper()
	pool := pgtest.Migrated(t, "billingclose", func(ctx context.Context, pool *pgxpool.Pool) error {
		return errors.Join(createSchema(ctx, pool), sqladmin.Pgx(pool).Migrate(ctx))
	})
	handler, err := newLedger(pool, true)
	if err != nil {
		t.Fatal(err)
	}
	ledger := httptest.NewServer(handler)
	t.Cleanup(ledger.Close)
	return &place{pool: pool, ledger: ledger}
}

func (p *place) state(t *testing.T) state {
	t.Helper()
	s, err := readState(t.Context(), p.pool)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// closeCarefully runs the careful worker under a claim.
func (p *place) closeCarefully(t *testing.T, by closer, claim guard.Claim) error {
	w := &worker{role: role{Name: claim.LeaseID, Fenced: true}, pool: p.pool, closer: by, out: json.NewEncoder(io.Discard)}
	return w.closeCarefully(guard.WithClaim(t.Context(), claim))
}

func claimOf(token guard.Token, name string) guard.Claim {
	return guard.Claim{Resource: resource(), Token: token, LeaseID: name}
}

// After a takeover none of the older holder's writes takes effect, although the
// new holder has written nothing yet.
func TestTakeOverStopsEachWrite(t *testing.T) {
	p, ctx := newPlace(t), t.Context()
	a, b := claimOf(1, "a"), claimOf(2, "b")
	f := p.fenced
	writes := map[string]func() error{
		"issue":       func() error { return f.issue(ctx, a, "a", map[string]int64{"ember": 1}) },
		"closePeriod": func() error { return f.closePeriod(ctx, a, "a", 1) },
		"post":        func() error { return f.post(ctx, a, "a", 1) },
		"export":      func() error { return f.export(ctx, a, "a", nil) },
	}
	if err := f.takeOver(ctx, b); err != nil {
		t.Fatal(err)
	}
	for name, write := range writes {
		if err := write(); !errors.Is(err, guard.ErrStale) {
			t.Errorf("%s by the older holder: %v, want stale", name, err)
		}
	}
	if s := p.state(t); s.Closes != 0 || len(s.Invoices) != 0 || len(s.Postings) != 0 {
		t.Errorf("the older holder wrote: %+v", s)
	}
	if err := f.closePeriod(ctx, b, "b", 21000); err != nil {
		t.Errorf("closePeriod by the new holder: %v", err)
	}
}

// overtaken is a closer whose first write comes after a newer holder's takeover
// of the invoices. It does not take over the row and the object, so that only
// the worker itself can stop what follows.
type overtaken struct {
	*fenced
	newer guard.Claim
}

func (o overtaken) issue(ctx context.Context, claim guard.Claim, by string, amounts map[string]int64) error {
	if err := o.db.Raise(ctx, o.newer); err != nil {
		return err
	}
	return o.fenced.issue(ctx, claim, by, amounts)
}

// A worker that learns that it is stale does nothing more.
func TestCarefulWorkerStopsWhenStale(t *testing.T) {
	p := newPlace(t)
	err := p.closeCarefully(t, overtaken{p.fenced, claimOf(3, "c")}, claimOf(2, "b"))
	if !errors.Is(err, guard.ErrStale) {
		t.Errorf("%v, want stale", err)
	}
	if s := p.state(t); s.Status != "open" {
		t.Errorf("%s at %d by %s, with %d invoices", s.Status, s.Total, s.ClosedBy, len(s.Invoices))
	}
}

// dying is a closer that dies after one of its steps.
type dying struct {
	*fenced
	after string
}

var errDied = errors.New("died")

func (d dying) died(step string, err error) error {
	if d.after == step {
		return errors.Join(err, errDied)
	}
	return err
}

func (d dying) closePeriod(ctx context.Context, claim guard.Claim, by string, total int64) error {
	return d.died("close", d.fenced.closePeriod(ctx, claim, by, total))
}

func (d dying) post(ctx context.Context, claim guard.Claim, by string, total int64) error {
	return d.died("ledger", d.fenced.post(ctx, claim, by, total))
}

func (d dying) export(ctx context.Context, claim guard.Claim, by string, amounts map[string]int64) error {
	return d.died("export", d.fenced.export(ctx, claim, by, amounts))
}

// Wherever a worker dies, its successor completes the close, and who comes after
// that finds nothing to do: there is one close and one posting.
func TestSuccessorCompletesTheClose(t *testing.T) {
	for _, after := range []string{"", "ledger", "export", "close"} {
		t.Run("died after "+after, func(t *testing.T) {
			p := newPlace(t)
			if err := p.closeCarefully(t, dying{p.fenced, after}, claimOf(1, "b")); errors.Is(err, errDied) != (after != "") {
				t.Fatal(err)
			}
			for _, claim := range []guard.Claim{claimOf(2, "c"), claimOf(3, "d")} {
				if err := p.closeCarefully(t, p.fenced, claim); err != nil {
					t.Fatal(err)
				}
			}
			s := p.state(t)
			if s.Status != "closed" || s.Closes != 1 || s.Total != 21000 || len(s.Invoices) != 6 || len(s.Postings) != 1 || s.Postings[0].Cents != 21000 {
				t.Errorf("%s, %d closes at %d, %d invoices, postings %v", s.Status, s.Closes, s.Total, len(s.Invoices), s.Postings)
			}
			if exported, err := readExport(p.store, true); err != nil || strings.Count(exported.Content, "\n") != 6 {
				t.Errorf("the export: %+v, %v", exported, err)
			}
		})
	}
}

// A request whose body has not arrived holds no transaction.
func TestLedgerReadsTheBodyFirst(t *testing.T) {
	t.Parallel()
	p := newBooks(t)
	body, unsent := io.Pipe()
	answered := make(chan int)
	go func() { answered <- p.send(body).Code }()
	if _, err := io.WriteString(unsent, "{"); err != nil { // returns once the ledger reads
		t.Fatal(err)
	}
	// The raise before it may have looked for others' sessions, in a transaction that ends by itself.
	testkit.Eventually(t, "the end of all transactions", func() bool {
		var open int
		err := p.pool.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in transaction%'`).Scan(&open)
		return err == nil && open == 0
	})
	io.WriteString(unsent, `"by":"a","cents":100}`)
	unsent.Close()
	if code := <-answered; code != http.StatusCreated {
		t.Errorf("status %d", code)
	}
}

func TestLedgerRefusesBadInput(t *testing.T) {
	t.Parallel()
	p := newBooks(t)
	for _, body := range []string{"", "not json", "{}", `{"by":"a"}`, `{"cents":1}`, `{"by":"a","cents":"x"}`, `{"by":"a","cents":1}{`,
		`{"by":"\u0000","cents":1}`, `{"by":"` + strings.Repeat("a", 1<<16) + `","cents":1}`} {
		if code := p.send(strings.NewReader(body)).Code; code != http.StatusBadRequest {
			t.Errorf("%.40q: status %d", body, code)
		}
	}
	if s := p.state(t); len(s.Postings) != 0 {
		t.Errorf("booked: %v", s.Postings)
	}
	// The control: a total of zero is one.
	if code := p.send(strings.NewReader(`{"by":"a","cents":0}`)).Code; code != http.StatusCreated {
		t.Errorf("good input: status %d", code)
	}
}

// send posts a body to the ledger under token 1.
func (p *place) send(body io.Reader) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, "/tenants/"+tenant+"/periods/"+period+"/postings", body)
	r.Header.Set(httpfence.TokenHeader, "1")
	r.Header.Set(httpfence.LeaseHeader, "a")
	r.Header.Set(httpfence.ResourceHeader, resource())
	w := httptest.NewRecorder()
	p.ledger.Config.Handler.ServeHTTP(w, r)
	return w
}
