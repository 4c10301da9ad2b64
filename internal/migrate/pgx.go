package migrate

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// Pgx returns conn as a [Conn].
func Pgx(conn *pgx.Conn) Conn { return pgxConn{conn} }

type pgxConn struct{ conn *pgx.Conn }

// Exec uses the simple protocol, which takes several statements at once.
func (c pgxConn) Exec(ctx context.Context, sql string) error {
	_, err := c.conn.PgConn().Exec(ctx, sql).ReadAll()
	return err
}

func (c pgxConn) QueryInt(ctx context.Context, sql string) (n int64, err error) {
	err = c.conn.QueryRow(ctx, sql, pgx.QueryExecModeExec).Scan(&n)
	return n, err
}
