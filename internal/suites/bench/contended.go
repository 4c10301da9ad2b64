package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// contenders are the libraries whose hand-overs are compared.
var contenders = []string{"Fencepost on PostgreSQL", "etcd's Mutex", "go-redsync"}

var curveColumns = []string{"1st second", "2nd second", "3rd to 12th, a second", "11th to 20th, a second", "p50 ms", "p99 ms", "fewest turns", "most turns"}

// curveLength is how many steps a run has. A step is a second, in a short run
// less.
const curveLength = 20

func peerContended(ctx context.Context, e *env, s *Section) error {
	for _, clients := range e.clients(8, 16, 64) {
		if err := e.part(func(e *env) error { return contendedBy(ctx, e, s, clients) }); err != nil {
			return err
		}
	}
	return nil
}

func contendedBy(ctx context.Context, e *env, s *Section, clients int) error {
	running, err := startAll(ctx, e, !e.short)
	if err != nil {
		return err
	}
	step := time.Second
	if e.short {
		step /= 20
	}
	for _, p := range running {
		if !slices.Contains(contenders, p.name) {
			continue
		}
		lockers := make([]locker, clients)
		for i := range lockers {
			if lockers[i], err = p.reach(ctx, e, fmt.Sprint("bench-", i), 5*time.Second, 1); err != nil {
				return err
			}
		}
		c, err := contend(ctx, lockers, step)
		row := Row{Case: cases(!e.short, clients), Way: p.name, Note: p.waits}
		if err != nil {
			row.Note = "failed: " + err.Error()
		} else {
			row.Values = c.values(step)
		}
		s.Rows = append(s.Rows, row)
	}
	return nil
}

// curve is what one run of a library achieved.
type curve struct {
	perStep []float64 // hand-overs in each step
	took    []float64 // nanoseconds of each hand-over from the third step on
	turns   []int     // of each client, from the third step on
}

// contend lets all clients take one lock in turns, all from the same moment, for
// curveLength steps.
func contend(ctx context.Context, lockers []locker, step time.Duration) (*curve, error) {
	ctx, stop := context.WithTimeout(ctx, curveLength*step)
	defer stop()
	c := &curve{perStep: make([]float64, curveLength), turns: make([]int, len(lockers))}
	r := newRelay()
	var mu sync.Mutex
	var wg sync.WaitGroup
	var failed error
	began := time.Now()
	for client := range lockers {
		wg.Go(func() {
			for ctx.Err() == nil {
				took, err := r.turn(ctx, client, lockers[client])
				at := int(time.Since(began) / step)
				mu.Lock()
				switch {
				case err != nil && ctx.Err() == nil:
					failed = err
					stop()
				case err == nil && took > 0 && at < curveLength:
					if c.perStep[at]++; at >= 2 {
						c.took = append(c.took, float64(took))
						c.turns[client]++
					}
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	slices.Sort(c.took)
	return c, failed
}

func (c *curve) values(step time.Duration) map[string]float64 {
	perSecond := func(from, until int) float64 {
		sum := 0.0
		for _, n := range c.perStep[from:until] {
			sum += n
		}
		return round(sum/(float64(until-from)*step.Seconds()), 4)
	}
	return map[string]float64{
		"1st second": perSecond(0, 1), "2nd second": perSecond(1, 2), "3rd to 12th, a second": perSecond(2, 12), "11th to 20th, a second": perSecond(10, 20),
		"p50 ms": round(quantile(c.took, 0.5)/1e6, 3), "p99 ms": round(quantile(c.took, 0.99)/1e6, 3),
		"fewest turns": float64(slices.Min(c.turns)), "most turns": float64(slices.Max(c.turns)),
	}
}

// relay ensures that no client has the lock twice in a row, so that hand-overs
// are measured.
type relay struct {
	mu      sync.Mutex
	last    int // the client that had the lock last; -1 at first
	freed   time.Time
	changed chan struct{}
}

func newRelay() *relay { return &relay{last: -1, changed: make(chan struct{})} }

// allow waits until another client has had the lock.
func (r *relay) allow(ctx context.Context, client int) error {
	for {
		r.mu.Lock()
		last, changed := r.last, r.changed
		r.mu.Unlock()
		if last != client {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// granted returns the time since the last release, negative if there was none.
func (r *relay) granted(client int) time.Duration {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	took := time.Duration(-1)
	if r.last >= 0 {
		took = max(1, now.Sub(r.freed))
	}
	r.last = client
	close(r.changed)
	r.changed = make(chan struct{})
	return took
}

func (r *relay) free() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.freed = time.Now()
}

// turn takes the lock once and gives it back. It returns how long the hand-over
// took, which is negative for the first grant of all.
func (r *relay) turn(ctx context.Context, client int, l locker) (time.Duration, error) {
	if err := r.allow(ctx, client); err != nil {
		return 0, err
	}
	unlock, err := l.lock(ctx, "one")
	if err != nil {
		return 0, err
	}
	took := r.granted(client)
	r.free()
	return took, unlock(context.WithoutCancel(ctx))
}
