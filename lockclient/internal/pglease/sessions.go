package pglease

import (
	"context"
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
