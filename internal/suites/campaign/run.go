package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
)

// options are those of one run.
type options struct {
	Seed     uint64        `json:"seed"`
	Duration time.Duration `json:"duration"` // requested, in nanoseconds
	Patience time.Duration `json:"patience"` // how much longer it may take
	First    bool          `json:"first,omitempty"`
	Expect   string        `json:"expect"`
	Guards   string        `json:"guards"`
	Workers  int           `json:"workers"` // a surface
	Skew     bool          `json:"skew"`
	Dir      string        `json:"-"`
}

// run is the controller of one run: it starts everything, unleashes the
// nemesis, brings everything to rest and judges.
type run struct {
	opts     options
	began    int64
	db       *database
	net      *network
	links    map[*child]*toxiproxy.Proxy
	stage    stage
	workers  []*child
	replicas []*child
	objects  *child
	nemesis  *nemesis
	awaited  []string // what was missing when the duration was over

	ready sync.Map // of child, its channel of addresses

	mu       sync.Mutex
	schedule *json.Encoder
}

// note writes what was done, and when, to the schedule file.
func (r *run) note(event string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	line := map[string]any{"at": time.Duration(monotonic() - r.began).String(), "event": event}
	for i := 0; i+1 < len(args); i += 2 {
		line[args[i].(string)] = args[i+1]
	}
	r.schedule.Encode(line)
}

// Limits for what takes a second on a quiet machine: they only end a run that
// hangs.
const (
	startLimit = 2 * time.Minute
	endLimit   = 2 * time.Minute
)

// execute does one run. An error is the campaign's own: then there is no
// verdict.
func execute(ctx context.Context, opts options) (_ *summary, err error) {
	r := &run{opts: opts, began: monotonic(), links: map[*child]*toxiproxy.Proxy{}, stage: stage{}}
	schedule, err := os.Create(filepath.Join(opts.Dir, "schedule.jsonl"))
	if err != nil {
		return nil, err
	}
	defer schedule.Close()
	r.schedule = json.NewEncoder(schedule)
	defer func() { err = errors.Join(err, r.close()) }()
	if err := r.setUp(ctx); err != nil {
		return nil, err
	}
	began := time.Now()
	done := make(chan struct{})
	var directors sync.WaitGroup
	for _, d := range r.stage {
		directors.Go(func() { d.run(done) })
	}
	r.nemesis.start()
	r.rage(ctx)
	close(done)
	failed := r.nemesis.stop()
	directors.Wait()
	active := time.Since(began)
	if err := errors.Join(failed, ctx.Err(), r.rest()); err != nil {
		return nil, err
	}
	return r.judge(ctx, active)
}

// setUp starts all processes and the network between them.
func (r *run) setUp(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	r.nemesis = &nemesis{run: r, done: make(chan struct{}), over: make(chan struct{})}
	if r.db, err = startDatabase(ctx, r.opts.Guards, r.opts.Skew); err != nil {
		return err
	}
	r.net = newNetwork()
	leases, err := r.route("workers-postgres", r.db.Port())
	if err != nil {
		return err
	}
	services, err := r.route("replicas-postgres", r.db.Port())
	if err != nil {
		return err
	}
	base := role{Guards: r.opts.Guards, Dir: r.opts.Dir}
	var addresses []string
	for i := range 2 {
		rl := base
		rl.Kind, rl.Name, rl.Database, rl.Seed = "replica", fmt.Sprintf("replica-%d", i), services, r.opts.Seed
		c := newChild(rl, r.report)
		r.replicas = append(r.replicas, c)
		if err := r.startServer(c); err != nil {
			return err
		}
		addresses = append(addresses, "http://"+r.links[c].Listen)
	}
	rl := base
	rl.Kind, rl.Name, rl.Seed = "objects", "objects", r.opts.Seed
	r.objects = newChild(rl, r.report)
	if err := r.startServer(r.objects); err != nil {
		return err
	}
	spare := make(chan struct{}, 1)
	store := "http://" + r.links[r.objects].Listen
	for i, s := range surfaces {
		gates := append([]string{phaseGranted, phaseWrite, phaseWrite}, s.inside...)
		r.stage[s.name] = &director{surface: s.name, gates: gates, note: r.note, spare: spare, rng: rand.New(rand.NewPCG(r.opts.Seed, uint64(2000+i)))}
		for j := range r.opts.Workers {
			rl := base
			rl.Kind, rl.Name, rl.Surface = "worker", fmt.Sprintf("%s-%d", s.name, j), s.name
			rl.Seed = r.opts.Seed*1000 + uint64(i*10+j)
			rl.Database, rl.Replicas, rl.Objects = leases, addresses, store
			r.workers = append(r.workers, newChild(rl, r.report))
		}
	}
	for _, w := range r.workers {
		if err := w.start(); err != nil {
			return err
		}
	}
	return nil
}

// route makes a proxy to the server of PostgreSQL and returns the connection
// URL through it.
func (r *run) route(name string, port int) (string, error) {
	_, listen, err := r.net.link(name, net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return "", err
	}
	return withHost(r.db.URL(), listen)
}

// startServer starts a replica or the S3 server and points its link at its new
// address.
func (r *run) startServer(c *child) error {
	addresses := make(chan string, 1)
	r.ready.Store(c, addresses)
	if err := c.start(); err != nil {
		return err
	}
	if c.isRetired() {
		return nil
	}
	select {
	case address := <-addresses:
		if link := r.links[c]; link != nil {
			return move(link, address)
		}
		link, _, err := r.net.link(c.role.Name, address)
		r.links[c] = link
		return err
	case <-time.After(startLimit):
		return fmt.Errorf("%s is not ready: %w %s", c.role.Name, c.died(), c.stderr)
	}
}

// report receives every report of every child.
func (r *run) report(c *child, m report) {
	if m.Phase == phaseReady {
		if addresses, ok := r.ready.Load(c); ok {
			select {
			case addresses.(chan string) <- m.Address:
			default:
			}
		}
		return
	}
	r.stage.report(c, m)
}

// rest brings the system to rest: no process is stopped, no link is disturbed,
// every client has ended, and no statement runs.
func (r *run) rest() error {
	r.note("rest")
	for _, d := range r.stage {
		d.close()
	}
	var mu sync.Mutex
	var errs []error
	var group sync.WaitGroup
	end := func(children []*child, patience time.Duration) {
		for _, c := range children {
			group.Go(func() {
				err := errors.Join(c.died(), c.retire(patience))
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, err)
			})
		}
		group.Wait()
	}
	end(r.workers, endLimit)
	end(r.replicas, endLimit)
	end([]*child{r.objects}, endLimit)
	ctx, cancel := context.WithTimeout(context.Background(), endLimit)
	defer cancel()
	return errors.Join(append(errs, r.db.settle(ctx))...)
}

// close ends what is left.
func (r *run) close() error {
	children := append(append([]*child(nil), r.workers...), r.replicas...)
	if r.objects != nil {
		children = append(children, r.objects)
	}
	for _, c := range children {
		c.mu.Lock()
		c.retired = true
		c.mu.Unlock()
		c.kill()
	}
	if r.net != nil {
		r.net.close()
	}
	if r.db != nil {
		return r.db.close()
	}
	return nil
}
