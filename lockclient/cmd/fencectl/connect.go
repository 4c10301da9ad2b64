package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/migrate"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin"
	"github.com/fencepost-go/fencepost/lockclient/pglock"
	"github.com/fencepost-go/fencepost/sqlfence"
	"github.com/fencepost-go/fencepost/sqlfence/sqladmin"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/urfave/cli/v3"
)

// session is the connection to one database. Nothing is sent before it is used.
type session struct {
	pool  *pgxpool.Pool
	op    *lockadmin.Operator
	marks *sqlfence.DB[pgx.Tx]
	admin *sqladmin.Admin
	// timeout bounds what the two packages leave to the caller's context.
	timeout time.Duration
}

// connect reads the configuration: --database-url, and what it leaves out from
// the PG variables, the service file and ~/.pgpass.
//
// The database must have the given components in this build's version.
func connect(ctx context.Context, cmd *cli.Command, components ...string) (*session, error) {
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
	if s.op, err = lockadmin.New(pool, &lockadmin.Options{OpTimeout: timeout, Logger: slog.New(slog.DiscardHandler)}); err != nil {
		pool.Close()
		return nil, err
	}
	if s.marks, err = sqlfence.Pgx(pool, &sqlfence.Options{CommitTimeout: timeout, RaiseTimeout: cmd.Duration("raise-timeout")}); err != nil {
		s.close()
		return nil, err
	}
	if len(components) > 0 {
		if err := s.checkSchema(ctx, components); err != nil {
			s.close()
			return nil, err
		}
	}
	return s, nil
}

func (s *session) close() { s.pool.Close() }

// open reads the arguments, as [arguments] does, and connects. A RESOURCE is
// checked before anything is sent.
func open(ctx context.Context, cmd *cli.Command, components []string, names ...string) (given []string, s *session, err error) {
	if given, err = arguments(cmd, names...); err != nil {
		return nil, nil, err
	}
	for i, name := range names {
		if name == "RESOURCE" {
			if err := guard.ValidateResource(given[i]); err != nil {
				return nil, nil, err
			}
		}
	}
	s, err = connect(ctx, cmd, components...)
	return given, s, err
}

// sessionAction is an action with a connection and its arguments.
type sessionAction func(ctx context.Context, cmd *cli.Command, s *session, given []string) error

// on connects for an action, and closes the connection.
func on(needed []string, act sessionAction, names ...string) cli.ActionFunc {
	return func(ctx context.Context, cmd *cli.Command) error {
		given, s, err := open(ctx, cmd, needed, names...)
		if err != nil {
			return err
		}
		defer s.close()
		return act(ctx, cmd, s, given)
	}
}

// bounded adds the timeout: a server that was reached may stop responding.
func (s *session) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, s.timeout)
}

func poolConfig(cmd *cli.Command) (*pgxpool.Config, error) {
	url := cmd.String("database-url")
	config, err := pgxpool.ParseConfig(url)
	switch {
	case err != nil && url != "":
		// If malformed, it may contain a password where nothing would find it.
		return nil, usage("--database-url (or FENCECTL_DATABASE_URL) is not a PostgreSQL URL or key=value string; it is not shown here because it may hold a password")
	case err != nil:
		return nil, usage("the PG variables: %v", err)
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
func target(config *pgx.ConnConfig) string {
	return fmt.Sprintf("%s@%s:%d/%s", config.User, config.Host, config.Port, config.Database)
}

// failed adds what was being done if the error itself does not say so.
func failed(op string, err error) error {
	var known *guard.FailedError
	if err == nil || errors.As(err, &known) {
		return err
	}
	var connecting *pgconn.ConnectError
	if errors.As(err, &connecting) {
		op = "connect"
	}
	return guard.Unavailable(op, guard.Claim{}, err)
}

// The components of schema fencepost.
const (
	leasesComponent = "lockclient"
	marksComponent  = "sqlfence"
)

// The components that a command needs.
var (
	components = []string{leasesComponent, marksComponent}
	leasesOnly = components[:1:1]
	marksOnly  = components[1:]
)

// schemaSQL is the whole schema of a component as a script.
func schemaSQL(component string) string {
	if component == marksComponent {
		return sqladmin.MigrationSQL()
	}
	return pglock.MigrationSQL()
}

// known returns the version of a component that this build needs: the script
// has a headline for each.
func known(component string) int64 {
	return int64(strings.Count(schemaSQL(component), "\n-- "+component+" version "))
}

// checkSchema refuses a database whose schema is not this build's. A role that
// may not see the versions is let through: its next error says more.
func (s *session) checkSchema(ctx context.Context, needed []string) error {
	have, err := s.versions(ctx)
	switch {
	case noRights(err) && sqlState(err) == "42501":
		return nil
	case err != nil:
		return failed("read the schema's version", err)
	}
	for _, component := range needed {
		if err := compare(component, have[component], known(component)); err != nil {
			return err
		}
	}
	return nil
}

// schemaVersion is what is recorded of a component: the version that was applied, and
// the one that a build must know to use it.
type schemaVersion struct{ applied, usableFrom int64 }

func compare(component string, schema schemaVersion, want int64) error {
	have := schema.applied
	switch {
	case have == 0:
		return &coded{exitSchema, "schema_missing", fmt.Errorf("the database has no schema of %s: run fencectl migrate", component)}
	case have < want:
		return &coded{exitSchema, "schema_older", fmt.Errorf("the database has %s version %d, this build needs %d: run fencectl migrate", component, have, want)}
	case schema.usableFrom > want:
		return &coded{exitSchema, "schema_newer", fmt.Errorf("the database has %s version %d, this build knows %d: use a newer fencectl", component, have, want)}
	}
	return nil
}

// versions reads the applied versions, by component; none if there is no
// schema. The record may be from a build that did not know of usable_from.
func (s *session) versions(ctx context.Context) (map[string]schemaVersion, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	found := map[string]schemaVersion{}
	rows, err := s.pool.Query(ctx, `SELECT component, max(version)::bigint, max(coalesce((to_jsonb(m) ->> 'usable_from'::text)::bigint, version))::bigint
FROM fencepost.migrations m GROUP BY component`)
	if err == nil {
		var name string
		var v schemaVersion
		_, err = pgx.ForEachRow(rows, []any{&name, &v.applied, &v.usableFrom}, func() error { found[name] = v; return nil })
	}
	if missing(err) {
		err = nil
	}
	return found, err
}

// missing reports that a table, function or schema of the statement does not
// exist (PostgreSQL documentation, appendix A).
func missing(err error) bool {
	switch sqlState(err) {
	case "42P01", "42883", "3F000", "42703":
		return true
	}
	return false
}

func sqlState(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	return ""
}

// schemaReason returns what is wrong with the database's schema; empty if the
// error is about something else.
func schemaReason(err error) string {
	var newer *migrate.NewerError
	switch {
	case errors.As(err, &newer):
		return "schema_newer"
	case missing(err):
		return "schema_missing"
	}
	return ""
}
