package sqlfence

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgerr"
)

// Isolation is the isolation level of a fenced transaction. It is named in
// every BEGIN, so that the server's default has no say.
type Isolation uint8

const (
	// ReadCommitted is the zero value and the default. Transactions of one
	// holder run side by side and never fail because of the fence.
	ReadCommitted Isolation = iota
	// RepeatableRead sees one snapshot, taken when the transaction enters. If
	// the mark is raised while it enters, it begins again by itself; beyond
	// that the level's own conflicts are 40001.
	RepeatableRead
	// Serializable is RepeatableRead with PostgreSQL's serialization checks,
	// which every transaction that matters must run under.
	Serializable
)

// String returns the level's name in SQL.
func (i Isolation) String() string {
	switch i {
	case ReadCommitted:
		return "READ COMMITTED"
	case RepeatableRead:
		return "REPEATABLE READ"
	case Serializable:
		return "SERIALIZABLE"
	}
	return "Isolation(" + itoa(int(i)) + ")"
}

// maxRetries bounds TxOptions.Retries.
const maxRetries = 100

// TxOptions configures [DB.InTxAll]. The zero value is the default.
type TxOptions struct {
	// Isolation is the transaction's level; zero is [ReadCommitted].
	Isolation Isolation
	// Retries is how many more times the whole callback is run, in a fresh
	// transaction that enters again, after a serialization failure (SQLSTATE
	// 40001) or a deadlock (40P01), which rolled back everything. There is a
	// pause between them, random and up to 5 ms at first and doubling up to
	// 500 ms, that the end of the context ends. The callback must not mind
	// being called several times. 0 means none; at most 100. An unknown
	// outcome is never retried.
	Retries int
	// Resolve asks for the transaction's ID when it begins, and after a COMMIT
	// whose answer was lost asks the server what became of it, for up to
	// Options.CommitTimeout: InTxAll returns nil if it is committed and
	// ErrUnavailable if it is not. What could not be learned stays
	// ErrOutcomeUnknown and can be given to [DB.Resolve] later. It costs no
	// round trip on pgx and one on database/sql, and makes the server assign
	// an ID to a transaction that only reads.
	Resolve bool
}

func (o *TxOptions) resolve() (TxOptions, error) {
	if o == nil {
		return TxOptions{}, nil
	}
	if o.Isolation > Serializable {
		return *o, guard.Invalid("TxOptions.Isolation", o.Isolation.String(), "must be ReadCommitted, RepeatableRead or Serializable")
	}
	if o.Retries < 0 || o.Retries > maxRetries {
		return *o, guard.Invalid("TxOptions.Retries", itoa(o.Retries), "must be 0 to "+itoa(maxRetries))
	}
	return *o, nil
}

// mayRetry reports failures after which the server has rolled back everything
// because of what ran at the same time.
func mayRetry(err error) bool {
	state := pgerr.State(err)
	return (state == pgerr.Serialization || state == pgerr.Deadlock) && guard.ReasonOf(err) != guard.ReasonOutcomeUnknown
}

// backOff pauses before the next try; false means that ctx ended first.
func backOff(ctx context.Context, try int) bool {
	pause := time.NewTimer(rand.N(min(5*time.Millisecond<<min(try, 10), 500*time.Millisecond)))
	defer pause.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-pause.C:
		return true
	}
}
