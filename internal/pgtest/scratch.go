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

// createDatabase creates an empty database. It copies template0, because on a
// foreign server template1 may contain anything. It copies files, at a quarter
// of the cost of the default in PostgreSQL 15 and later.
func createDatabase(ctx context.Context, server, name string) error {
	statement := "CREATE DATABASE " + pgx.Identifier{name}.Sanitize() + " TEMPLATE template0"
	return administer(ctx, server, func(conn *pgx.Conn) string {
		if version := conn.PgConn().ParameterStatus("server_version"); len(version) > 1 && version[:2] >= "15" {
			return statement + " STRATEGY file_copy"
		}
		return statement
	})
}

// dropDatabase drops a database in spite of open connections. It has its own
// time limit, because it runs when a test's context is already cancelled.
func dropDatabase(server, name string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return administer(ctx, server, func(*pgx.Conn) string {
		return "DROP DATABASE IF EXISTS " + pgx.Identifier{name}.Sanitize() + " WITH (FORCE)"
	})
}

// administrator is the connection that creates and drops databases, kept from
// one test to the next because a new one costs more than the statement.
var administrator struct {
	sync.Mutex
	server string
	conn   *pgx.Conn
}

// administer runs one statement on the administrator's connection to the server.
func administer(ctx context.Context, server string, statement func(*pgx.Conn) string) error {
	a := &administrator
	a.Lock()
	defer a.Unlock()
	if a.conn == nil || a.server != server || a.conn.Ping(ctx) != nil {
		if a.conn != nil {
			closing, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			_ = a.conn.Close(closing) // its server may be gone
		}
		conn, err := pgx.Connect(ctx, server)
		if a.conn = conn; err != nil {
			return fmt.Errorf("pgtest: %w", err)
		}
		a.server = server
	}
	sql := statement(a.conn)
	if _, err := a.conn.Exec(ctx, sql); err != nil {
		return fmt.Errorf("pgtest: %s: %w", sql, err)
	}
	return nil
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
