package pgtest

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// scratchName returns a new database name that tells which test it is for.
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

// createDatabase creates an empty database. It copies template0, since on a
// server that is not ours template1 may hold anything.
func createDatabase(ctx context.Context, server, name string) error {
	return execute(ctx, server, "CREATE DATABASE "+pgx.Identifier{name}.Sanitize()+" TEMPLATE template0")
}

// dropDatabase drops a database in spite of open connections. It has a time
// limit of its own, since it runs when a test's context is already cancelled.
func dropDatabase(server, name string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return execute(ctx, server, "DROP DATABASE IF EXISTS "+pgx.Identifier{name}.Sanitize()+" WITH (FORCE)")
}

// execute runs one statement on a connection of its own.
func execute(ctx context.Context, server, statement string) error {
	conn, err := pgx.Connect(ctx, server)
	if err != nil {
		return fmt.Errorf("pgtest: %w", err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		// The statement's result is known; the parting word does not matter.
		_ = conn.Close(ctx)
	}()
	if _, err := conn.Exec(ctx, statement); err != nil {
		return fmt.Errorf("pgtest: %s: %w", statement, err)
	}
	return nil
}

// withDatabase returns the connection string with another database, for both
// forms that libpq knows.
func withDatabase(server, name string) (string, error) {
	if !strings.HasPrefix(server, "postgres://") && !strings.HasPrefix(server, "postgresql://") {
		// Of a keyword that is given twice the last one counts.
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
