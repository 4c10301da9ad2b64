// Package scratch gives the examples of a package, which run one after another, a
// database. They have no test of their own to end it.
package scratch

import (
	"context"
	"fmt"
	"os"
	"sync"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost-go/fencepost/internal/pgtest"
)

var (
	atExit []func()
	pool   = sync.OnceValue(func() *pgxpool.Pool { return pgtest.Pool(process{}) })
)

// Open returns a pool of an empty database, and what to call when the example ends.
func Open(ctx context.Context) (*pgxpool.Pool, func()) {
	if _, err := pool().Exec(ctx, "DROP SCHEMA IF EXISTS fencepost CASCADE; DROP SCHEMA public CASCADE; CREATE SCHEMA public"); err != nil {
		panic(err)
	}
	return pool(), pool().Reset
}

// Main runs a package's tests, and then drops the database.
func Main(m interface{ Run() int }) {
	code := m.Run()
	Close()
	os.Exit(code)
}

// Close drops the database, when all tests have ended.
func Close() {
	for _, f := range atExit {
		f()
	}
}

// process is a test that ends when all tests have ended.
type process struct{}

func (process) Helper()                           {}
func (process) Name() string                      { return "Example" }
func (process) Logf(format string, args ...any)   { fmt.Fprintf(os.Stderr, format+"\n", args...) }
func (process) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }
func (process) Cleanup(f func())                  { atExit = append(atExit, f) }
