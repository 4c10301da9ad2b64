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
// needs an operator is documented in package pgadmin.
//
// # What it does not
//
// A promotion without synchronous replication may end a lease that its holder
// believes in; the successor's token is higher all the same.
//
// # Use
//
// Leases are acquired on the caller's pool, or, if the server has a synchronous standby, on
// connections that note its warnings. Renewals and releases have a small
// pool of their own, so that a caller that uses up all connections of its pool
// does not lose its leases. Each statement is a transaction of its own, never
// part of a caller's. Connections must have READ COMMITTED as their default
// isolation level, or every acquire is refused. Statements leave no state on a
// connection, so poolers in transaction mode work if pgx uses an exec mode that
// needs no named prepared statements.
//
// Acquires that arrive while one is in flight are sent as one statement after it, and so are
// releases; they wait 25 ms for one that is stuck. For the listening
// connection it logs lock_listen_failed and lock_listen_restored, and for the server
// lock_epoch_raised and lock_epoch_hidden.
//
// # Where to read on
//
// This file is the issuer's options, migrate.go its schema. The issuer itself is
// internal/pglease, whose package documentation has the order to read it in.
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
	"github.com/fencepost-go/fencepost/lockclient/internal/pause"
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
	// RenewConns is how many connections, besides the caller's pool, renewals and
	// releases use at once; 0 means 4, at most 64. While the network drops connections
	// silently, up to four times as many are open. Until its first renewal, the issuer
	// releases on an idle connection of the pool, if any.
	RenewConns int
	// Poll says not to listen for notifications of releases: waiters poll. They have no
	// place in the queue and may wait long while those of other processes listen, so set it
	// in all or in none. Behind a pooler waiters poll anyway: LISTEN would stay on a server
	// process that is handed to other clients.
	Poll bool
}

const (
	// opTimeout bounds one statement, and separately the wait for a connection; the
	// context of each call bounds both further.
	opTimeout = 5 * time.Second
	// lockTimeout bounds how long a statement waits for its row on the server. Three
	// quarters of the time that is left bound it further: the server gives up before
	// the client does, so that the outcome is known.
	lockTimeout = 2 * time.Second
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
	server := &pglease.Server{Pool: pool, OpTimeout: opTimeout, LockTimeout: lockTimeout, Grace: pause.Grace, Logger: set.Logger}
	return pglease.NewIssuer(server, set.RenewConns, set.Poll)
}

func (o *Options) withDefaults() (Options, error) {
	s := pglease.Of(o)
	if s.RenewConns = cmp.Or(s.RenewConns, defaultRenewConns); s.RenewConns < 0 || s.RenewConns > maxRenewConns {
		return s, guard.Invalid("Options.RenewConns", strconv.Itoa(s.RenewConns), "must be 0 to "+strconv.Itoa(maxRenewConns))
	}
	return s, nil
}
