// Package pglease is what the PostgreSQL issuer and the operators' calls share:
// the schema, one attempt on one connection, the classes of its errors and the
// epoch.
//
// An acquire goes from issuer.go (the issuer) through batch.go (what is sent together) to
// server.go (one attempt on one connection) and statements.go, and ends in acquire of
// migrations/0001_leases.sql. sessions.go says on which connection each statement runs,
// listen.go wakes waiters, epoch.go enters a server, classify.go tells errors apart, and
// schema.go has the migrations and down.sql, which removes them.
package pglease

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fencepost-go/fencepost/internal/pgerr"
	"github.com/fencepost-go/fencepost/lockclient/internal/report"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Server is the database server that stores the leases. It is safe for
// concurrent use.
type Server struct {
	// Pool runs the statements that name no other pool.
	Pool *pgxpool.Pool
	// OpTimeout bounds the wait for a connection, LockTimeout a statement's wait
	// for a lock.
	OpTimeout, LockTimeout time.Duration
	// Grace is how long an attempt goes on after its caller's context ended.
	Grace time.Duration
	// Logger gets the events about the epoch; nil means none.
	Logger *slog.Logger
	// Operator says that the role may read the tables and call the operators'
	// functions.
	Operator bool

	checked atomic.Bool // the schema's version was right
	entered atomic.Pointer[Instance]
	hidden  sync.Once   // the warning about what the server hides
	standby atomic.Bool // the server has a synchronous standby
	// standbyUntil is how long an operator relies on standby.
	standbyUntil atomic.Pointer[time.Time]
	reports      report.Queue
}

// Statement is what runs on one connection. lockTimeout is in milliseconds, as
// the statements take it.
type Statement func(ctx context.Context, conn *pgx.Conn, lockTimeout string) error

// staleTries bounds how many broken connections in a row are put down to a past
// outage.
const staleTries = 3

// On runs a statement on a connection of pool, and on another one if the
// connection turns out to be broken before anything could be written. The wait for
// a connection is bounded separately from the statement: it is not part of the
// outcome.
func (s *Server) On(ctx context.Context, pool *pgxpool.Pool, timeout time.Duration, run Statement) error {
	if s.Operator {
		return s.onWatched(ctx, pool, timeout, run)
	}
	return s.onPool(ctx, pool, s.OpTimeout, timeout, run)
}

// noConnection is the error of a pool that had no connection to give.
type noConnection struct{ error }

func (e noConnection) Unwrap() error { return e.error }

// onPool is On with a limit on the wait for a connection.
func (s *Server) onPool(ctx context.Context, pool *pgxpool.Pool, wait, timeout time.Duration, run Statement) error {
	for try := 1; ; try++ {
		waiting, cancel := context.WithTimeout(ctx, wait)
		conn, err := pool.Acquire(waiting)
		cancel()
		if err != nil {
			return Harmless(noConnection{err})
		}
		again, err := s.use(ctx, conn.Conn(), timeout, run)
		conn.Release()
		if !again || try == staleTries || ctx.Err() != nil || !NothingWritten(err) {
			return err
		}
	}
}

// use runs a statement on a connection. again says that the error comes from the
// connection, which broke by itself or reaches a server that has become read-only: a
// session that outlived a change of roles would refuse everything for as long as it
// is kept, so it is closed.
func (s *Server) use(ctx context.Context, conn *pgx.Conn, timeout time.Duration, run Statement) (again bool, err error) {
	linger, cancel := Lingering(ctx, timeout, s.Grace)
	defer cancel()
	_ = doubt(conn) // of a statement that failed
	err = run(linger, conn, s.lockTimeout(ctx, timeout))
	if err == nil {
		err = doubt(conn)
	}
	if pgerr.State(err) == "25006" {
		conn.Close(linger)
		return true, err
	}
	return err != nil && conn.IsClosed() && linger.Err() == nil, err
}

// lockTimeout makes the server give up before the client does, because then the
// outcome is known.
func (s *Server) lockTimeout(ctx context.Context, timeout time.Duration) string {
	if end, ok := ctx.Deadline(); ok {
		timeout = min(timeout, time.Until(end))
	}
	return Milliseconds(min(s.LockTimeout, timeout*3/4))
}

// Milliseconds is a duration as the statements take it, at least 1.
func Milliseconds(d time.Duration) string { return strconv.FormatInt(max(1, d.Milliseconds()), 10) }

// Lingering returns a context that ends after timeout, or grace after the end
// of ctx.
func Lingering(ctx context.Context, timeout, grace time.Duration) (context.Context, context.CancelFunc) {
	linger, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	if ctx.Done() == nil {
		return linger, cancel
	}
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(grace, cancel) })
	return linger, func() { stop(); cancel() }
}

// CheckSchema checks the schema's version until it has been right once.
func (s *Server) CheckSchema(ctx context.Context, conn *pgx.Conn) error {
	if s.checked.Load() {
		return nil
	}
	var have int64
	err := conn.QueryRow(ctx, Schema().UsableSQL()).Scan(&have)
	if pg := Error(err); pg != nil && (pg.Code == "42P01" || pg.Code == "3F000") {
		return fmt.Errorf("%w: %w", checkVersion(0), err)
	}
	if err == nil {
		err = checkVersion(have)
	}
	if err == nil {
		s.checked.Store(true)
	}
	return err
}

// Channel is where everybody is notified of a release for which no process is
// named; it begins with the name of the schema.
const Channel = "fencepost.leases"

// processChannel is where the waiters of a process are notified of their turn.
func processChannel(process string) string { return Channel + "." + process }

// Topic is what is sent instead of a resource's name: every role that can log
// in can listen on any channel, and a payload of 8,000 bytes fails its
// statement.
func Topic(resource string) string {
	sum := sha256.Sum256([]byte(resource))
	return hex.EncodeToString(sum[:16])
}

// Of returns what p points to: the value of a column, or options. For nil, NULL or
// no options, it is the zero value.
func Of[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}
