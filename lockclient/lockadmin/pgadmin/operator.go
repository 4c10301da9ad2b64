package pgadmin

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/internal/input"
	"github.com/fencepost-go/fencepost/lockclient/internal/pause"
	"github.com/fencepost-go/fencepost/lockclient/internal/pglease"
	"github.com/fencepost-go/fencepost/lockclient/internal/report"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Operator inspects and repairs leases, for people on call. Make one with
// [New]. It is safe for concurrent use, starts nothing and need not be closed.
//
// It is a [lockadmin.Admin], of which nothing is missing here.
type Operator struct {
	server    *pglease.Server
	observer  guard.Observer
	reports   report.Queue
	reportFor time.Duration // how long a call waits for what it has reported
}

// Options configures [New]. The zero value is the default.
type Options struct {
	// Logger gets the events lock_force_unlocked, lock_force_unlock_failed,
	// lock_advanced, lock_purged, lock_purge_failed, lock_epoch_raised and
	// lock_epoch_hidden; nil means slog.Default().
	Logger *slog.Logger
	// Observer gets every force unlock; nil means none.
	Observer guard.Observer
	// OpTimeout bounds one statement, and separately the wait for a connection
	// and the retries of what was contended; 0 means 5 s, at most an hour.
	OpTimeout time.Duration
	// LockTimeout bounds how long a statement waits for a row on the server; 0
	// means 2 s, or three quarters of OpTimeout if that is less. It must be less
	// than OpTimeout.
	LockTimeout time.Duration
}

// New returns an operator's handle on pool. It sends nothing. opts may be nil.
// The role must have the rights that [RolesSQL] gives to an operator, or own
// the schema; for calls that only read, a reader's are enough.
//
// The error is an InvalidError (errors.Is guard.ErrInvalid) that names the
// field.
func New(pool *pgxpool.Pool, opts *Options) (*Operator, error) {
	if pool == nil {
		return nil, guard.Invalid("pool", "nil", "must not be nil")
	}
	set := pglease.Of(opts)
	set.Logger = cmp.Or(set.Logger, slog.Default())
	if err := input.Timeouts(&set.OpTimeout, &set.LockTimeout); err != nil {
		return nil, err
	}
	server := &pglease.Server{
		Pool: pool, OpTimeout: set.OpTimeout, LockTimeout: set.LockTimeout, Grace: pause.Grace, Logger: set.Logger, Operator: true,
	}
	return &Operator{server: server, observer: set.Observer, reportFor: 100 * time.Millisecond}, nil
}

// report hands an event to a logger or an observer, and waits for it for a moment only: they
// may block, and what was done must be known. A program that ends after the call has it then.
func (o *Operator) report(event func()) {
	o.reports.Add(event)
	ctx, cancel := context.WithTimeout(context.Background(), o.reportFor)
	defer cancel()
	o.reports.Drain(ctx)
}

func (o *Operator) log(ctx context.Context, level slog.Level, name string, attrs ...slog.Attr) {
	o.report(func() { o.server.Logger.LogAttrs(context.WithoutCancel(ctx), level, name, attrs...) })
}

var (
	errRaced = errors.New("lost every race with concurrent changes")
	errNoRow = errors.New("it was never leased, or its row was purged")
)

func notFound(resource string) error {
	return &guard.RejectedError{Reason: guard.ReasonNotFound, Claim: guard.Claim{Resource: resource}, Cause: errNoRow}
}

// do runs one attempt on a connection.
func (o *Operator) do(ctx context.Context, run pglease.Statement) error {
	return o.server.On(ctx, o.server.Pool, o.server.OpTimeout, run)
}

// look runs a query that writes nothing, with names resolved only in
// pg_catalog: a schema on the search_path may have functions or operators of another
// role, which would run with the operator's rights.
func look(ctx context.Context, conn *pgx.Conn, query func() error) error {
	if _, err := conn.PgConn().Exec(ctx, "BEGIN READ ONLY; SET LOCAL search_path = pg_catalog, pg_temp").ReadAll(); err != nil {
		return err
	}
	err := query()
	conn.PgConn().Exec(ctx, "ROLLBACK").ReadAll() // the pool closes a connection if this failed
	return err
}

// retry repeats an attempt while locks are in its way, and with repeatable also if
// its response was lost, for at most as long as one statement may take.
func (o *Operator) retry(ctx context.Context, repeatable bool, attempt func() error) error {
	began := time.Now()
	var lost error // the first attempt whose response was lost
	for n := 0; ; n++ {
		err := attempt()
		if repeatable && lost == nil && errors.Is(err, guard.ErrOutcomeUnknown) {
			lost = err
		}
		passes := lost != nil || pglease.Contention(err) || errors.Is(err, errRaced)
		if err == nil || !passes || time.Since(began) >= o.server.OpTimeout || !pause.For(ctx, pause.Backoff(n, pause.Last), nil) {
			if err != nil {
				err = cmp.Or(lost, err)
			}
			return pause.WithCause(ctx, err)
		}
	}
}

// query reads rows, each with scan, after checking the schema's version. It writes
// nothing.
func query[T any](ctx context.Context, o *Operator, op string, scan func(pgx.Row, *T) error, sql string, args ...any) (all []T, err error) {
	err = o.do(ctx, func(ctx context.Context, conn *pgx.Conn, _ string) error {
		if err := o.server.CheckSchema(ctx, conn); err != nil {
			return pglease.Harmless(err)
		}
		return pglease.Harmless(look(ctx, conn, func() error {
			rows, _ := conn.Query(ctx, sql, args...) // rows has the error too
			all, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (one T, err error) {
				err = scan(row, &one)
				return one, err
			})
			return err
		}))
	})
	return all, pause.WithCause(ctx, pglease.Failure(op, guard.Claim{}, err))
}
