package main

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/fencepost-go/fencepost/internal/suites/campaign/oracle"
)

// injected counts the faults injected into the system.
type injected struct {
	Pauses       int `json:"pauses"`
	WorkerKills  int `json:"workerKills"`
	ServerKills  int `json:"postgresKills"`
	ReplicaKills int `json:"replicaKills"`
	Network      int `json:"networkFaults"`
	ClockSteps   int `json:"clockSteps"`
}

// nemesis does everything except the aimed pauses. Each of its activities draws
// from its own random stream, so that a seed fixes the schedule of each,
// whatever the others do.
type nemesis struct {
	run  *run
	done chan struct{}
	wait sync.WaitGroup
	over chan struct{} // closed when an act has failed: the run then proves nothing

	mu     sync.Mutex
	count  injected
	skewed []oracle.Span
	err    error
}

func (n *nemesis) start() {
	// The mean of the pauses between two acts; each is half to one and a half.
	for i, a := range []struct {
		mean    time.Duration
		act     func(rng *rand.Rand) error
		counter *int
	}{
		{2500 * time.Millisecond, n.killWorker, &n.count.WorkerKills},
		{10 * time.Second, n.killDatabase, &n.count.ServerKills},
		{7 * time.Second, n.killReplica, &n.count.ReplicaKills},
		{1500 * time.Millisecond, func(rng *rand.Rand) error { return n.run.net.disturb(rng, n.done, n.run.note) }, &n.count.Network},
		{9 * time.Second, n.stepClock, &n.count.ClockSteps},
	} {
		if i == 4 && n.run.db.skew == nil {
			continue
		}
		rng := rand.New(rand.NewPCG(n.run.opts.Seed, uint64(1000+i)))
		n.wait.Go(func() {
			for sleepUnless(n.done, n.run.pace.of(a.mean/2+time.Duration(rng.Int64N(int64(a.mean))))) {
				err := a.act(rng)
				n.mu.Lock()
				*a.counter++
				if err != nil && n.err == nil {
					n.err = err
					close(n.over)
				}
				n.mu.Unlock()
			}
		})
	}
}

func (n *nemesis) stop() error {
	close(n.done)
	n.wait.Wait()
	return n.err
}

// counted returns what was injected so far.
func (n *nemesis) counted() injected {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.count
}

func (n *nemesis) killWorker(rng *rand.Rand) error {
	c := n.run.workers[rng.IntN(len(n.run.workers))]
	n.run.note("kill", "child", c.role.Name)
	c.kill()
	sleepUnless(n.done, 50*time.Millisecond)
	return c.start()
}

func (n *nemesis) killReplica(rng *rand.Rand) error {
	c := n.run.replicas[rng.IntN(len(n.run.replicas))]
	n.run.note("kill", "child", c.role.Name)
	c.kill()
	sleepUnless(n.done, time.Duration(rng.IntN(400))*time.Millisecond)
	address, err := c.startServer()
	if err == nil {
		c.link.move(address)
	}
	return err
}

func (n *nemesis) killDatabase(rng *rand.Rand) error {
	n.run.note("kill", "child", "postgres")
	if err := n.run.db.Kill(); err != nil {
		return err
	}
	sleepUnless(n.done, time.Duration(rng.IntN(500))*time.Millisecond)
	return n.run.db.Restart(context.Background())
}

// stepClock steps the server's wall clock forward by an hour or back by two,
// and after a while restores it.
func (n *nemesis) stepClock(rng *rand.Rand) error {
	offset := time.Hour
	if rng.IntN(2) == 0 {
		offset = -2 * time.Hour
	}
	from := monotonic()
	n.run.note("clock", "offset", offset.String())
	if err := n.run.db.skew.step(offset); err != nil {
		return err
	}
	sleepUnless(n.done, time.Duration(1000+rng.IntN(1500))*time.Millisecond)
	n.run.note("clock", "offset", "0s")
	if err := n.run.db.skew.step(0); err != nil {
		return err
	}
	// A step back leaves leases that end in an hour. Their holders release
	// them, except those that were killed. If the server is being killed, which
	// may take a while, try again.
	sleepUnless(n.done, 300*time.Millisecond)
	for n.run.db.strand(context.Background()) != nil && sleepUnless(n.done, 100*time.Millisecond) {
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.skewed = append(n.skewed, oracle.Span{From: from, To: monotonic()})
	return nil
}
