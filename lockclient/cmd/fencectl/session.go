package main

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/internal/opcmd"
	"github.com/fencepost-go/fencepost/lockclient/internal/pglease"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin"
	"github.com/fencepost-go/fencepost/lockclient/pglock"
	"github.com/fencepost-go/fencepost/sqlfence"
	"github.com/fencepost-go/fencepost/sqlfence/sqladmin"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/urfave/cli/v3"
)

// session is the connection to one database. Nothing is sent before it is used.
type session struct {
	pool  *pgxpool.Pool
	op    *lockadmin.Operator
	fence *sqlfence.DB[pgx.Tx]
	admin *sqladmin.Admin
	// timeout bounds what the packages leave to the caller's context.
	timeout time.Duration
}

// connect reads the configuration: --database-url, and what it leaves out from
// the PG variables, the service file and ~/.pgpass.
func connect(ctx context.Context, cmd *cli.Command) (*session, error) {
	config, err := poolConfig(cmd)
	if err != nil {
		return nil, err
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, guard.Unavailable("connect", guard.Claim{}, err)
	}
	timeout := cmd.Duration("timeout")
	s := &session{pool: pool, admin: sqladmin.Pgx(pool), timeout: timeout}
	s.op, err = lockadmin.New(pool, &lockadmin.Options{OpTimeout: timeout, Logger: slog.New(slog.DiscardHandler)})
	if err == nil {
		s.fence, err = sqlfence.Pgx(pool, &sqlfence.Options{CommitTimeout: timeout, RaiseTimeout: cmd.Duration("raise-timeout")})
	}
	if err != nil {
		pool.Close()
	}
	return s, err
}

func poolConfig(cmd *cli.Command) (*pgxpool.Config, error) {
	url := cmd.String("database-url")
	config, err := pgxpool.ParseConfig(url)
	switch {
	case err != nil && url != "":
		// If malformed, it may contain a password where nothing would find it.
		return nil, opcmd.Usage("--database-url (or FENCECTL_DATABASE_URL) is not a PostgreSQL URL or key=value string; it is not shown here because it may hold a password")
	case err != nil:
		return nil, opcmd.Usage("the PG variables: %v", err)
	}
	if config.ConnConfig.RuntimeParams["application_name"] == "" {
		config.ConnConfig.RuntimeParams["application_name"] = "fencectl"
	}
	if config.ConnConfig.ConnectTimeout == 0 {
		config.ConnConfig.ConnectTimeout = cmd.Duration("timeout")
	}
	if config.ConnConfig.DefaultQueryExecMode == pgx.QueryExecModeCacheStatement {
		// Each call sends one statement, so naming it gains nothing, and a
		// pooler in transaction mode would lose the names.
		config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	}
	config.MaxConns = 4
	return config, nil
}

// target describes what a session connects to, without its password.
func (s *session) target() string {
	config := s.pool.Config().ConnConfig
	return fmt.Sprintf("%s@%s:%d/%s", config.User, config.Host, config.Port, config.Database)
}

// bounded adds the timeout: a server that was reached may stop responding.
func (s *session) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, s.timeout)
}

// row reads the one row of a query that writes nothing.
func (s *session) row(ctx context.Context, op, sql string, args []any, into ...any) error {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	return failed(op, s.pool.QueryRow(ctx, sql, args...).Scan(into...))
}

// rows reads all rows of a query that writes nothing.
func rows[T any](ctx context.Context, s *session, op, sql string, args []any, scan pgx.RowToFunc[T]) ([]T, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	found, _ := s.pool.Query(ctx, sql, args...) // found has the error too
	all, err := pgx.CollectRows(found, scan)
	return all, failed(op, err)
}

// failed says what the error of a statement that writes nothing means.
func failed(op string, err error) error {
	return pglease.Failure(op, guard.Claim{}, pglease.Harmless(err))
}

func sqlState(err error) string {
	if pg := pglease.Error(err); pg != nil {
		return pg.Code
	}
	return ""
}

// The components of schema fencepost, in the order in which they are migrated.
const (
	leasesComponent = "lockclient"
	marksComponent  = "sqlfence"
)

var (
	components = []string{leasesComponent, marksComponent}
	leasesOnly = components[:1:1]
	marksOnly  = components[1:]
)

// scripts are what makes and removes a component's part of the schema.
func scripts(component string) (up, down string) {
	if component == marksComponent {
		return sqladmin.MigrationSQL(), sqladmin.DownSQL()
	}
	return pglock.MigrationSQL(), pglock.DownSQL()
}

// need refuses a database whose schema this build cannot use. A role that may not
// see the versions is let through: its next error says more.
func (s *session) need(ctx context.Context, components ...string) error {
	if len(components) == 0 {
		return nil
	}
	have, err := s.versions(ctx)
	if sqlState(err) == "42501" {
		return nil
	}
	for _, component := range components {
		if err == nil {
			err = unusable(component, have[component])
		}
	}
	return err
}

// schemaVersion is what is recorded of a component: the version that was applied, and the
// one that a build must know to use it.
type schemaVersion struct{ applied, usableFrom int64 }

// versions reads the versions by component; none if there is no schema. The record
// may be from a build that did not know of usable_from.
func (s *session) versions(ctx context.Context) (map[string]schemaVersion, error) {
	found := map[string]schemaVersion{}
	_, err := rows(ctx, s, "read the schema's version", `SELECT component, max(version)::bigint, max(coalesce((to_jsonb(m) ->> 'usable_from'::text)::bigint, version))::bigint
FROM fencepost.migrations m GROUP BY component`, nil, func(row pgx.CollectableRow) (v schemaVersion, err error) {
		var component string
		err = row.Scan(&component, &v.applied, &v.usableFrom)
		found[component] = v
		return v, err
	})
	if missing(err) {
		return nil, nil
	}
	return found, err
}

// unusable says why this build cannot use a component; nil if it can.
func unusable(component string, have schemaVersion) error {
	up, _ := scripts(component)
	want := int64(strings.Count(up, "\n-- "+component+" version ")) // a headline for each
	switch {
	case have.applied == 0:
		return schemaError("schema_missing", "the database has no schema of %s: run fencectl migrate", component)
	case have.applied < want:
		return schemaError("schema_older", "the database has %s version %d, this build needs %d: run fencectl migrate", component, have.applied, want)
	case have.usableFrom > want:
		return schemaError("schema_newer", "the database has %s version %d, this build knows %d: use a newer fencectl", component, have.applied, want)
	}
	return nil
}

func schemaError(reason, format string, args ...any) error {
	return &opcmd.Error{Code: opcmd.ExitSetup, Reason: reason, Err: fmt.Errorf(format, args...)}
}

// missing reports that a table, function, column or schema of the statement does not
// exist (PostgreSQL documentation, appendix A).
func missing(err error) bool {
	switch sqlState(err) {
	case "42P01", "42883", "3F000", "42703":
		return true
	}
	return false
}
