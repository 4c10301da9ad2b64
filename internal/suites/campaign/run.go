package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/fencepost-go/fencepost/internal/suites/campaign/oracle"
)

// run is the controller of one run: it starts everything, unleashes the
// nemesis, brings everything to rest and judges.
type run struct {
	opts     options
	began    int64
	db       *database
	objects  *objects
	net      *network
	stage    stage
	workers  []*child
	replicas []*child
	nemesis  *nemesis
	pace     pace

	mu       sync.Mutex
	schedule *json.Encoder
}

// workersPerSurface are enough for a holder, its successor and one more.
const workersPerSurface = 3

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

// hangLimit bounds what takes a second on a quiet machine: it only ends a run
// that hangs.
const hangLimit = 10 * time.Minute

// usualStart is how long the start takes at most where the machine is quick.
const usualStart = 5 * time.Second

// execute does one run. An error is the campaign's own: then there is no
// verdict.
func execute(ctx context.Context, opts options) (_ *summary, err error) {
	r := &run{opts: opts, began: monotonic(), stage: stage{}, net: newNetwork()}
	schedule, err := os.Create(filepath.Join(opts.Dir, "schedule.jsonl"))
	if err != nil {
		return nil, err
	}
	defer schedule.Close()
	r.schedule = json.NewEncoder(schedule)
	defer func() { err = errors.Join(err, r.close()) }()
	began := time.Now()
	if err := r.setUp(ctx); err != nil {
		return nil, err
	}
	took := time.Since(began)
	began = time.Now()
	done := make(chan struct{})
	var directors sync.WaitGroup
	for _, d := range r.stage {
		directors.Go(func() { d.run(done) })
	}
	r.slowDown(int64(took / usualStart))
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
	ctx, cancel := context.WithTimeout(ctx, hangLimit)
	defer cancel()
	r.nemesis = &nemesis{run: r, done: make(chan struct{}), over: make(chan struct{})}
	if r.db, err = startDatabase(ctx, r.opts.Guards, r.opts.Skew); err != nil {
		return err
	}
	r.objects = startObjects(r.opts.Seed)
	postgres := net.JoinHostPort("127.0.0.1", strconv.Itoa(r.db.Port()))
	leases, err := r.net.link("workers-postgres", postgres)
	if err != nil {
		return err
	}
	services, err := r.net.link("replicas-postgres", postgres)
	if err != nil {
		return err
	}
	store, err := r.net.link("s3", r.objects.address())
	if err != nil {
		return err
	}
	base := role{Guards: r.opts.Guards, Dir: r.opts.Dir, Objects: "http://" + store.Addr()}
	for i := range 2 {
		rl := base
		rl.Kind, rl.Name, rl.Database = "replica", fmt.Sprintf("replica-%d", i), withHost(r.db.URL(), services.Addr())
		c := newChild(rl, r.stage.report)
		r.replicas = append(r.replicas, c)
		address, err := c.startServer()
		if err != nil {
			return err
		}
		if c.link, err = r.net.link(rl.Name, address); err != nil {
			return err
		}
		base.Replicas = append(base.Replicas, "http://"+c.link.Addr())
	}
	spare := make(chan struct{}, 1)
	for i, s := range surfaces {
		r.stage[s.name] = newDirector(s.inside, r, spare, rand.New(rand.NewPCG(r.opts.Seed, uint64(2000+i))))
		for j := range workersPerSurface {
			rl := base
			rl.Kind, rl.Name, rl.Surface = "worker", fmt.Sprintf("%s-%d", s.name, j), s.name
			rl.Seed, rl.Database = r.opts.Seed*1000+uint64(i*10+j), withHost(r.db.URL(), leases.Addr())
			r.workers = append(r.workers, newChild(rl, r.stage.report))
		}
	}
	for _, w := range r.workers {
		if err := w.start(); err != nil {
			return err
		}
	}
	return nil
}

// withHost returns the server's connection URL with another host and port.
func withHost(database, host string) string {
	u, err := url.Parse(database)
	if err != nil {
		panic(err) // pgtest made it
	}
	u.Host = host
	return u.String()
}

// stallLimit is how long a run goes on without coming nearer to what it must
// show. A run that comes nearer goes on, however slow the machine is.
const stallLimit = 5 * time.Minute

// rage returns when the duration is over and the run has shown what it must, or
// when it does not come nearer to that.
func (r *run) rage(ctx context.Context) {
	began, nearer, before := time.Now(), time.Now(), ""
	for {
		select {
		case <-r.nemesis.over:
			return
		case <-ctx.Done():
			return
		case <-time.After(500 * time.Millisecond):
		}
		over := time.Since(began) > r.opts.Duration
		if !over && !r.opts.First {
			continue
		}
		s, err := r.soFar(ctx)
		if err != nil {
			continue // the server was just killed
		}
		if r.opts.First && s.damaged() {
			return
		}
		missing := fmt.Sprint(s.unreached())
		switch {
		case !over:
		case missing == "[]", missing == before && time.Since(nearer) > stallLimit:
			return
		case missing != before:
			nearer, before = time.Now(), missing
			r.note("go on", "for", missing)
		}
		if over {
			r.slowDown(int64(time.Since(began) / r.opts.Duration))
		}
	}
}

// slowDown sets the pace, if that makes it slower: at full pace a slow machine may
// have everything killed, and each lease expired, before anything was done.
func (r *run) slowDown(by int64) {
	by = min(by, slowest)
	if by <= r.pace.Load() {
		return
	}
	r.note("slow down", "pace", by)
	r.pace.Store(by)
	for _, c := range slices.Concat(r.workers, r.replicas) {
		c.setPace(by)
	}
}

// soFar summarises what was reported until now, and what the resources' log shows
// by itself. Both only grow.
func (r *run) soFar(ctx context.Context) (*summary, error) {
	s := &summary{Options: r.opts, Injected: r.nemesis.counted()}
	for _, surface := range surfaces {
		f := r.stage[surface.name].counts()
		f.Surface = surface.name
		s.Injected.Pauses += f.Pauses
		s.Surfaces = append(s.Surfaces, f)
	}
	if r.opts.Guards == guardsOn && !r.opts.First {
		return s, nil
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	h := &oracle.History{}
	if err := errors.Join(r.db.log(ctx, h), r.objects.log(h)); err != nil {
		return nil, err
	}
	s.tally(oracle.Check(h))
	return s, nil
}

// rest brings the system to rest: no process is stopped, every client has ended,
// and every server has done what it was sent, so that nothing more can take effect.
func (r *run) rest() error {
	r.note("rest")
	for _, d := range r.stage {
		d.close()
	}
	var errs []error
	for _, children := range [][]*child{r.workers, r.replicas} {
		ended := make([]error, len(children))
		var group sync.WaitGroup
		for i, c := range children {
			group.Go(func() { ended[i] = c.retire() })
		}
		group.Wait()
		errs = append(errs, ended...)
	}
	r.net.close()
	r.objects.Close()
	ctx, cancel := context.WithTimeout(context.Background(), hangLimit)
	defer cancel()
	return errors.Join(append(errs, r.db.settle(ctx))...)
}

// close ends what is left.
func (r *run) close() error {
	for _, c := range slices.Concat(r.workers, r.replicas) {
		c.kill()
	}
	r.net.close()
	if r.objects != nil {
		r.objects.Close()
	}
	if r.db != nil {
		return r.db.close()
	}
	return nil
}

// judge compares what took effect with the outcomes that the clients saw, and keeps what
// the analysis of a failure needs.
func (r *run) judge(ctx context.Context, active time.Duration) (*summary, error) {
	h := &oracle.History{Final: map[string]oracle.Final{}, Handlers: handlers, Skewed: r.nemesis.skewed}
	files, err := filepath.Glob(filepath.Join(r.opts.Dir, "history-*.jsonl"))
	if err != nil {
		return nil, err
	}
	for _, name := range files {
		if err := readHistory(name, h); err != nil {
			return nil, err
		}
	}
	if err := errors.Join(r.db.read(ctx, h), r.objects.log(h)); err != nil {
		return nil, err
	}
	s, err := r.soFar(ctx)
	if err != nil {
		return nil, err
	}
	s.Seconds = active.Seconds()
	s.judge(h)
	for name, v := range map[string]any{"log.json": h.Log, "grants.json": h.Grants, "summary.json": s} {
		encoded, err := json.MarshalIndent(v, "", " ")
		if err == nil {
			err = os.WriteFile(filepath.Join(r.opts.Dir, name), encoded, 0o600)
		}
		if err != nil {
			return nil, err
		}
	}
	return s, nil
}
