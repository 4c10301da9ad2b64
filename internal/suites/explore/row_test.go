package explore

import "github.com/fencepost-go/fencepost/guard"

// rowConfig is the protocol of leases and a fenced row; each field but the
// first three takes away something that the real one has.
type rowConfig struct {
	rule     guard.Rule
	takeover bool // raise the row's mark after acquiring (SameOrNewer only)
	restored bool // the issuer may once be restored from a backup and repeat a token

	noClaim     bool // UPDATE without "AND $t >= last_fencing_token"
	checkFirst  bool // SELECT the mark, compare in the client, then UPDATE
	readFirst   bool // read, then raise
	asyncRaise  bool // the raise commits under synchronous_commit = off
	asyncWrite  bool // the write does, where no raise precedes it
	sameToken   bool // acquire: ON CONFLICT DO UPDATE that does not set the token
	deleteRow   bool // release deletes the lease's row
	noLease     bool // the table has no lease column
	strict      bool // > for >=
	spentWrites bool // >= for >
}

const (
	rowIdle = iota
	rowRaise
	rowRead
	rowWrite
	rowChecked // checkFirst: the comparison is done, the write is not
	rowRelease
	rowDone
)

type rowWorker struct {
	pc, token, lease uint8
	base             uint8 // how many entries of the log it has read, plus one
	left             uint8 // writes to come
	lost             bool  // the response to a write was lost
}

// rowEntry is a committed change of the row: token, lease, and whether it
// wrote a value or only raised the mark.
type rowEntry struct {
	token, lease uint8
	write        bool
}

const rowLog = 12

type rowState struct {
	// The lease's row (lockclient/internal/pglease/migrations/0001_leases.sql).
	exists, expired bool
	issued          uint8 // its token
	held            uint8 // its lease_id; 0 is NULL
	leases          uint8 // lease IDs made so far
	restored        bool

	// The guarded row is its log: the last entry is the mark, the writes are
	// the value. flushed entries survive a crash.
	log     [rowLog]rowEntry
	n       uint8
	flushed uint8
	crashed bool

	w [4]rowWorker

	// What the invariants need to know about the past.
	top                                  uint8 // highest mark that was ever reported
	stale, lost, undone, again, repeated bool
	shared, refused                      bool
}

func (s *rowState) mark() (token, lease uint8) {
	if s.n == 0 {
		return 0, 0
	}
	return s.log[s.n-1].token, s.log[s.n-1].lease
}
