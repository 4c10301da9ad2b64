package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"strings"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin/pgadmin"
	"github.com/fencepost-go/fencepost/lockclient/pglock"
	"github.com/fencepost-go/fencepost/sqlfence"
	"github.com/fencepost-go/fencepost/sqlfence/sqladmin"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/urfave/cli/v3"
)

// session is the connection to one issuer. Nothing is sent before it is used.
type session struct {
	op lockadmin.Admin
	// issue returns the issuer that doctor leases from; the session closes it.
	issue func() (driver.Issuer, error)
	// target says what it connects to, without a password.
	target string
	// timeout bounds what the packages leave to the caller's context.
	timeout time.Duration
	close   func()

	*postgres // nil unless the issuer is PostgreSQL
}

// postgres is what there is besides on PostgreSQL.
type postgres struct {
	pool   *pgxpool.Pool
	leases *pgadmin.Operator // op
	fence  *sqlfence.DB[pgx.Tx]
	admin  *sqladmin.Admin
}

// openPostgres reads the configuration: --database-url, and what it leaves out from
// the PG variables, the service file and ~/.pgpass.
func openPostgres(ctx context.Context, cmd *cli.Command) (*session, error) {
	config, err := poolConfig(cmd)
	if err != nil {
		return nil, err
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, guard.Unavailable("connect", guard.Claim{}, err)
	}
	return onPool(pool, cmd.Duration("timeout"), cmd.Duration("raise-timeout"))
}

// onPool returns the session on a pool, which it closes.
func onPool(pool *pgxpool.Pool, timeout, raising time.Duration) (*session, error) {
	quiet := slog.New(slog.DiscardHandler)
	db := &postgres{pool: pool, admin: sqladmin.Pgx(pool)}
	var err error
	db.leases, err = pgadmin.New(pool, &pgadmin.Options{OpTimeout: timeout, Logger: quiet})
	if err == nil {
		db.fence, err = sqlfence.Pgx(pool, &sqlfence.Options{CommitTimeout: timeout, RaiseTimeout: raising})
	}
	if err != nil {
		pool.Close()
		return nil, err
	}
	c := pool.Config().ConnConfig
	return &session{
		op: db.leases, timeout: timeout, close: pool.Close, postgres: db,
		issue:  func() (driver.Issuer, error) { return pglock.New(pool, &pglock.Options{Logger: quiet}) },
		target: fmt.Sprintf("%s@%s:%d/%s", c.User, c.Host, c.Port, c.Database),
	}, nil
}

func poolConfig(cmd *cli.Command) (*pgxpool.Config, error) {
	url := cmd.String("database-url")
	config, err := pgxpool.ParseConfig(url)
	switch {
	case err != nil && url != "":
		// If malformed, it may contain a password where nothing would find it.
		return nil, usage("--database-url (or DATABASE_URL) is not a PostgreSQL URL or key=value string; it is not shown here because it may hold a password")
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

// bounded adds the timeout: a server that was reached may stop responding.
func (s *session) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, s.timeout)
}

// patiently reads a list, and gives up if the next row does not come within the timeout.
func patiently[T any](ctx context.Context, s *session, list func(context.Context) iter.Seq2[T, error]) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		timer := time.AfterFunc(s.timeout, func() { cancel(context.DeadlineExceeded) })
		defer timer.Stop()
		for row, err := range list(ctx) {
			timer.Stop()
			if !yield(row, err) {
				return
			}
			timer.Reset(s.timeout)
		}
	}
}

// mark reads a resource's mark.
func (s *session) mark(ctx context.Context, resource string) (guard.Mark, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	return s.fence.Mark(ctx, resource)
}

func sqlState(err error) string {
	if pg, is := errors.AsType[*pgconn.PgError](err); is {
		return pg.Code
	}
	return ""
}

// The components of schema fencepost.
const (
	leasesComponent = "lockclient"
	marksComponent  = "sqlfence"
)

var (
	components = []string{leasesComponent, marksComponent} // in the order in which they are migrated
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

// versions reads the versions of the schema's components.
func (s *session) versions(ctx context.Context) ([]pgadmin.Component, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	return pgadmin.Components(ctx, s.pool)
}

// need refuses a database whose schema this build cannot use. A role that may not
// see the versions is let through: its next error says more.
func (s *session) need(ctx context.Context, components ...string) error {
	if len(components) == 0 || s.postgres == nil {
		return nil
	}
	have, err := s.versions(ctx)
	if sqlState(err) == "42501" {
		return nil
	}
	for _, component := range have {
		for _, needed := range components {
			if err == nil && component.Name == needed {
				err = unusable(component, s.target)
			}
		}
	}
	return err
}

// unusable says why this build cannot use a component; nil if it can.
func unusable(have pgadmin.Component, target string) error {
	switch {
	case have.Applied == 0:
		return schemaError("schema_missing", "%s has no schema of %s: it may not be the database that was meant (--database-url, DATABASE_URL, PGHOST, PGDATABASE); if it is, run fencectl migrate", target, have.Name)
	case have.Applied < have.Known:
		return schemaError("schema_older", "%s has %s version %d, this build needs %d: run fencectl migrate", target, have.Name, have.Applied, have.Known)
	case have.UsableFrom > have.Known:
		return schemaError("schema_newer", "%s has %s version %d, this build knows %d: use a newer fencectl", target, have.Name, have.Applied, have.Known)
	}
	return nil
}

func schemaError(reason, format string, args ...any) error {
	return &commandError{Code: exitSetup, Reason: reason, Err: fmt.Errorf(format, args...)}
}

// missing reports that a table, function, column or schema of the statement does not
// exist (PostgreSQL documentation, appendix A).
func missing(err error) bool {
	return strings.Contains(" 42P01 42883 3F000 42703 ", " "+sqlState(err)+" ") && sqlState(err) != ""
}
