package s3fence

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
)

const (
	// probeRounds and probeWriters: a store that compares and writes in two
	// steps lets two writers through in about a quarter of such rounds, so that
	// it passes all of them once in ten thousand probes.
	probeRounds  = 32
	probeWriters = 16
	// createRounds are those in which the writers create an object; in the
	// others they overwrite one. What is created lies deep, because stores on a
	// file system make directories between comparing and writing.
	createRounds = 16
)

// race lets many writers write at once on the same condition: one may succeed.
func (p *prober) race(ctx context.Context) error {
	etag, err := p.etag(ctx)
	if err != nil {
		return err
	}
	decided := 0
	for round := 0; decided < probeRounds; round++ {
		if round == 2*probeRounds {
			return errUndecided
		}
		key, on := p.key, etag
		if round < createRounds {
			key, on = fmt.Sprintf("%s-%d/0/1/2/3/4/5/6/7/8/9/a/b/c/d/e/f", p.key, round), ""
			p.keys = append(p.keys, key)
		}
		won, ok, err := p.round(ctx, key, on)
		if err != nil {
			return err
		}
		if ok {
			decided++
		}
		if key == p.key {
			etag = won
		}
	}
	return nil
}

// rush is what writers that write at once have sent, and what came back.
type rush struct {
	bodies [probeWriters][]byte
	etags  [probeWriters]string
	errs   [probeWriters]error
}

// run lets the writers write on one condition. They wait for each other before
// the last byte of their bodies.
func (r *rush) run(ctx context.Context, p *prober, key, etag string) {
	var wg sync.WaitGroup
	gate := newGate(probeWriters, &p.ungated)
	for i := range probeWriters {
		r.bodies[i] = p.body()
		wg.Go(func() {
			defer gate.leave()
			r.etags[i], r.errs[i] = p.writeFrom(ctx, key, etag, &gated{bytes.NewReader(r.bodies[i]), gate}, nil)
		})
	}
	wg.Wait()
}

// winner is who was accepted, -1 if nobody is known to be. It is an error if
// there are several.
func (r *rush) winner(p *prober) (int, error) {
	winner, winners := -1, 0
	for i, err := range r.errs {
		if classify(err) == outcomeApplied {
			winner = i
			winners++
		}
	}
	if winners > 1 {
		return winner, p.fails("racing writers", "%d of %d writes on one condition were accepted", winners, probeWriters)
	}
	return winner, nil
}

// errUndecided: a race that nobody is known to have won shows nothing.
var errUndecided = errors.New("too many answers were lost to tell whether racing writers are kept apart; try again")

// round is one race. It returns the ETag afterwards, and whether there is a
// known winner.
func (p *prober) round(ctx context.Context, key, etag string) (string, bool, error) {
	const check = "racing writers"
	var r rush
	r.run(ctx, p, key, etag)
	winner, err := r.winner(p)
	if err != nil {
		return "", false, err
	}
	for _, err := range r.errs {
		if o := classify(err); o == outcomeRefused || o == outcomeLater {
			return "", false, err
		}
	}
	s, err := p.b.fetch(ctx, key)
	switch {
	case err != nil:
		return "", false, err
	case winner < 0: // all answers were lost or busy, which says nothing of the race
	case string(s.body) != string(r.bodies[winner]):
		return "", false, p.fails(check, "the write that was accepted is not what is stored")
	case s.etag != r.etags[winner]:
		return "", false, p.fails(check, "the ETag of a write, %s, is not the stored object's, %s", quoteShort(r.etags[winner]), quoteShort(s.etag))
	}
	return s.etag, winner >= 0, nil
}
