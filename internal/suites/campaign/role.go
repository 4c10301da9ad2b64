package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// roleVariable is the environment variable that makes this program a child: a
// worker or an HTTP replica.
const roleVariable = "FENCEPOST_CAMPAIGN_ROLE"

// role is a child's configuration.
type role struct {
	Kind    string `json:"kind"` // worker or replica
	Name    string `json:"name"` // unique among the children, the same over its lives
	Life    int    `json:"life"` // how often it was started before
	Guards  string `json:"guards"`
	Surface string `json:"surface,omitempty"` // of a worker
	Seed    uint64 `json:"seed"`
	Pace    int64  `json:"pace"`
	Dir     string `json:"dir"` // for histories

	Database string   `json:"database,omitempty"`
	Replicas []string `json:"replicas,omitempty"`
	Objects  string   `json:"objects,omitempty"`
}

// The phases that a child reports. At a gate it waits for the word to go on, so
// that a pause falls exactly there.
const (
	phaseReady    = "ready"    // a server listens; Address
	phaseGranted  = "granted"  // gate: a lease was granted, the takeover comes next
	phaseWrite    = "write"    // gate: the state was read, the write comes next
	phaseInside   = "inside"   // gate: the same, inside the transaction of the write
	phaseAdmitted = "admitted" // gate: a replica has admitted the write, and carries it out next
	phaseCommit   = "commit"   // gate: a transaction has written, its COMMIT comes next
	phaseWritten  = "written"  // a write was acknowledged
	phaseFailed   = "failed"   // a takeover or a write was refused, or failed
)

// report is a line from a child to the controller.
type report struct {
	Phase    string `json:"phase"`
	Resource string `json:"resource,omitempty"`
	Token    int64  `json:"token,omitempty"`
	Gate     bool   `json:"gate,omitempty"`
	Address  string `json:"address,omitempty"`
	Outcome  string `json:"outcome,omitempty"` // of a failure

	life int // of the child that reports, for the response
}

// pace is by how much everything takes longer than on a quick machine: leases,
// timeouts and pauses. The zero value is once as long.
type pace struct{ atomic.Int64 }

func (p *pace) of(d time.Duration) time.Duration { return d * time.Duration(1+p.Load()) }

// slowest is the pace at which a lease lasts for seconds.
const slowest = 9

// control is a child's end of the pipes to its controller.
type control struct {
	pace pace
	mu   sync.Mutex // one gate at a time, and whole lines
	out  *json.Encoder
	pass chan struct{}
	stop chan struct{} // closed when the controller wants no more
}

// newControl starts to listen. The end of the pipe means that the controller
// died, and the child exits at once: it has nothing to clean up.
func newControl() *control {
	c := &control{out: json.NewEncoder(os.Stdout), pass: make(chan struct{}, 1), stop: make(chan struct{})}
	go func() {
		stopped := false
		lines := bufio.NewScanner(os.Stdin)
		for lines.Scan() {
			slower, isPace := strings.CutPrefix(lines.Text(), "pace ")
			switch {
			case isPace:
				n, _ := strconv.ParseInt(slower, 10, 64)
				c.pace.Store(n)
			case lines.Text() == "go":
				c.pass <- struct{}{}
			case !stopped:
				stopped = true
				close(c.stop)
			}
		}
		os.Exit(3)
	}()
	return c
}

// tell reports without waiting.
func (c *control) tell(r report) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.out.Encode(r) // a controller that is gone is noticed at the other pipe
}

// gate reports and waits until the controller lets the child go on.
func (c *control) gate(phase, resource string, token int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.out.Encode(report{Phase: phase, Resource: resource, Token: token, Gate: true})
	<-c.pass
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// monotonic reads the clock that all processes of the machine share, in
// nanoseconds. Go's own cannot be compared between processes.
func monotonic() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err) // every Linux has it
	}
	return ts.Nano()
}

// runRole is the whole life of a child.
func runRole(encoded string) error {
	var r role
	if err := json.Unmarshal([]byte(encoded), &r); err != nil {
		return fmt.Errorf("%s: %w", roleVariable, err)
	}
	c := newControl()
	c.pace.Store(r.Pace)
	rec, err := newRecorder(r)
	if err != nil {
		return err
	}
	ctx := context.Background()
	pool, err := newPool(ctx, r.Database)
	if err != nil {
		return err
	}
	defer pool.Close()
	switch r.Kind {
	case "worker":
		return runWorker(ctx, &worker{role: r, control: c, recorder: rec}, pool)
	case "replica":
		return runReplica(ctx, &replica{role: r, control: c, recorder: rec, pool: pool})
	}
	return fmt.Errorf("%s: there is no role %q", roleVariable, r.Kind)
}
