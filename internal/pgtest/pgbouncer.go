package pgtest

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost-go/fencepost/internal/process"
)

// PgBouncer starts PgBouncer before the database that a configuration leads to, and
// returns the configuration that leads there through it. A pool is a database's name
// for clients and has so many connections to the server; the configuration names the
// one that is called pool. Lines are settings. PgBouncer ends with the test.
func PgBouncer(t testing.TB, to *pgx.ConnConfig, pool string, pools map[string]int, lines ...string) *pgx.ConnConfig {
	t.Helper()
	as, err := serverProcess()
	if err != nil {
		t.Fatal(err)
	}
	addr, dir := process.FreeAddr(t), t.TempDir()
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	b.WriteString("[databases]\n")
	for name, size := range pools {
		fmt.Fprintf(&b, "%s = host=%s port=%d dbname=%s user=%s password=%s pool_size=%d\n", name, to.Host, to.Port, to.Database, to.User, to.Password, size)
	}
	fmt.Fprintf(&b, "[pgbouncer]\nlisten_addr = %s\nlisten_port = %s\nunix_socket_dir =\nauth_type = any\nadmin_users = %s\n%s\n", host, port, to.User, strings.Join(lines, "\n"))
	config := filepath.Join(dir, "pgbouncer.ini")
	if err := os.WriteFile(config, []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	for ; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) { // it does not run as root
		os.Chmod(dir, 0o755)
	}
	through := to.Copy()
	through.Fallbacks, through.TLSConfig, through.Database = nil, nil, pool
	through.Host = host
	fmt.Sscan(port, &through.Port)
	process.Serve(t, &process.Server{Addr: addr, Dir: filepath.Dir(config), Attributes: as, Command: []string{process.Find(t, "pgbouncer"), config}, Ready: func() error {
		conn, err := pgx.ConnectConfig(context.Background(), through)
		if err == nil {
			err = conn.Close(context.Background())
		}
		return err
	}}).Await()
	return through
}
