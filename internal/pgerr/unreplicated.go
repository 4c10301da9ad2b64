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
// synchronous standby: a WARNING of SQLSTATE 01000, unless RAISE made it, or one of
// 57P01 from the wait itself.
func Unreplicated(n *pgconn.Notice) bool {
	severity := n.SeverityUnlocalized
	if severity == "" {
		severity = n.Severity
	}
	return severity == "WARNING" && n.Code == "01000" && n.Routine != "exec_stmt_raise" || n.Routine == "SyncRepWaitForLSN"
}
