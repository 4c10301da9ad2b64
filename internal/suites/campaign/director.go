package main

import (
	"math/rand/v2"
	"sync"
	"time"

	"github.com/fencepost-go/fencepost/internal/suites/campaign/oracle"
)

// episode is one aimed pause: a process is stopped at a gate while it has a
// lease, and resumed when its successor on the resource reaches a phase.
type episode struct {
	at    string // the gate at which the victim is stopped
	until string // the successor's phase at which it is resumed
	hold  bool   // the successor waits there until the victim has acted

	victim   *child // chosen, and stopped a moment later
	life     int    // the victim's
	resource string
	token    int64
	resumed  bool
	held     *child
	heldLife int
	over     chan struct{} // closed when nobody is stopped or held any more
}

// director aims the pauses of one surface.
type director struct {
	rng      *rand.Rand
	gates    []string
	unfenced bool
	note     func(event string, args ...any)
	// spare is taken while a replica is stopped: the other one serves the
	// successor. The directors of all surfaces share it.
	spare chan struct{}
	// hold bounds how long a successor is held for its predecessor to act. blind
	// is how long a victim stays stopped if no successor comes: well within a
	// client's opTimeout. arm is how long to wait for a gate.
	hold, blind, arm time.Duration
	pace             *pace

	mu      sync.Mutex
	current *episode
	count   figures
	closed  bool
}

func newDirector(inside []string, r *run, spare chan struct{}, rng *rand.Rand) *director {
	return &director{
		gates: append([]string{phaseGranted, phaseWrite, phaseWrite}, inside...), unfenced: r.opts.Guards != guardsOn, note: r.note, spare: spare, rng: rng, pace: &r.pace,
		hold: time.Second, blind: 4 * time.Second, arm: 4 * time.Second,
	}
}

// draw makes the next episode. Half of them are the case that a comparison at
// write time cannot handle: the victim is between its read and its write, the
// successor between its own.
func (d *director) draw() *episode {
	e := &episode{at: d.gates[d.rng.IntN(len(d.gates))], over: make(chan struct{})}
	switch d.rng.IntN(5) {
	case 0:
		e.until = phaseGranted
	case 1, 2:
		e.until = phaseWritten
	default:
		e.until, e.hold = phaseWrite, true
	}
	// Nothing ends a transaction without a fence that has locked the row.
	if d.unfenced && e.at == phaseCommit {
		e.until, e.hold = phaseGranted, false
	}
	return e
}

// run goes from one episode to the next until done is closed.
func (d *director) run(done <-chan struct{}) {
	for {
		if !sleepUnless(done, time.Duration(50+d.rng.IntN(250))*time.Millisecond) {
			return
		}
		e := d.draw()
		d.mu.Lock()
		d.current = e
		d.mu.Unlock()
		select {
		case <-e.over:
		case <-done:
		case <-time.After(d.pace.of(d.arm + d.blind)):
		}
		d.finish(e)
	}
}

// report receives every phase of a process on the surface, and lets the process
// pass its gate unless it is the victim or is held.
func (d *director) report(c *child, r report) {
	d.mu.Lock()
	switch {
	case r.Phase == phaseWritten:
		d.count.Acked++
	case r.Phase == phaseFailed && r.Outcome == oracle.Stale:
		d.count.Stale++
	case r.Phase == phaseFailed:
		d.count.Failed++
	}
	e := d.current
	stop, resumed, acted := false, false, false
	switch {
	case e == nil || d.closed:
	case e.victim == nil:
		if stop = r.Gate && r.Phase == e.at && d.spared(c); stop {
			e.victim, e.life, e.resource, e.token = c, r.life, r.Resource, r.Token
		}
	case !e.resumed && c != e.victim && r.Resource == e.resource && r.Token > e.token && r.Phase == e.until:
		e.resumed, resumed = true, true
		d.count.Aimed++
		if e.hold && r.Gate {
			e.held, e.heldLife = c, r.life
		}
	case e.held != nil && r.Token == e.token && r.Resource == e.resource && !r.Gate:
		acted = true
	}
	held := e != nil && e.held == c && e.heldLife == r.life // not a later life, after a kill
	d.mu.Unlock()
	switch {
	case stop:
		d.stop(e, r)
		return
	case resumed:
		d.note("resume", "child", e.victim.role.Name, "resource", e.resource, "token", e.token, "successor", r.Token, "phase", r.Phase)
		if held { // until the victim has acted, or has had time to
			e.victim.resume()
			time.AfterFunc(d.pace.of(d.hold), func() { d.finish(e) })
			return
		}
		d.finish(e)
	case acted:
		d.finish(e)
	}
	if r.Gate && !held {
		c.goOn(r.life)
	}
}

// spared reports whether c may be stopped: one of the replicas must go on.
func (d *director) spared(c *child) bool {
	if c.role.Kind != "replica" {
		return true
	}
	select {
	case d.spare <- struct{}{}:
		return true
	default:
		return false
	}
}

// stop stops the victim. The victim passes the gate the moment it is resumed,
// because the word to go on is in its pipe by then.
func (d *director) stop(e *episode, r report) {
	stopped := e.victim.pause()
	d.mu.Lock()
	if stopped {
		d.count.Pauses++
	}
	late := e.resumed || closed(e.over) // nothing would resume it
	d.mu.Unlock()
	e.victim.goOn(e.life)
	switch {
	case !stopped:
		d.finish(e)
	case late:
		e.victim.resume()
	default:
		d.note("pause", "child", e.victim.role.Name, "resource", r.Resource, "token", r.Token, "phase", r.Phase)
		time.AfterFunc(d.pace.of(d.blind), func() { d.finish(e) })
	}
}

// finish ends an episode, once, and releases the waiting processes.
func (d *director) finish(e *episode) {
	d.mu.Lock()
	if closed(e.over) {
		d.mu.Unlock()
		return
	}
	close(e.over)
	victim, held, life := e.victim, e.held, e.heldLife
	if d.current == e {
		d.current = nil
	}
	d.mu.Unlock()
	if victim != nil {
		victim.resume()
		if victim.role.Kind == "replica" {
			<-d.spare
		}
	}
	if held != nil {
		held.goOn(life)
	}
}

// close releases all processes and starts no more episodes.
func (d *director) close() {
	d.mu.Lock()
	d.closed = true
	e := d.current
	d.mu.Unlock()
	if e != nil {
		d.finish(e)
	}
}

// counts returns the director's actions and the reports it received.
func (d *director) counts() figures {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.count
}

// stage has a director for each surface.
type stage map[string]*director

func (s stage) report(c *child, r report) {
	if d := s[oracle.Surface(r.Resource)]; d != nil {
		d.report(c, r)
	} else if r.Gate {
		c.goOn(r.life)
	}
}

// sleepUnless waits; false if done was closed first.
func sleepUnless(done <-chan struct{}, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-done:
		return false
	}
}
