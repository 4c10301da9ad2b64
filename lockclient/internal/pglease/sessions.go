package pglease

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost-go/fencepost/internal/pgerr"
)

// watchedKey marks a connection whose warnings are seen.
const watchedKey = "fencepost.lockclient.watched"

// watchWarnings makes the connections of a configuration note the warnings that
// change an outcome.
func watchWarnings(config *pgx.ConnConfig) { pgerr.WatchWarnings(&config.Config) }

// borrowed is a background context with the values of the last context that was lent
// to it: what the pool's hooks see in connections that nobody waits for.
type borrowed struct {
	context.Context
	values atomic.Pointer[context.Context]
}

func (b *borrowed) lend(ctx context.Context) {
	ctx = context.WithoutCancel(ctx)
	b.values.Store(&ctx)
}

// Value implements context.Context.
func (b *borrowed) Value(key any) any {
	if ctx := b.values.Load(); ctx != nil {
		return (*ctx).Value(key)
	}
	return nil
}

// open opens a connection as a pool of this configuration would; settings is a copy
// of its ConnConfig.
func open(ctx context.Context, config *pgxpool.Config, settings *pgx.ConnConfig, change func(*pgx.ConnConfig)) (*pgx.Conn, error) {
	if config.BeforeConnect != nil { // such as a daily password
		if err := config.BeforeConnect(ctx, settings); err != nil {
			return nil, err
		}
	}
	change(settings)
	conn, err := pgx.ConnectConfig(ctx, settings)
	if err == nil && config.AfterConnect != nil {
		if err = config.AfterConnect(ctx, conn); err != nil {
			conn.Close(ctx)
		}
	}
	return conn, err
}

// watched makes a pool's connections note warnings.
func watched(config *pgxpool.Config) {
	before, after := config.BeforeConnect, config.AfterConnect
	config.BeforeConnect = func(ctx context.Context, settings *pgx.ConnConfig) error {
		if before != nil {
			if err := before(ctx, settings); err != nil {
				return err
			}
		}
		watchWarnings(settings)
		return nil
	}
	config.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		conn.PgConn().CustomData()[watchedKey] = true
		if after != nil {
			return after(ctx, conn)
		}
		return nil
	}
}

// doubt returns what a warning during the last statement said of its outcome.
func doubt(conn *pgx.Conn) error { return pgerr.Doubt(conn.PgConn()) }

// unseen is the doubt about a statement whose commit waited for a standby on a
// connection that shows no warnings.
func unseen(conn *pgx.Conn, standby bool) error {
	if standby && conn.PgConn().CustomData()[watchedKey] == nil {
		return pgerr.ErrUnreplicated
	}
	return nil
}

// onWatched runs an operator's statement: on a connection that notes warnings, if
// the server has a synchronous standby, and otherwise on one of the pool. The pool is
// the caller's, so its connections do not show warnings to this package. Whether there
// is a standby is asked once a minute.
func (s *Server) onWatched(ctx context.Context, pool *pgxpool.Pool, timeout time.Duration, run Statement) error {
	if now := time.Now(); now.After(Of(s.standbyUntil.Load())) {
		err := s.onPool(ctx, pool, s.OpTimeout, timeout, func(ctx context.Context, conn *pgx.Conn, _ string) error {
			var standby bool
			err := conn.QueryRow(ctx, standbySQL).Scan(&standby)
			s.standby.Store(standby)
			return Harmless(err)
		})
		if err != nil {
			return err
		}
		until := now.Add(time.Minute)
		s.standbyUntil.Store(&until)
	}
	if !s.standby.Load() {
		return s.onPool(ctx, pool, s.OpTimeout, timeout, run)
	}
	wait, cancel := context.WithTimeout(ctx, s.OpTimeout)
	config := pool.Config()
	conn, err := open(wait, config, config.ConnConfig, watchWarnings)
	cancel()
	if err != nil {
		return Harmless(err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	_, err = s.use(ctx, conn, timeout, run)
	return err
}

// grant runs a statement that grants: on the caller's pool, unless its commit waits
// for a synchronous standby. A wait that is cancelled shows only in a warning, which
// the issuer's own connections note.
func (i *Issuer) grant(ctx context.Context, timeout time.Duration, run Statement) error {
	if !i.standby.Load() {
		return i.On(ctx, i.Pool, timeout, run)
	}
	if err := take(ctx, i.grants, i.OpTimeout); err != nil {
		return err
	}
	defer func() { <-i.grants }()
	return i.onOwnFor(ctx, timeout, run)
}

// forIdle is how long aside waits for a connection that was idle a moment ago.
const forIdle = 10 * time.Millisecond

// aside runs a statement that must not wait for the caller's connections: on one
// of the issuer's own, or, until it has opened one for renewals, on an idle one of
// the caller's. Otherwise a holder would make everybody wait while it connects to
// release. Half of its own are left to renewals: statements that wait for locked
// rows would hold them up.
func (i *Issuer) aside(ctx context.Context, run Statement) error {
	if stat := i.own.Stat(); stat.TotalConns() == stat.ConstructingConns() {
		if done, err := i.onIdle(ctx, forIdle, i.OpTimeout, run); done {
			return err
		}
	}
	if err := take(ctx, i.others, i.OpTimeout); err != nil {
		return err
	}
	defer func() { <-i.others }()
	return i.onOwn(ctx, run)
}

// onOwn runs a statement on one of the issuer's own connections, or, if none can be
// opened for whatever reason (the server has no room, the password is another one, the
// network hangs), on an idle one of the caller's.
func (i *Issuer) onOwn(ctx context.Context, run Statement) error {
	if err := take(ctx, i.slots, i.OpTimeout); err != nil {
		return err
	}
	defer func() { <-i.slots }()
	return i.onOwnFor(ctx, i.OpTimeout, run)
}

// onOwnFor is onOwn without the limit on how many run at once.
func (i *Issuer) onOwnFor(ctx context.Context, timeout time.Duration, run Statement) error {
	wait, idle := i.OpTimeout, i.Pool.Stat().IdleConns() > 0
	if end, ok := ctx.Deadline(); ok && idle && i.own.Stat().IdleConns() == 0 {
		wait = min(wait, time.Until(end)/2) // it has to be opened, and the rest is for an idle one
	}
	err := i.onPool(ctx, i.own, wait, timeout, run)
	if errors.As(err, new(noConnection)) && ctx.Err() == nil {
		if done, err := i.onIdle(ctx, i.OpTimeout, timeout, run); done {
			return err
		}
	}
	return err
}

// onIdle runs a statement on an idle connection of the caller's; not done if there
// is none, or it broke before anything was written.
func (i *Issuer) onIdle(ctx context.Context, wait, timeout time.Duration, run Statement) (done bool, err error) {
	if i.Pool.Stat().IdleConns() == 0 {
		return false, nil
	}
	waiting, cancel := context.WithTimeout(ctx, wait)
	conn, err := i.Pool.Acquire(waiting)
	cancel()
	if err != nil {
		return false, err
	}
	broken, err := i.use(ctx, conn.Conn(), timeout, run)
	conn.Release()
	return !broken || ctx.Err() != nil || !NothingWritten(err), err
}

// take waits for room in slots, for timeout at most.
func take(ctx context.Context, slots chan struct{}, timeout time.Duration) error {
	select {
	case slots <- struct{}{}:
		return nil
	default:
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	select {
	case slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return Harmless(context.Cause(ctx))
	}
}
