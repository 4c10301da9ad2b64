//go:build unix

package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http/httptest"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/s3fence/s3test"
	"github.com/fencepost-go/fencepost/sqlfence"
)

// place is what the fenced closer writes to.
type place struct {
	pool   *pgxpool.Pool
	ledger *httptest.Server
	fenced *fenced
}

func newPlace(t *testing.T) *place {
	t.Helper()
	ctx, pool := t.Context(), pgtest.Pool(t)
	db, err := sqlfence.Pgx(pool, nil)
	if err := errors.Join(err, createSchema(ctx, pool), db.Migrate(ctx)); err != nil {
		t.Fatal(err)
	}
	handler, err := newLedger(pool, true)
	if err != nil {
		t.Fatal(err)
	}
	ledger := httptest.NewServer(handler)
	t.Cleanup(ledger.Close)
	store := s3test.Start(&s3test.Options{Buckets: []string{exportBucket}})
	t.Cleanup(store.Close)
	f, err := newFenced(ctx, pool, ledger.URL, newS3(store.URL()))
	if err != nil {
		t.Fatal(err)
	}
	return &place{pool, ledger, f}
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
