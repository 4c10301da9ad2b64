package pgerr

import (
	"errors"

	"github.com/jackc/pgx/v5/pgconn"
)

// ErrUnreplicated: the server committed and stopped waiting for its synchronous
// standby, which may not have the transaction. The outcome is unknown: a failover to
// the standby may lose it. It says so only by a warning.
var ErrUnreplicated = errors.New("the server stopped waiting for its synchronous standby, which may not have the transaction")

// Unreplicated reports whether a notice says that a commit may not have reached the
// synchronous standby. Its text is in the server's language and its SQLSTATE, 01000 or
// 57P01, is that of others too; the function that sends it sends nothing else.
func Unreplicated(n *pgconn.Notice) bool { return n.Routine == "SyncRepWaitForLSN" }

// doubtKey is where a watched connection keeps the doubt about its last commit.
const doubtKey = "fencepost.unreplicated"

// WatchWarnings makes connections of a configuration note what [Unreplicated]
// reports, for [Doubt]. The caller's handler still gets every notice.
func WatchWarnings(config *pgconn.Config) {
	before := config.OnNotice
	config.OnNotice = func(conn *pgconn.PgConn, n *pgconn.Notice) {
		if Unreplicated(n) {
			conn.CustomData()[doubtKey] = true
		}
		if before != nil {
			before(conn, n)
		}
	}
}

// Doubt returns ErrUnreplicated if a warning has said so since the last call.
func Doubt(conn *pgconn.PgConn) error {
	data := conn.CustomData()
	if data[doubtKey] == nil {
		return nil
	}
	delete(data, doubtKey)
	return ErrUnreplicated
}
