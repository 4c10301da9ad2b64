package pglease

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/internal/input"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"
)

// EpochShift is the lowest bit of the epoch in a token.
const EpochShift = 40

// Epoch is documented as lockadmin.Epoch.
type Epoch struct {
	Number, Base, Timeline int64
	SystemIdentifier       string
	Floor                  guard.Token
	Hidden                 string
}

// Instance is a server that was entered. It does not change its timeline or its
// cluster while its postmaster runs, nor the table while it has this number.
type Instance struct {
	Epoch
	Started time.Time // zero if that is hidden
	Leases  uint32
}

// Raise says what to raise: the epoch to at least Epoch and by More, the floor
// to at least Floor. Only an operator raises; an issuer's Raise is zero.
type Raise struct {
	Epoch, More, Floor int64
	// Exclusive waits for the grants in progress.
	Exclusive bool
}

// enteredKey marks connections to servers that hide when they were started.
const enteredKey = "fencepost.lockclient.entered"

// Enter returns the server on which leases may be granted. Every statement that
// grants compares it on the server, because behind a pooler or a proxy a
// connection may reach another server.
func (s *Server) Enter(ctx context.Context, conn *pgx.Conn, lockTimeout string) (*Instance, error) {
	if err := s.CheckSchema(ctx, conn); err != nil {
		return nil, err
	}
	if in := s.entered.Load(); in != nil && (!in.Started.IsZero() || conn.PgConn().CustomData()[enteredKey] == s) {
		return in, nil
	}
	return s.Reenter(ctx, conn, Raise{}, lockTimeout)
}

// Entered returns the server that was entered last; nil if none was.
func (s *Server) Entered() *Instance { return s.entered.Load() }

const (
	enterColumns = `SELECT o_epoch, o_base, o_timeline, o_system_identifier, o_started, o_leases, o_floor, o_moved, o_raised, o_hidden,
  pg_catalog.has_function_privilege('pg_catalog.pg_postmaster_start_time()', 'EXECUTE'), ` + settings + `
FROM fencepost.`
	// enterSQL is an issuer's. $1 lock_timeout in milliseconds.
	enterSQL = enterColumns + "adopt_epoch($1::pg_catalog.text::integer)"
	// raiseSQL is an operator's. $2 epoch, $3 more, $4 floor, $5 exclusive.
	raiseSQL = enterColumns + "raise_epoch($2::bigint, $3::bigint, $4::bigint, $5::boolean, $1::pg_catalog.text::integer)"
)

// Reenter asks the server for its identity, and raises what r says.
func (s *Server) Reenter(ctx context.Context, conn *pgx.Conn, r Raise, lockTimeout string) (*Instance, error) {
	var in Instance
	var moved, raised, visible, standby bool
	statement, args := enterSQL, []any{lockTimeout}
	if s.Operator {
		statement, args = raiseSQL, append(args, r.Epoch, r.More, r.Floor, r.Exclusive)
	}
	err := conn.QueryRow(ctx, statement, args...).
		Scan(&in.Number, &in.Base, (*zeronull.Int8)(&in.Timeline), (*zeronull.Text)(&in.SystemIdentifier), (*zeronull.Timestamptz)(&in.Started),
			&in.Leases, (*int64)(&in.Floor), &moved, &raised, (*zeronull.Text)(&in.Hidden), &visible, &standby)
	if err != nil {
		return nil, err
	}
	if !visible && !s.Operator && !in.Started.IsZero() { // each of its grants compares it, with the role's own rights
		in.Started, in.Hidden = time.Time{}, strings.TrimPrefix(in.Hidden+"; permission denied for function pg_postmaster_start_time", "; ")
	}
	if in.Hidden != "" {
		s.hidden.Do(func() {
			s.log(ctx, slog.LevelWarn, "lock_epoch_hidden", slog.Int64("epoch", in.Number), slog.String("hidden", in.Hidden))
		})
	}
	if raised {
		s.log(ctx, slog.LevelInfo, "lock_epoch_raised", slog.Int64("epoch", in.Number),
			slog.Int64("timeline", in.Timeline), slog.String("floor", in.Floor.String()), slog.Bool("restored", moved))
	}
	conn.PgConn().CustomData()[enteredKey] = s
	s.entered.Store(&in)
	return &in, nil
}

// log has an event logged. An issuer does not wait for that; an operator's process may end
// right after the call.
func (s *Server) log(ctx context.Context, level slog.Level, name string, attrs ...slog.Attr) {
	logger := input.Logger(s.Logger, level)
	switch {
	case logger == nil:
	case s.Operator:
		logger.LogAttrs(ctx, level, name, attrs...)
	default:
		s.reports.Add(func() { logger.LogAttrs(ctx, level, name, attrs...) })
	}
}
