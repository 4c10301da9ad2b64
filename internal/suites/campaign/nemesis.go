package main

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fencepost-go/fencepost/internal/suites/campaign/oracle"
)

// injected counts the faults injected into the system.
type injected struct {
	Pauses       int `json:"pauses"`
	Aimed        int `json:"aimedResumes"`
	WorkerKills  int `json:"workerKills"`
	ServerKills  int `json:"postgresKills"`
	ReplicaKills int `json:"replicaKills"`
	ObjectKills  int `json:"s3Kills"`
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

	// slower is raised if a run goes on because the machine is slow: at full
	// pace everything may be killed before it has done anything.
	slower atomic.Int64

	mu     sync.Mutex
	count  injected
	skewed []oracle.Span
	err    error
}

func (n *nemesis) start() {
	r := n.run
	// The mean of the pauses between two acts; each is half to one and a half.
	for i, a := range []struct {
		mean time.Duration
		act  func(rng *rand.Rand) error
	}{
		{2500 * time.Millisecond, n.killWorker},
		{14 * time.Second, n.killDatabase},
		{7 * time.Second, n.killReplica},
		{8 * time.Second, n.killObjects},
		{1500 * time.Millisecond, n.disturb},
		{9 * time.Second, n.stepClock},
	} {
		rng := rand.New(rand.NewPCG(r.opts.Seed, uint64(1000+i)))
		n.wait.Go(func() {
			for sleepUnless(n.done, (a.mean/2+time.Duration(rng.Int64N(int64(a.mean))))*time.Duration(1+n.slower.Load())) {
				if err := a.act(rng); err != nil {
					n.fail(err)
					return
				}
			}
		})
	}
}

func (n *nemesis) stop() error {
	close(n.done)
	n.wait.Wait()
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.err
}

func (n *nemesis) fail(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.err == nil {
		n.err = err
		close(n.over)
	}
}

// counted returns what was injected so far.
func (n *nemesis) counted() injected {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.count
}

func (n *nemesis) add(counter *int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	*counter++
}

func (n *nemesis) killWorker(rng *rand.Rand) error {
	c := n.run.workers[rng.IntN(len(n.run.workers))]
	n.run.note("kill", "child", c.role.Name)
	c.kill()
	n.add(&n.count.WorkerKills)
	sleepUnless(n.done, 50*time.Millisecond)
	return c.start()
}

func (n *nemesis) killReplica(rng *rand.Rand) error {
	c := n.run.replicas[rng.IntN(len(n.run.replicas))]
	n.run.note("kill", "child", c.role.Name)
	c.kill()
	n.add(&n.count.ReplicaKills)
	sleepUnless(n.done, time.Duration(rng.IntN(400))*time.Millisecond)
	return n.run.startServer(c)
}

func (n *nemesis) killObjects(rng *rand.Rand) error {
	n.run.note("kill", "child", n.run.objects.role.Name)
	n.run.objects.kill()
	n.add(&n.count.ObjectKills)
	sleepUnless(n.done, time.Duration(rng.IntN(400))*time.Millisecond)
	return n.run.startServer(n.run.objects)
}

func (n *nemesis) killDatabase(rng *rand.Rand) error {
	n.run.note("kill", "child", "postgres")
	if err := n.run.db.Kill(); err != nil {
		return err
	}
	n.add(&n.count.ServerKills)
	sleepUnless(n.done, time.Duration(rng.IntN(500))*time.Millisecond)
	return n.run.db.Restart(context.Background())
}

func (n *nemesis) disturb(rng *rand.Rand) error {
	n.add(&n.count.Network)
	return n.run.net.disturb(rng, n.done, n.run.note)
}

// stepClock steps the server's wall clock forward by an hour or back by two,
// and after a while restores it.
func (n *nemesis) stepClock(rng *rand.Rand) error {
	if n.run.db.skew == nil {
		return nil
	}
	offset := time.Hour
	if rng.IntN(2) == 0 {
		offset = -2 * time.Hour
	}
	from := monotonic()
	n.run.note("clock", "offset", offset.String())
	if err := n.run.db.skew.step(offset); err != nil {
		return err
	}
	n.add(&n.count.ClockSteps)
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
