package sqlfence

import (
	"database/sql"
	"log/slog"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

// Options configures [Pgx] and [Std]. The zero value is the default. A timeout
// is 1 ms to 24 h, RaiseTimeout up to 48 h.
type Options struct {
	// LockTimeout is PostgreSQL's lock_timeout for each fenced transaction. 0
	// means 5 s; negative leaves the session's own.
	LockTimeout time.Duration
	// IdleTimeout is PostgreSQL's idle_in_transaction_session_timeout for each
	// fenced transaction: it bounds how long a callback of InTx may compute
	// without using the database, and how long a stopped process may block its
	// successor. 0 means 15 s; negative leaves the session's own.
	IdleTimeout time.Duration
	// RaiseTimeout bounds how long a raise waits for the transactions that
	// entered under a lower token to end, even if the session has a shorter
	// statement_timeout. 0 means LockTimeout, at least 5 s, plus IdleTimeout, at
	// least 15 s, so that a raise outwaits a stopped holder, even one with the
	// default timeouts.
	RaiseTimeout time.Duration
	// TerminateAfter is how long a transaction that entered under a lower token
	// may go on working while a raise waits for it; then the raise has the
	// server end its session (pg_terminate_backend). It counts from when a raise
	// of this DB first found the transaction in its way, because the server does
	// not say when it entered. A transaction that waits for its client, as a
	// stopped process's does, has a fifteenth of that time, counted from when it
	// became idle if the server says so. Only sessions of the same login role
	// are ended, and none that itself raises a mark, as [DB.Enter] may. 0 means
	// 15 s, so that a stopped holder delays its successor by at most 2 s;
	// negative never ends one.
	TerminateAfter time.Duration
	// CommitTimeout bounds a COMMIT. The response to a COMMIT is awaited even if
	// the caller's context has ended, because giving up would only make
	// its outcome unknown. It may take an eighth longer. 0 means 5 s.
	CommitTimeout time.Duration
	// Logger logs when a raise has waited for half a second or ends a session, with
	// the process IDs and application names of the sessions it waits for; nil means slog.Default().
	Logger *slog.Logger
	// PresentClaims makes [DB.InTx], [DB.InTxAll] and [DB.Enter]
	// present their claims to triggers (sqladmin's InstallTrigger), as [DB.Present]
	// does. Without it a write to such a table is refused with
	// [guard.ErrMissing]. It costs each transaction some microseconds, so it is
	// off by default. Set it before triggers refuse, since they see no claim without it.
	PresentClaims bool
	// Observer receives an event for every InTx, InTxAll, Enter and Raise, and OpContend
	// for each raise that has waited for half a second or ends a session; nil means none.
	Observer guard.Observer
}

const (
	defaultLockTimeout   = 5 * time.Second
	defaultIdleTimeout   = 15 * time.Second
	defaultTerminate     = 15 * time.Second
	defaultCommitTimeout = 5 * time.Second
	rollbackTimeout      = 5 * time.Second
	// idleShare is how much sooner a session that waits for its client is ended.
	idleShare = 15
	// maxTimeout keeps a timeout within the range of an integer setting in
	// milliseconds.
	maxTimeout = 24 * time.Hour
)

// resolve fills in the defaults. A timeout below a millisecond would reach the
// server as 0, which disables it.
func (o Options) resolve() (Options, error) {
	for _, t := range []struct {
		field string
		value *time.Duration
		unset time.Duration
	}{
		{"Options.LockTimeout", &o.LockTimeout, defaultLockTimeout},
		{"Options.IdleTimeout", &o.IdleTimeout, defaultIdleTimeout},
		{"Options.TerminateAfter", &o.TerminateAfter, defaultTerminate},
		{"Options.CommitTimeout", &o.CommitTimeout, defaultCommitTimeout},
	} {
		if *t.value == 0 {
			*t.value = t.unset
		}
		if *t.value < 0 && t.value != &o.CommitTimeout {
			*t.value = 0
			continue
		}
		if *t.value < time.Millisecond || *t.value > maxTimeout {
			return o, guard.Invalid(t.field, t.value.String(), "must be 1ms to "+maxTimeout.String())
		}
	}
	if o.RaiseTimeout == 0 {
		o.RaiseTimeout = max(o.LockTimeout, defaultLockTimeout) + max(o.IdleTimeout, defaultIdleTimeout)
	}
	if o.RaiseTimeout < time.Millisecond || o.RaiseTimeout > 2*maxTimeout {
		return o, guard.Invalid("Options.RaiseTimeout", o.RaiseTimeout.String(), "must be 1ms to "+(2*maxTimeout).String())
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	return o, nil
}

// TxOptions configures [DB.InTxAll]. The zero value is the default.
type TxOptions struct {
	// Isolation is the transaction's level, which every BEGIN names, so that the
	// server's default does not apply. Under [sql.LevelReadCommitted], which is
	// also the meaning of zero, transactions of one holder run concurrently and
	// never fail because of the fence. Under [sql.LevelRepeatableRead] and
	// [sql.LevelSerializable] the snapshot is taken on entering; if the mark has been
	// raised by then they begin again by themselves, and apart from that the
	// level's own conflicts are 40001: [ErrorFrom] makes ErrUnavailable of them, and
	// the caller may call again.
	Isolation sql.IsolationLevel
	// Resolve asks for the transaction's ID when it begins, and if the response to
	// the COMMIT is lost, asks the server for its outcome, for up to
	// Options.CommitTimeout: InTxAll returns nil if it is committed and
	// ErrUnavailable if it is not, or ErrStale with the mark if a raise ended the
	// session before the COMMIT. What the server does not know stays
	// ErrOutcomeUnknown and can be given to [DB.Resolve] later. It costs no round
	// trip on pgx and one on database/sql.
	Resolve bool
}

func (o *TxOptions) resolve() (TxOptions, error) {
	resolved := TxOptions{}
	if o != nil {
		resolved = *o
	}
	switch resolved.Isolation {
	case sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable:
	case sql.LevelDefault:
		resolved.Isolation = sql.LevelReadCommitted
	default:
		return resolved, guard.Invalid("TxOptions.Isolation", resolved.Isolation.String(), "must be sql.LevelReadCommitted, LevelRepeatableRead or LevelSerializable")
	}
	return resolved, nil
}
