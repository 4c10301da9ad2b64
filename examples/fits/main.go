// Command fits fences code that others wrote: queries that sqlc generated, and
// models of GORM. Neither is changed; triggers on the table refuse whatever
// writes to it without a current claim, and the application presents its claim
// at the beginning of a transaction.
//
//	cd examples/fits && go run .
//
// It is a module of its own, because nothing else here needs GORM. Package
// ledger is what "sqlc generate" made of schema.sql and queries.sql.
package main

import (
	"context"
	"database/sql"
	_ "embed"
	"fmt"
	"io"
	"log"
	"os"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/fencepost-go/fencepost/examples/fits/ledger"
	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/sqlfence"
)

//go:embed schema.sql
var schema string

// invoices says which resource a row of the table belongs to: "tenant_123:invoices".
var invoices = sqlfence.Trigger{
	Table:    []string{"invoices"},
	Resource: guard.Must(guard.NewTemplate("{tenant}:invoices")),
	Columns:  map[string]string{"tenant": "tenant"},
}

// Invoice is GORM's model of the table.
type Invoice struct {
	ID     int64 `gorm:"primaryKey;default:(-)"`
	Tenant string
	Cents  int64
}

// app is a service that writes in all of these ways.
type app struct {
	pool *pgxpool.Pool
	pgx  *sqlfence.DB[pgx.Tx]
	std  *sqlfence.DB[*sql.Tx]
	orm  *gorm.DB
}

func newApp(ctx context.Context, pool *pgxpool.Pool, guarded bool) (*app, error) {
	if _, err := pool.Exec(ctx, schema); err != nil {
		return nil, err
	}
	presenting := &sqlfence.Options{PresentClaims: true} // to the triggers
	db, err := sqlfence.Pgx(pool, presenting)
	if err != nil {
		return nil, err
	}
	if err := db.Migrate(ctx); err != nil {
		return nil, err
	}
	if guarded {
		if err := db.Admin().InstallTrigger(ctx, invoices); err != nil {
			return nil, err
		}
	}
	conns := stdlib.OpenDBFromPool(pool)
	std, err := sqlfence.Std(conns, presenting)
	if err != nil {
		return nil, err
	}
	orm, err := gorm.Open(postgres.New(postgres.Config{Conn: conns}), &gorm.Config{Logger: logger.Discard})
	if err != nil {
		return nil, err
	}
	return &app{pool, db, std, orm}, nil
}

// insertBySqlc runs a generated query in a fenced transaction, which presents
// its claim by itself and raises the mark if it must.
func (a *app) insertBySqlc(ctx context.Context, claim guard.Claim, tenant string) error {
	err := a.pgx.InTx(ctx, claim, func(ctx context.Context, tx pgx.Tx) error {
		_, err := ledger.New(tx).InsertInvoice(ctx, ledger.InsertInvoiceParams{Tenant: tenant, Cents: 100})
		return err
	})
	return sqlfence.ErrorFrom(err)
}

// increaseBySqlc runs one in a transaction that the application began itself.
func (a *app) increaseBySqlc(ctx context.Context, claim guard.Claim, tenant string) error {
	err := pgx.BeginFunc(ctx, a.pool, func(tx pgx.Tx) error {
		if err := a.pgx.Present(ctx, tx, claim); err != nil {
			return err
		}
		_, err := ledger.New(tx).IncreaseInvoices(ctx, ledger.IncreaseInvoicesParams{Tenant: tenant, Cents: 1})
		return err
	})
	return sqlfence.ErrorFrom(err)
}

// insertByGorm writes through a model.
func (a *app) insertByGorm(ctx context.Context, claim guard.Claim, tenant string) error {
	err := a.orm.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
		if err := a.std.Present(ctx, tx.Statement.ConnPool.(*sql.Tx), claim); err != nil {
			return err
		}
		return tx.Create(&Invoice{Tenant: tenant, Cents: 100}).Error
	})
	return sqlfence.ErrorFrom(err)
}

// withoutClaim are the same writes by code that knows nothing of fences.
func (a *app) withoutClaim(ctx context.Context, tenant string) map[string]error {
	_, insert := ledger.New(a.pool).InsertInvoice(ctx, ledger.InsertInvoiceParams{Tenant: tenant, Cents: 100})
	_, update := ledger.New(a.pool).IncreaseInvoices(ctx, ledger.IncreaseInvoicesParams{Tenant: tenant, Cents: 1})
	orm := a.orm.WithContext(ctx)
	return map[string]error{
		"sqlc insert": sqlfence.ErrorFrom(insert),
		"sqlc update": sqlfence.ErrorFrom(update),
		"gorm insert": sqlfence.ErrorFrom(orm.Create(&Invoice{Tenant: tenant, Cents: 100}).Error),
		"gorm update": sqlfence.ErrorFrom(orm.Model(&Invoice{}).Where("tenant = ?", tenant).Update("cents", 7).Error),
		"gorm delete": sqlfence.ErrorFrom(orm.Where("tenant = ?", tenant).Delete(&Invoice{}).Error),
	}
}

func run(ctx context.Context, out io.Writer) error {
	url, stop, err := pgtest.Provide(ctx)
	if err != nil {
		return err
	}
	defer stop()
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return err
	}
	defer pool.Close()
	a, err := newApp(ctx, pool, true)
	if err != nil {
		return err
	}
	claim := func(token guard.Token) guard.Claim {
		return guard.Claim{Resource: "tenant_123:invoices", Token: token, LeaseID: fmt.Sprint("lease-", token)}
	}
	if err := a.pgx.Raise(ctx, claim(11)); err != nil { // the new holder takes over
		return err
	}
	fmt.Fprintln(out, "sqlc in InTx, token 11:", written(a.insertBySqlc(ctx, claim(11), "tenant_123")))
	fmt.Fprintln(out, "sqlc in its own transaction, token 11:", written(a.increaseBySqlc(ctx, claim(11), "tenant_123")))
	fmt.Fprintln(out, "gorm, token 11:", written(a.insertByGorm(ctx, claim(11), "tenant_123")))
	fmt.Fprintln(out, "gorm, token 10:", written(a.insertByGorm(ctx, claim(10), "tenant_123")))
	fmt.Fprintln(out, "gorm, another tenant's row:", written(a.insertByGorm(ctx, claim(11), "tenant_456")))
	for _, write := range []string{"sqlc insert", "sqlc update", "gorm insert", "gorm update", "gorm delete"} {
		fmt.Fprintf(out, "%s without a claim: %s\n", write, written(a.withoutClaim(ctx, "tenant_123")[write]))
	}
	total, err := ledger.New(pool).TotalOfTenant(ctx, "tenant_123")
	fmt.Fprintln(out, "total:", total)
	return err
}

func main() {
	log.SetFlags(0)
	if err := run(context.Background(), os.Stdout); err != nil {
		log.Fatal(err)
	}
}

// written says in words what became of a write.
func written(err error) string {
	if err == nil {
		return "written"
	}
	return "refused, " + string(guard.ReasonOf(err))
}
