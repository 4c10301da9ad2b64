package main

import (
	"errors"
	"strings"
	"testing"

	"gorm.io/gorm"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgtest"
)

// TestFits: generated queries and models write under a current claim and are
// refused without one, for the exact reason.
func TestFits(t *testing.T) {
	var out strings.Builder
	if err := run(t.Context(), &out); err != nil {
		t.Fatal(err)
	}
	const want = `sqlc in InTx, token 11: written
sqlc in its own transaction, token 11: written
gorm, token 11: written
gorm, token 10: refused, stale
gorm, another tenant's row: refused, missing
ent, token 11: written
ent, token 10: refused, stale
ent, another tenant's row: refused, missing
bun, token 11: written
bun, token 10: refused, stale
bun, another tenant's row: refused, missing
sqlc insert without a claim: refused, missing
sqlc update without a claim: refused, missing
gorm insert without a claim: refused, missing
gorm update without a claim: refused, missing
gorm delete without a claim: refused, missing
ent insert without a claim: refused, missing
bun insert without a claim: refused, missing
total: 401
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}

// TestGormPrepared: the same code works whether GORM prepares its statements or not;
// in the first case the transaction is no *sql.Tx.
func TestGormPrepared(t *testing.T) {
	for _, prepare := range []bool{false, true} {
		a, err := newApp(t.Context(), pgtest.Pool(t), true)
		if err != nil {
			t.Fatal(err)
		}
		a.orm = a.orm.Session(&gorm.Session{PrepareStmt: prepare})
		claim := guard.Claim{Resource: "tenant_123:invoices", Token: 11}
		if err := a.insertByGorm(t.Context(), claim, "tenant_123"); err != nil {
			t.Errorf("PrepareStmt %v: %v", prepare, err)
		}
		claim.Token = 10
		if err := a.insertByGorm(t.Context(), claim, "tenant_123"); !errors.Is(err, guard.ErrStale) {
			t.Errorf("PrepareStmt %v: a stale write: %v", prepare, err)
		}
	}
}

// TestFitsControl: without triggers, nothing stops a write without a claim, or
// with an old one that is only presented.
func TestFitsControl(t *testing.T) {
	pool := pgtest.Pool(t)
	a, err := newApp(t.Context(), pool, false)
	if err != nil {
		t.Fatal(err)
	}
	claim := guard.Claim{Resource: "tenant_123:invoices", Token: 11}
	if err := a.pgx.Raise(t.Context(), claim); err != nil {
		t.Fatal(err)
	}
	for write, err := range a.withoutClaim(t.Context(), "tenant_123") {
		if err != nil {
			t.Errorf("%s: %v", write, err)
		}
	}
	claim.Token = 10
	if err := a.increaseBySqlc(t.Context(), claim, "tenant_123"); err != nil {
		t.Error(err)
	}
}
