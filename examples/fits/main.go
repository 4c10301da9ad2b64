// Command fits fences code that others wrote: queries that sqlc generated, models
// of GORM and bun, statements of ent. None is changed; triggers on the table refuse
// every write without a current claim, and the application presents its claim at
// the beginning of a transaction.
//
//	cd examples/fits && go run .
//
// It is a module of its own, because nothing else here needs GORM, ent or bun.
// Package ledger is what "sqlc generate" made of schema.sql and queries.sql. ent is
// shown by its driver and its statement builder, on which the clients that it
// generates are built.
package main

import (
	"context"
	"database/sql"
	_ "embed"
	"fmt"
	"io"

	"entgo.io/ent/dialect"
	entsql "entgo.io/ent/dialect/sql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/pgdialect"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/fencepost-go/fencepost/examples/fits/ledger"
	"github.com/fencepost-go/fencepost/examples/internal/demo"
	"github.com/fencepost-go/fencepost/guard"
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
	ent  *entsql.Driver
	bun  *bun.DB
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
	return &app{pool, db, std, orm, entsql.OpenDB(dialect.Postgres, conns), bun.NewDB(conns, pgdialect.New())}, nil
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

// insertByEnt writes in a transaction of ent's driver. EnterOn takes any
// transaction that can run a statement, fences it, and presents the claim. The Tx
// of a generated client is one too, with ent's feature sql/execquery.
func (a *app) insertByEnt(ctx context.Context, claim guard.Claim, tenant string) error {
	tx, err := a.ent.Tx(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if err := a.std.EnterOn(ctx, tx.(*entsql.Tx), claim); err != nil {
		return err
	}
	if err := insertEnt(ctx, tx, tenant); err != nil {
		return sqlfence.ErrorFrom(err)
	}
	return tx.Commit()
}

// insertEnt runs the statement that a generated client would build.
func insertEnt(ctx context.Context, conn dialect.ExecQuerier, tenant string) error {
	query, args := entsql.Dialect(dialect.Postgres).Insert("invoices").Columns("tenant", "cents").Values(tenant, 100).Query()
	return conn.Exec(ctx, query, args, nil)
}

// BunInvoice is bun's model of the table.
type BunInvoice struct {
	bun.BaseModel `bun:"table:invoices"`
	ID            int64 `bun:",pk,autoincrement"`
	Tenant        string
	Cents         int64
}

// insertByBun writes through a model.
func (a *app) insertByBun(ctx context.Context, claim guard.Claim, tenant string) error {
	err := a.bun.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
		if err := a.std.EnterOn(ctx, tx, claim); err != nil {
			return err
		}
		_, err := tx.NewInsert().Model(&BunInvoice{Tenant: tenant, Cents: 100}).Exec(ctx)
		return err
	})
	return sqlfence.ErrorFrom(err)
}

// withoutClaim are the same writes by code that knows nothing of fences.
func (a *app) withoutClaim(ctx context.Context, tenant string) map[string]error {
	_, insert := ledger.New(a.pool).InsertInvoice(ctx, ledger.InsertInvoiceParams{Tenant: tenant, Cents: 100})
	_, update := ledger.New(a.pool).IncreaseInvoices(ctx, ledger.IncreaseInvoicesParams{Tenant: tenant, Cents: 1})
	orm := a.orm.WithContext(ctx)
	_, byBun := a.bun.NewInsert().Model(&BunInvoice{Tenant: tenant, Cents: 100}).Exec(ctx)
	return map[string]error{
		"ent insert":  sqlfence.ErrorFrom(insertEnt(ctx, a.ent, tenant)),
		"bun insert":  sqlfence.ErrorFrom(byBun),
		"sqlc insert": sqlfence.ErrorFrom(insert),
		"sqlc update": sqlfence.ErrorFrom(update),
		"gorm insert": sqlfence.ErrorFrom(orm.Create(&Invoice{Tenant: tenant, Cents: 100}).Error),
		"gorm update": sqlfence.ErrorFrom(orm.Model(&Invoice{}).Where("tenant = ?", tenant).Update("cents", 7).Error),
		"gorm delete": sqlfence.ErrorFrom(orm.Where("tenant = ?", tenant).Delete(&Invoice{}).Error),
	}
}

func run(ctx context.Context, out io.Writer) error {
	pool, cleanup, err := demo.Pool(ctx)
	if err != nil {
		return err
	}
	defer cleanup()
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
	for _, by := range []struct {
		name   string
		insert func(ctx context.Context, claim guard.Claim, tenant string) error
	}{{"ent", a.insertByEnt}, {"bun", a.insertByBun}} {
		fmt.Fprintf(out, "%s, token 11: %s\n", by.name, written(by.insert(ctx, claim(11), "tenant_123")))
		fmt.Fprintf(out, "%s, token 10: %s\n", by.name, written(by.insert(ctx, claim(10), "tenant_123")))
		fmt.Fprintf(out, "%s, another tenant's row: %s\n", by.name, written(by.insert(ctx, claim(11), "tenant_456")))
	}
	for _, write := range []string{"sqlc insert", "sqlc update", "gorm insert", "gorm update", "gorm delete", "ent insert", "bun insert"} {
		fmt.Fprintf(out, "%s without a claim: %s\n", write, written(a.withoutClaim(ctx, "tenant_123")[write]))
	}
	total, err := ledger.New(pool).TotalOfTenant(ctx, "tenant_123")
	fmt.Fprintln(out, "total:", total)
	return err
}

func main() { demo.Main(0, run) }

// written says in words what became of a write.
func written(err error) string {
	if err == nil {
		return "written"
	}
	return "refused, " + string(guard.ReasonOf(err))
}
