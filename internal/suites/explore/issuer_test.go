package explore

// issuerConfig is the protocol of the lease client and its server; each field
// takes away something that the real one has.
type issuerConfig struct {
	workers, faults, purges, crashes uint8
	// timed models clocks and deadlines. Without it a lease may end at any time
	// and a holder go on forever, which is more than any clock allows: what
	// then holds for tokens holds with every timing.
	timed bool

	sameToken    bool // an UPDATE that does not set the token
	sequence     bool // the token is drawn from a sequence, before the wait for the row
	deleteRow    bool // release deletes the row
	anyLease     bool // release does not compare the lease ID
	asyncAcquire bool // acquire commits under synchronous_commit = off
	asyncRenew   bool // renew does
	noFloor      bool // purge deletes the row and raises no floor
	noTableLock  bool // purge does not lock out running acquires
	fromAnswer   bool // the deadline counts from the response
	noMargin     bool // no allowance for clock drift
}

// Time is in ticks of the server's clock, and relative: a state says how long
// something still lasts, not when it ends, so that time needs no bound. A
// holder's clock may lose one tick in every ttl ticks; the margin is that tick
// (deadline in lockclient/clock.go, where both are a thousandth).
const (
	ttl    = 3
	margin = 1
)

const (
	issIdle = iota
	issAsking
	issHeld
	issRenewing
	issReleasing
	issDone
)

// Where a worker's only request is.
const (
	nowhere = iota
	sent
	begun     // acquire: its UPDATE has its snapshot and waits for the row
	inserting // acquire: there was no row, and its INSERT has its snapshot
	answered
)

const (
	acquireKind = iota + 1
	renewKind
	releaseKind
)

type issWorker struct {
	pc, where uint8
	age       uint8 // since the request was sent, by the worker's clock
	answer    uint8 // the token, 1 for yes, 0 for no
	snap      uint8 // the floor in the statement's snapshot; with sequence, the number drawn
	ran       bool  // its own lease ran when the statement began
	token     uint8 // as received
	left      uint8 // until the deadline, by the worker's clock
	slipped   uint8 // ticks since its clock last lost one
	late      uint8 // an abandoned request that still arrives

	owns, ownsOnDisk bool // the row's lease_id is its own, now and after a crash
}

// issRow is a row of fencepost.leases and the floor's row; token 0: no row.
type issRow struct{ token, left, floor uint8 }

type issState struct {
	row, disk               issRow
	sequence                uint8
	faults, purges, crashes uint8
	w                       [4]issWorker

	top              uint8    // the highest token that a worker received
	got              [10]bool // tokens received
	repeated, shared bool
}

func newIssuer(name string, c issuerConfig) model[issState] {
	m := model[issState]{name: name, workers: int(c.workers)}
	m.start.faults, m.start.purges, m.start.crashes = c.faults, c.purges, c.crashes
	for i := range m.start.w {
		if m.start.w[i].slipped = ttl; i >= int(c.workers) {
			m.start.w[i].pc = issDone
		}
	}
	m.next = func(s issState, to emit[issState]) {
		for i := range s.w[:c.workers] {
			c.client(s, i, to)
			c.network(s, i, to)
		}
		c.tick(s, to)
		c.operator(s, to)
	}
	m.canon = func(s *issState) { sortWorkers(s.w[:c.workers], issWorkerLess) }
	m.final = func(*issState) bool { return true } // time always goes on
	m.invariants = []invariant[issState]{
		{P3, "every grant's token is above all that were received before", func(s *issState) bool { return !s.repeated }},
		{P4, "no two workers receive one token", func(s *issState) bool { return !s.shared }},
	}
	m.goals = []goal[issState]{{says: "without the last release"}, {says: "renewed"}}
	if c.faults > 0 {
		m.goals = append(m.goals, goal[issState]{says: "finds its own lease, with the token it had"},
			goal[issState]{says: "delivers the delayed acquire"}, goal[issState]{says: "delivers the delayed release"})
	}
	if c.timed {
		m.invariants = append(m.invariants, issDeadline)
		m.goals = append(m.goals, goal[issState]{says: "comes after its own deadline"},
			goal[issState]{says: "its clock loses a tick"}, goal[issState]{says: "after its deadline"})
		return m
	}
	m.goals = append(m.goals, goal[issState]{says: "purges"},
		goal[issState]{says: "the server does not have the lease"},
		goal[issState]{"every worker has had the lease", func(s *issState) bool { return s.top >= c.workers }})
	return m
}

// issDeadline checks P7.
var issDeadline = invariant[issState]{P7, "who believes in his lease has it on the server", func(s *issState) bool {
	for i := range s.w {
		if w := &s.w[i]; w.believes() && (!w.owns || s.row.left == 0) {
			return false
		}
	}
	return true
}}

// believes models Lease.Valid in lockclient/lease.go.
func (w *issWorker) believes() bool {
	return (w.pc == issHeld || w.pc == issRenewing) && w.left > 0
}

// owner returns the worker whose lease ID the row has, or -1.
func (s *issState) owner() int {
	for i := range s.w {
		if s.w[i].owns {
			return i
		}
	}
	return -1
}

func (s *issState) own(i int) {
	for k := range s.w {
		s.w[k].owns = k == i
	}
}

// length returns how long a lease is; untimed, it is only over or not over.
func (c issuerConfig) length() uint8 {
	if c.timed {
		return ttl
	}
	return 1
}

// promised returns how much of it the holder relies on.
func (c issuerConfig) promised() uint8 {
	if c.noMargin {
		return ttl
	}
	return ttl - margin
}

// sync makes the row durable: a commit that waits for the disk takes all
// before it there.
func (s *issState) sync() {
	s.disk = s.row
	for i := range s.w {
		s.w[i].ownsOnDisk = s.w[i].owns
	}
}

// grant is the row part of acquireSQL, for a new grant or for the worker's own
// lease again; the token that it returns is on disk before the response.
func (c issuerConfig) grant(s *issState, i int) uint8 {
	w := &s.w[i]
	again := w.owns && (w.ran || s.row.left > 0)
	if !again {
		switch {
		case c.sequence:
			s.row.token = w.snap
		case s.row.token == 0: // INSERT
			s.row.token = w.snap + 1
		case c.sameToken:
		default:
			s.row.token = max(s.row.token+1, w.snap+1)
		}
		s.repeated = s.repeated || s.row.token <= s.top
		s.own(i)
	}
	s.row.left = c.length()
	if !c.asyncAcquire {
		s.sync()
	}
	return s.row.token
}
