package lockclient

import (
	"context"
	"github.com/fencepost-go/fencepost/lockclient/internal/pglease"
	"log/slog"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// listenWith gives the issuer its listener, with a connection of its own that is
// configured as those of pool are.
func (p *postgres) listenWith(pool *pgxpool.Pool, owner string, logger *slog.Logger) {
	config := pool.Config()
	config.ConnConfig.OnNotification = nil // the driver's own queue, which is read here
	p.listener = newListener(&listener{
		timeout: p.OpTimeout,
		connect: func(ctx context.Context) (*pgx.Conn, error) {
			settings := config.ConnConfig.Copy()
			if config.BeforeConnect != nil { // such as a password of the day
				if err := config.BeforeConnect(ctx, settings); err != nil {
					return nil, err
				}
				settings.OnNotification = nil
			}
			conn, err := pgx.ConnectConfig(ctx, settings)
			if err == nil && config.AfterConnect != nil {
				if err = config.AfterConnect(ctx, conn); err != nil {
					conn.Close(ctx)
				}
			}
			return conn, err
		},
		notify: func(ctx context.Context, payload string) error {
			_, err := p.own.Exec(ctx, "SELECT pg_notify($1::text, $2::text)", pglease.Channel, payload)
			return err
		},
		failed: func(err error) {
			if logger != nil {
				logger.Warn("lock_listen_failed", slog.String("ownerId", owner), slog.String("error", err.Error()))
			}
		},
		restored: func() {
			if logger != nil {
				logger.Info("lock_listen_restored", slog.String("ownerId", owner))
			}
		},
	})
}
