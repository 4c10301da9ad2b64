package lockclient

import (
	"os"
	"strings"
	"testing"

	"github.com/fencepost-go/fencepost/internal/pgtest"
)

// TestRunbookStatements: the server takes every statement of the documentation.
func TestRunbookStatements(t *testing.T) {
	source, err := os.ReadFile("runbook.go")
	if err != nil {
		t.Fatal(err)
	}
	pool := pgtest.Pool(t)
	mustSimple(t, pool, `CREATE TABLE invoices (tenant text, month date, total numeric);
		CREATE TABLE payments (id bigserial, request_id text UNIQUE, amount numeric);
		CREATE TABLE accounts (id bigint, balance numeric);
		CREATE TABLE documents (id bigint, body text, version bigint);
		CREATE TABLE jobs (id bigint, done_at timestamptz)`)
	statements := 0
	for line := range strings.Lines(string(source)) {
		sql, ok := strings.CutPrefix(line, "//\t")
		if !ok {
			continue
		}
		statements++
		if strings.HasPrefix(sql, "CREATE") {
			mustSimple(t, pool, sql)
		} else {
			mustSimple(t, pool, "PREPARE q AS "+sql+"; DEALLOCATE q")
		}
	}
	if statements != 8 {
		t.Errorf("%d statements", statements)
	}
}
