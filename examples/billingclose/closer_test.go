//go:build unix

package main

import (
	"errors"
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
