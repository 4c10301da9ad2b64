package pgtest

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Migrated returns a pool of connections to a fresh database as from Pool, in
// which migrate was called. It is called once in this process for each key, on a
// template of which every test gets a copy, so it must not depend on the test.
func Migrated(t TB, key string, migrate func(context.Context, *pgxpool.Pool) error) *pgxpool.Pool {
	t.Helper()
	return Connect(t, MigratedDatabase(t, key, migrate))
}

// MigratedDatabase returns the connection URL of a database as from Migrated.
func MigratedDatabase(t TB, key string, migrate func(context.Context, *pgxpool.Pool) error) string {
	t.Helper()
	return MigratedOn(t, "", key, migrate)
}

// MigratedOn is [MigratedDatabase] on the server with this connection string; ""
// is the server that the tests share.
func MigratedOn(t TB, server, key string, migrate func(context.Context, *pgxpool.Pool) error) string {
	t.Helper()
	return copied(t, server, func(_ context.Context, server string) (string, error) { return template(server, key, migrate) })
}

// templates are the databases that tests of this process get copies of. Nobody
// is connected to them, because PostgreSQL copies no database with sessions.
var templates struct {
	sync.Mutex
	known map[[2]string]func() (string, error) // by server and key
}

// template returns the name of the template with the key, which it makes once.
func template(server, key string, migrate func(context.Context, *pgxpool.Pool) error) (string, error) {
	t := &templates
	t.Lock()
	made := t.known[[2]string{server, key}]
	if made == nil {
		made = sync.OnceValues(func() (string, error) { return newTemplate(server, migrate) })
		if t.known == nil {
			t.known = map[[2]string]func() (string, error){}
		}
		t.known[[2]string{server, key}] = made
	}
	t.Unlock()
	return made()
}

func newTemplate(server string, migrate func(context.Context, *pgxpool.Pool) error) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	name := scratchName("template")
	database, err := withDatabase(server, name)
	if err != nil {
		return "", err
	}
	if err := administer(ctx, server, func(conn *pgx.Conn) error { return claim(ctx, conn, name) }); err != nil {
		return "", err
	}
	if err := createDatabase(ctx, server, name, "template0"); err != nil {
		return "", err
	}
	pool, err := pgxpool.New(ctx, database)
	if err != nil {
		return "", fmt.Errorf("pgtest: %w", err)
	}
	err = migrate(ctx, pool)
	pool.Close()
	if err != nil {
		return "", errors.Join(fmt.Errorf("pgtest: migrate a template: %w", err), dropDatabase(server, name))
	}
	return name, nil
}

// claim locks a template's name for as long as the connection lives, which is
// as long as this process, and drops the templates whose names nobody has
// locked: their processes are gone, and the server has outlived them.
func claim(ctx context.Context, conn *pgx.Conn, name string) error {
	if _, err := conn.Exec(ctx, "SELECT pg_advisory_lock(hashtextextended($1, 0))", name); err != nil {
		return fmt.Errorf("pgtest: lock a template: %w", err)
	}
	rows, err := conn.Query(ctx, `SELECT datname FROM pg_database
		WHERE datname LIKE 'fencepost\_scratch\_template\_%' AND pg_get_userbyid(datdba) = current_user AND NOT EXISTS (
			SELECT FROM pg_locks WHERE locktype = 'advisory' AND (classid::bigint << 32 | objid::bigint) = hashtextextended(datname, 0))`)
	if err != nil {
		return fmt.Errorf("pgtest: list the templates: %w", err)
	}
	abandoned, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return fmt.Errorf("pgtest: list the templates: %w", err)
	}
	for _, old := range abandoned {
		if err := execute(ctx, conn, "DROP DATABASE IF EXISTS "+pgx.Identifier{old}.Sanitize()+" WITH (FORCE)"); err != nil {
			return err
		}
	}
	return nil
}
