package sqlfence

import (
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"net"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgerr"
	"github.com/fencepost-go/fencepost/sqlfence/internal/sqlkit"
)

// errEnded is the error of a COMMIT that committed nothing. What the callback
// itself did before is unknown.
var errEnded = errors.New("the callback ended the transaction itself, or took its marker away, as RESET ALL does")

// errUnread is the error of a COMMIT that cannot be sent.
var errUnread = errors.New("the callback left rows open, or did not close a batch")

// refusedClaim returns the one of several claims that err is about, the first
// if it does not say.
func refusedClaim(claims []guard.Claim, err error) guard.Claim {
	if resource := sqlkit.FactsOf(err).Resource; resource != "" {
		for _, claim := range claims {
			if claim.Resource == resource {
				return claim
			}
		}
	}
	return claims[0]
}

// sessionLost reports errors of a session that the server ended, or of using a
// session again after it ended.
func sessionLost(err error) bool {
	switch pgerr.State(err) {
	case "57P01", "25P03":
		return true
	case "":
		return errors.Is(err, pgconn.ErrConnClosed) || errors.Is(err, driver.ErrBadConn) || errors.Is(err, sql.ErrConnDone) ||
			errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) || errors.As(err, new(*net.OpError))
	}
	return false
}
