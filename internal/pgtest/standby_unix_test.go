//go:build unix

package pgtest

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// TestStandby: a standby follows its primary, can be promoted, and leaves
// nothing behind.
func TestStandby(t *testing.T) {
	primary, err := Start(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer primary.Stop()
	if err := once(t, primary.URL(), "CREATE TABLE early (id int)"); err != nil {
		t.Fatal(err)
	}
	standby, err := primary.Standby(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer standby.Stop()
	if err := once(t, primary.URL(), "CREATE TABLE late (id int)"); err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.Connect(t.Context(), standby.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	var tables int
	var follows bool
	for end := time.Now().Add(patience); tables < 2 && time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		err := conn.QueryRow(t.Context(), "SELECT count(*), pg_is_in_recovery() FROM pg_class WHERE relname IN ('early', 'late')").Scan(&tables, &follows)
		if err != nil {
			t.Fatal(err)
		}
	}
	if tables != 2 || !follows {
		t.Errorf("%d tables, in recovery: %t", tables, follows)
	}
	if err := once(t, standby.URL(), "SELECT pg_promote(true, 60)"); err != nil {
		t.Fatal(err)
	}
	if err := once(t, standby.URL(), "DROP TABLE early"); err != nil {
		t.Error(err)
	}
	if standby.VersionNum() != primary.VersionNum() || standby.Port() == primary.Port() {
		t.Errorf("the standby is %s on port %d", standby.Version(), standby.Port())
	}
	if err := standby.Stop(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(standby.Dir()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its directory: %v", err)
	}
}

func once(t *testing.T, server, sql string) error {
	return administer(t.Context(), server, func(conn *pgx.Conn) error { return execute(t.Context(), conn, sql) })
}
