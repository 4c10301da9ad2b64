package sqlfence

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

// exec runs SQL as the administrator.
func (e *env) exec(sql string, args ...any) {
	e.Helper()
	if _, err := e.admin.Exec(context.Background(), sql, args...); err != nil {
		e.Fatalf("%s: %v", sql, err)
	}
}

// int and text read one value as the administrator.
func (e *env) int(sql string, args ...any) (n int64) {
	e.Helper()
	if err := e.admin.QueryRow(context.Background(), sql, args...).Scan(&n); err != nil {
		e.Fatalf("%s: %v", sql, err)
	}
	return n
}

func (e *env) text(sql string, args ...any) (s string) {
	e.Helper()
	if err := e.admin.QueryRow(context.Background(), sql, args...).Scan(&s); err != nil {
		e.Fatalf("%s: %v", sql, err)
	}
	return s
}

// waitFor waits until the administrator reads true.
func (e *env) waitFor(what, sql string, args ...any) {
	e.Helper()
	var done bool
	for end := time.Now().Add(10 * time.Second); !done; time.Sleep(2 * time.Millisecond) {
		if err := e.admin.QueryRow(context.Background(), sql, args...).Scan(&done); err != nil {
			e.Fatalf("%s: %v", sql, err)
		}
		if !done && time.Now().After(end) {
			e.Fatalf("waited 10 s for %s", what)
		}
	}
}

// waitersSQL counts the sessions of this database that wait for an advisory
// lock.
const waitersSQL = `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
	AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`

func (e *env) waitForWaiters(n int) {
	e.Helper()
	e.waitFor(fmt.Sprint(n, " waiters"), "SELECT ("+waitersSQL+") >= $1", n)
}

// mutate replaces text in a function of schema fencepost, to show that a test
// notices. It fails if there is nothing to replace.
func (e *env) mutate(function, old, new string) {
	e.Helper()
	def := e.text("SELECT pg_get_functiondef(p.oid) FROM pg_proc p WHERE p.pronamespace = 'fencepost'::regnamespace AND p.proname = $1", function)
	if !strings.Contains(def, old) {
		e.Fatalf("function %s does not contain %q", function, old)
	}
	e.exec(strings.ReplaceAll(def, old, new))
}

func (e *env) table(name string, key []string, opts *TableOptions) *Table {
	e.Helper()
	t, err := NewTable([]string{name}, key, opts)
	if err != nil {
		e.Fatal(err)
	}
	return t
}

func claimOf(resource string, token guard.Token) guard.Claim {
	return guard.Claim{Resource: resource, Token: token, LeaseID: "lease-" + token.String()}
}
