package lockclient

import (
	"context"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

// Severity says how bad a [Finding] is.
type Severity string

// The severities.
const (
	// SeverityError: leases cannot be granted, or a promise does not hold.
	SeverityError Severity = "error"
	// SeverityWarning: it works, and something will surprise somebody.
	SeverityWarning Severity = "warning"
)

// Finding is something that [Operator.Inspect] found to be wrong.
type Finding struct {
	// Severity is error or warning.
	Severity Severity `json:"severity"`
	// Setting is a short, stable name of what is wrong, such as "schema" or
	// "default_transaction_isolation".
	Setting string `json:"setting"`
	// Problem says what is wrong, Remedy what to do about it.
	Problem string `json:"problem"`
	Remedy  string `json:"remedy"`
}

// Inspection is what [Operator.Inspect] saw.
type Inspection struct {
	// Server is the server's version in its own words, VersionNum the number
	// (150018); Database and User are those of the connection.
	Server     string `json:"server"`
	VersionNum int    `json:"versionNum"`
	Database   string `json:"database"`
	User       string `json:"user"`
	// Schema is the version of lockclient's schema, 0 if there is none;
	// SchemaWanted is this build's.
	Schema       int `json:"schema"`
	SchemaWanted int `json:"schemaWanted"`
	// Standby says that the server is one, so that nothing can be granted there.
	Standby bool `json:"standby"`
	// Pooled says that a pooler or proxy stands between, which tells the client
	// another process number than the server's.
	Pooled bool `json:"pooled"`
	// The settings are those of this connection, in the server's words.
	SynchronousCommit      string `json:"synchronousCommit"`
	SynchronousStandbys    string `json:"synchronousStandbys"`
	DefaultIsolation       string `json:"defaultIsolation"`
	DefaultReadOnly        string `json:"defaultReadOnly"`
	Fsync                  string `json:"fsync"`
	FullPageWrites         string `json:"fullPageWrites"`
	TransactionTimeoutIdle string `json:"idleInTransactionSessionTimeout"`
	// Timeline is the WAL timeline, 0 if it cannot be seen; SystemIdentifier
	// names the cluster, empty if it cannot be seen; Hidden says why.
	Timeline         int64  `json:"timeline"`
	SystemIdentifier string `json:"systemIdentifier"`
	Hidden           string `json:"hidden,omitempty"`
	// EpochBase is the stored part of the epoch, Floor the token that every
	// later grant is above.
	EpochBase int64       `json:"epochBase"`
	Floor     guard.Token `json:"floor"`
	// Resources is how many rows the server estimates there are.
	Resources int64 `json:"resources"`
	// Blocker is the server process of a transaction that has been open for
	// more than a second with a lock that keeps Purge, RaiseEpoch and
	// AdvanceFloor out; 0 if there is none, or none that the role may see: a
	// role without pg_read_all_stats sees its own transactions alone.
	Blocker int `json:"blocker,omitempty"`
	// RoundTrip is how long the fastest of a few empty statements took.
	RoundTrip time.Duration `json:"roundTripNanoseconds"`
	// ClockAhead is how far the server's clock is ahead of this machine's, give
	// or take ClockError. Leases do not depend on it; comparing logs does.
	ClockAhead time.Duration `json:"clockAheadNanoseconds"`
	ClockError time.Duration `json:"clockErrorNanoseconds"`
	// Findings are what is wrong, the worst first; none is a clean bill.
	Findings []Finding `json:"findings"`
}

// Inspect reads the settings of the server that matter to leases, and says what
// is wrong with them. It writes nothing, and works on a standby, on a database
// without the schema and with one of another version. A setting that the role
// may not see is left empty.
//
// The error is guard.ErrUnavailable: the server could not be asked at all, or
// the client is one of locktest.
func (o *Operator) Inspect(ctx context.Context) (Inspection, error) {
	s, err := o.overseer(ctx, "inspect")
	if err != nil {
		return Inspection{}, err
	}
	in, err := s.inspect(ctx)
	if err != nil {
		return Inspection{}, withCause(ctx, err)
	}
	in.Findings = in.findings()
	return in, nil
}
