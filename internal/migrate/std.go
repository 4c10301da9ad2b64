package migrate

import (
	"context"
	"database/sql"
)

// Std returns conn as a [Conn]. Its driver must accept several statements in
// an Exec without arguments, as pgx's and lib/pq do.
func Std(conn *sql.Conn) Conn { return stdConn{conn} }

type stdConn struct{ conn *sql.Conn }

func (c stdConn) Exec(ctx context.Context, query string) error {
	_, err := c.conn.ExecContext(ctx, query)
	return err
}

func (c stdConn) QueryInt(ctx context.Context, query string) (n int64, err error) {
	err = c.conn.QueryRowContext(ctx, query).Scan(&n)
	return n, err
}
