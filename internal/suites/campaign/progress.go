package main

import (
	"context"
	"fmt"
	"time"

	"github.com/fencepost-go/fencepost/internal/suites/campaign/oracle"
)

// rage runs for the duration, and then for at most the patience until the run
// has shown what it must: a slow machine does less in a minute, which says
// nothing about the fences.
func (r *run) rage(ctx context.Context) {
	began := time.Now()
	look := time.NewTicker(500 * time.Millisecond)
	defer look.Stop()
	over := time.NewTimer(r.opts.Duration)
	defer over.Stop()
	asked := false // its duration is over
	for {
		select {
		case <-r.nemesis.over:
			return
		case <-ctx.Done():
			return
		case <-over.C:
			asked = true
			if r.awaited = r.missing(ctx); len(r.awaited) == 0 {
				return
			}
			r.note("go on", "for", r.awaited)
			r.nemesis.slower.Store(1)
		case <-look.C:
			switch {
			case r.opts.First && r.damaged(ctx):
				return
			case !asked:
			case time.Since(began) > r.opts.Duration+r.opts.Patience, len(r.missing(ctx)) == 0:
				return
			default:
				r.nemesis.slower.Store(min(int64(time.Since(began)/r.opts.Duration), 8))
			}
		}
	}
}

// missing returns the floors that are not yet reached. What the children have
// reported is already in their histories, so the final count is no lower.
func (r *run) missing(ctx context.Context) []string {
	s := r.soFar()
	if r.opts.Expect != expectViolations {
		return unreached(s.floors())
	}
	found, err := r.found(ctx)
	if err != nil {
		return []string{fmt.Sprintf("a look at the log: %v", err)} // a server was just killed
	}
	s.tally(found)
	return unreached(s.shows())
}

// damaged reports that the log shows a violation.
func (r *run) damaged(ctx context.Context) bool {
	found, err := r.found(ctx)
	if err != nil {
		return false // a server was just killed
	}
	s := r.soFar()
	s.tally(found)
	for _, f := range s.Surfaces {
		if f.Older+f.Lost > 0 {
			return true
		}
	}
	return false
}

// found returns the violations that the resources' log alone shows so far. The
// log of a resource only grows, so they stay.
func (r *run) found(ctx context.Context) ([]oracle.Violation, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	h := &oracle.History{Final: map[string]oracle.Final{}}
	if err := r.db.readLog(ctx, h); err != nil {
		return nil, err
	}
	if err := r.collectObjects(h); err != nil {
		return nil, err
	}
	return oracle.Check(&oracle.History{Log: h.Log}), nil
}

// soFar summarises what was reported and done until now.
func (r *run) soFar() *summary {
	s := &summary{Options: r.opts, Injected: r.nemesis.counted()}
	for _, surface := range surfaces {
		f := figures{Surface: surface.name}
		r.stage[surface.name].counts(&f)
		s.Injected.Pauses += f.Pauses
		s.Injected.Aimed += f.Aimed
		s.Surfaces = append(s.Surfaces, f)
	}
	return s
}
