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

// scratchName returns a new database name that names its test.
func scratchName(test string) string {
	readable := strings.Map(func(c rune) rune {
		switch {
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9':
			return c
		case 'A' <= c && c <= 'Z':
			return c + 'a' - 'A'
		}
		return '_'
	}, test)
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
	statement := "CREATE DATABASE " + pgx.Identifier{name}.Sanitize() + " TEMPLATE " + pgx.Identifier{template}.Sanitize()
	return administer(ctx, server, func(conn *pgx.Conn) error {
		sql := statement
		if version := conn.PgConn().ParameterStatus("server_version"); len(version) > 1 && version[:2] >= "15" {
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

// withDatabase returns the connection string with another database, for both
// forms that libpq knows.
func withDatabase(server, name string) (string, error) {
	if !strings.HasPrefix(server, "postgres://") && !strings.HasPrefix(server, "postgresql://") {
		// If a keyword occurs twice, the last one counts.
		return server + " dbname=" + name, nil
	}
	u, err := url.Parse(server)
	if err != nil {
		// The error of url.Parse would show the password.
		return "", errors.New("pgtest: " + databaseURLVariable + " is not a valid URL")
	}
	u.Path = "/" + name
	query := u.Query()
	query.Del("dbname")
	query.Del("database")
	u.RawQuery = query.Encode()
	return u.String(), nil
}
