package pgtest

import (
	"context"
	"fmt"
	"os"
	"sync"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Migrated returns a pool of connections to a fresh database as from Pool, in
// which migrate was called. On the shared private server it is called once for
// each key, on a template of which every test gets a copy, so it must not depend
// on the test.
func Migrated(t TB, key string, migrate func(context.Context, *pgxpool.Pool) error) *pgxpool.Pool {
	t.Helper()
	return Connect(t, MigratedDatabase(t, key, migrate))
}

// MigratedDatabase returns the connection URL of a database as from Migrated.
func MigratedDatabase(t TB, key string, migrate func(context.Context, *pgxpool.Pool) error) string {
	t.Helper()
	return MigratedOn(t, "", key, migrate)
}

// MigratedOn is [MigratedDatabase] on the server with this URL; "" is the server
// that the tests share. A server that is given outlives this process, and so would
// a template, so there migrate is called for each test.
func MigratedOn(t TB, server, key string, migrate func(context.Context, *pgxpool.Pool) error) string {
	t.Helper()
	if server == "" && os.Getenv(databaseURLVariable) == "" {
		return copied(t, "", func(server string) (string, error) { return template(server, key, migrate) })
	}
	database := copied(t, server, func(string) (string, error) { return "template0", nil })
	if err := prepare(database, migrate); err != nil {
		t.Fatalf("%v", err)
	}
	return database
}

// templates are the databases that tests of this process get copies of. Nobody
// is connected to them, because PostgreSQL copies no database with sessions.
var templates struct {
	sync.Mutex
	known map[string]func() (string, error) // by key
}

// template returns the name of the template with the key, which it makes once.
func template(server, key string, migrate func(context.Context, *pgxpool.Pool) error) (string, error) {
	t := &templates
	t.Lock()
	made := t.known[key]
	if made == nil {
		made = sync.OnceValues(func() (string, error) {
			name := scratchName("template")
			database, err := withDatabase(server, name)
			if err == nil {
				err = createDatabase(context.Background(), server, name, "template0")
			}
			if err == nil {
				err = prepare(database, migrate)
			}
			return name, err
		})
		if t.known == nil {
			t.known = map[string]func() (string, error){}
		}
		t.known[key] = made
	}
	t.Unlock()
	return made()
}

// prepare calls migrate with connections to a database.
func prepare(database string, migrate func(context.Context, *pgxpool.Pool) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	pool, err := pgxpool.New(ctx, database)
	if err != nil {
		return fmt.Errorf("pgtest: %w", err)
	}
	defer pool.Close()
	if err := migrate(ctx, pool); err != nil {
		return fmt.Errorf("pgtest: migrate: %w", err)
	}
	return nil
}
