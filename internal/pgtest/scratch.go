package pgtest

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// newScratch creates a copy of the database template on a server, and returns its
// URL and how to drop it. A database that cannot be dropped stays: on a private
// server it is removed with that.
func newScratch(ctx context.Context, server, test, template string) (database string, drop func(), err error) {
	name := scratchName(test)
	if database, err = withDatabase(server, name); err != nil {
		return "", nil, err
	}
	if err := createDatabase(ctx, server, name, template); err != nil {
		return "", nil, err
	}
	return database, func() { _ = dropDatabase(server, name) }, nil
}

// scratchName returns a new database name that names its test.
func scratchName(test string) string {
	readable := strings.Map(func(c rune) rune {
		if 'a' <= c && c <= 'z' || '0' <= c && c <= '9' {
			return c
		}
		return '_'
	}, strings.ToLower(test))
	// A name has at most 63 bytes.
	if readable = readable[:min(len(readable), 30)]; readable != "" {
		readable += "_"
	}
	return "fencepost_scratch_" + readable + randomHex(6)
}

// createDatabase creates a copy of the database template. An empty one is a copy
// of template0, because on a foreign server template1 may contain anything. It
// copies files, at a quarter of the cost of the default in PostgreSQL 15 and
// later.
func createDatabase(ctx context.Context, server, name, template string) error {
	return administer(ctx, server, func(conn *pgx.Conn) error {
		sql := "CREATE DATABASE " + pgx.Identifier{name}.Sanitize() + " TEMPLATE " + pgx.Identifier{template}.Sanitize()
		if conn.PgConn().ParameterStatus("server_version") >= "15" {
			sql += " STRATEGY file_copy"
		}
		return execute(ctx, conn, sql)
	})
}

// dropDatabase drops a database in spite of open connections. It has its own
// time limit, because it runs when a test's context is already cancelled.
func dropDatabase(server, name string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return administer(ctx, server, func(conn *pgx.Conn) error {
		// While a session that ends is still there, DROP DATABASE sleeps for 100 ms.
		for sessions := 1; sessions > 0; time.Sleep(time.Millisecond) {
			if err := conn.QueryRow(ctx, "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = $1 AND backend_type = 'client backend'", name).Scan(&sessions); err != nil {
				return fmt.Errorf("pgtest: %w", err)
			}
		}
		return execute(ctx, conn, "DROP DATABASE IF EXISTS "+pgx.Identifier{name}.Sanitize()+" WITH (FORCE)")
	})
}

func execute(ctx context.Context, conn *pgx.Conn, sql string) error {
	if _, err := conn.Exec(ctx, sql); err != nil {
		return fmt.Errorf("pgtest: %s: %w", sql, err)
	}
	return nil
}

// administrators are the connections that create and drop databases, by server.
// They are kept from one test to the next because a new one costs more than the
// statement.
var administrators struct {
	sync.Mutex
	conns map[string]*pgx.Conn
}

// administer calls f with the administrator's connection to the server. Calls
// take turns.
func administer(ctx context.Context, server string, f func(*pgx.Conn) error) error {
	a := &administrators
	a.Lock()
	defer a.Unlock()
	conn := a.conns[server]
	if conn == nil || conn.Ping(ctx) != nil {
		if conn != nil {
			closing, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			_ = conn.Close(closing) // its server may be gone
			delete(a.conns, server)
		}
		var err error
		if conn, err = pgx.Connect(ctx, server); err != nil {
			return fmt.Errorf("pgtest: %w", err)
		}
		if a.conns == nil {
			a.conns = map[string]*pgx.Conn{}
		}
		a.conns[server] = conn
	}
	return f(conn)
}

// withDatabase returns the URL with another database.
func withDatabase(server, name string) (string, error) {
	u, err := url.Parse(server)
	if err != nil || u.Host == "" && u.RawQuery == "" {
		// The error of url.Parse would show the password.
		return "", errors.New("pgtest: " + databaseURLVariable + " is not a URL such as postgres://user@host/postgres")
	}
	u.Path = "/" + name
	query := u.Query()
	query.Del("dbname")
	query.Del("database")
	u.RawQuery = query.Encode()
	return u.String(), nil
}
