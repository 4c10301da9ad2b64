// Package pglock issues leases from PostgreSQL, for package lockclient and for the
// lock server.
//
//	if err := pglock.Migrate(ctx, pool); err != nil {
//		return err
//	}
//	issuer, err := pglock.New(pool, nil)
//	if err != nil {
//		return err
//	}
//	client, err := lockclient.New(issuer, "worker-7", nil)
//
// # What it guarantees
//
// What package lockclient promises. Tokens are counted in the lease's row, under its
// lock: they grow across a crash of a server whose default is synchronous_commit =
// off, promotion of a standby that lacks the last grants, dump and restore. What
// needs an operator is documented in package lockadmin.
//
// # What it does not
//
// A promotion without synchronous replication may end a lease that its holder
// believes in; the successor's token is higher all the same.
//
// # Use
//
// Leases are acquired on the caller's pool. Renewals and releases have a small
// pool of their own, so that a caller that uses up all connections of its pool
// does not lose its leases. Each statement is a transaction of its own, never
// part of a caller's. Connections must have READ COMMITTED as their default
// isolation level, or every acquire is refused. Statements leave no state on a
// connection, so poolers in transaction mode work if pgx uses an exec mode that
// needs no named prepared statements.
//
// Acquires that arrive while one is in flight are sent as one statement, and so are
// releases; none waits for a stuck one while the pool has room. For the listening
// connection it logs lock_listen_failed and lock_listen_restored, and for the server
// lock_epoch_raised and lock_epoch_hidden.
//
// # Upgrades
//
// [Migrate] brings the schema to this build's version while holders run. A client
// refuses a schema that is older than its build, or newer and without leave for it,
// at its first acquire; a running client goes on. So migrate first, then roll out.
// Until version 1 exported names may change between minor versions.
package pglock

import (
	"cmp"
	"log/slog"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/internal/input"
	"github.com/fencepost-go/fencepost/lockclient/internal/pglease"
)

const (
	defaultRenewConns = 4
	maxRenewConns     = 64
)

// Options configures [New]. The zero value is the default.
type Options struct {
	// Logger gets the events that the package's documentation names; if nil,
	// warnings go to slog.Default() and the rest is dropped.
	Logger *slog.Logger
	// OpTimeout bounds one statement on the client's side, and separately the
	// wait for a connection; 0 means 5 s. What grants or renews is further bounded
	// by the TTL.
	OpTimeout time.Duration
	// LockTimeout bounds how long a statement waits for the row on the server
	// (lock_timeout, set inside the statement); 0 means 2 s, or three quarters
	// of OpTimeout if that is less. It must be less than OpTimeout: otherwise
	// the client gives up first and cannot know the outcome.
	LockTimeout time.Duration
	// RenewConns is the most connections that the issuer opens for renewals
	// and releases, in addition to the caller's pool; 0 means 4, at most 64. Until its
	// first renewal, it releases on an idle connection of the pool, if any.
	RenewConns int
	// Wake says how waiters learn of releases; empty means [WakeAuto].
	Wake Wake
}

// Wake says how waiters learn of releases.
type Wake string

const (
	// WakeAuto listens for notifications, unless the connection turns out to
	// come from a pooler: LISTEN would stay on a server process that is handed
	// to other clients. Then waiters poll.
	WakeAuto Wake = Wake(pglease.WakeAuto)
	// WakeNotify always listens, such as behind a pooler in session mode.
	WakeNotify Wake = Wake(pglease.WakeNotify)
	// WakePoll never listens. Waiters that poll have no place in the queue. They
	// may wait long while others listen, so use one of the two for a resource.
	WakePoll Wake = Wake(pglease.WakePoll)
)

// New returns an issuer on pool, which stays open when the issuer is closed. opts may
// be nil. New sends nothing; the schema is checked at the first acquire.
//
// Renewals and releases use connections of the issuer's own with pool's configuration,
// opened when first needed. The pool's hooks, which also open these, see the values of
// the caller's context: those of the acquire in renewals, which go out together with
// others under the values of one of them, and those of the last wait while listening.
//
// The error is an InvalidError (errors.Is guard.ErrInvalid) that names the field.
func New(pool *pgxpool.Pool, opts *Options) (driver.Issuer, error) {
	if pool == nil {
		return nil, guard.Invalid("pool", "nil", "must not be nil")
	}
	set, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	server := &pglease.Server{Pool: pool, OpTimeout: set.OpTimeout, LockTimeout: set.LockTimeout, Grace: pglease.Grace, Logger: set.Logger}
	return pglease.NewIssuer(server, set.RenewConns, pglease.Wake(set.Wake))
}

func (o *Options) withDefaults() (Options, error) {
	s := pglease.Of(o)
	if err := input.Timeouts(&s.OpTimeout, &s.LockTimeout); err != nil {
		return s, err
	}
	if s.RenewConns = cmp.Or(s.RenewConns, defaultRenewConns); s.RenewConns < 0 || s.RenewConns > maxRenewConns {
		return s, guard.Invalid("Options.RenewConns", strconv.Itoa(s.RenewConns), "must be 0 to "+strconv.Itoa(maxRenewConns))
	}
	switch s.Wake = cmp.Or(s.Wake, WakeAuto); s.Wake {
	case WakeAuto, WakeNotify, WakePoll:
		return s, nil
	}
	return s, guard.Invalid("Options.Wake", string(s.Wake), "must be auto, notify or poll")
}
