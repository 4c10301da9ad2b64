package sqlfence

import (
	"context"
	"database/sql"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost-go/fencepost/internal/pgtest"
)

// single returns a DB on one connection, and what begins a transaction of its
// own on it and returns what ends that.
func (e *env) single() (db fence, begin func() (end func())) {
	e.Helper()
	ctx := context.Background()
	check := func(err error) {
		e.Helper()
		if err != nil {
			e.Fatal(err)
		}
	}
	if e.driver == "pgx" {
		conn, err := pgx.Connect(ctx, e.url)
		check(err)
		e.Cleanup(func() { conn.Close(ctx) })
		one, err := PgxConn(conn, nil)
		check(err)
		return pgxFence{DB: one}, func() func() {
			tx, err := conn.Begin(ctx)
			check(err)
			return func() { check(tx.Rollback(ctx)) }
		}
	}
	pool, err := sql.Open("pgx", e.url)
	check(err)
	e.Cleanup(func() { pool.Close() })
	conn, err := pool.Conn(ctx)
	check(err)
	e.Cleanup(func() { conn.Close() })
	one, err := StdConn(conn, nil)
	check(err)
	return stdFence{DB: one}, func() func() {
		tx, err := conn.BeginTx(ctx, nil)
		check(err)
		return func() { check(tx.Rollback()) }
	}
}

// newEnvOf is newEnv for a test of one driver.
func newEnvOf(t testing.TB, driver string) *env {
	for i := range openers {
		if openers[i].driver == driver {
			return newEnv(t, i, pgtest.Database(t))
		}
	}
	t.Fatalf("no driver %q", driver)
	return nil
}
