package s3fence

import (
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
	// others they overwrite one.
	createRounds = 6
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
			key, on = fmt.Sprintf("%s-%d", p.key, round), ""
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

// errUndecided: a race that nobody is known to have won shows nothing.
var errUndecided = errors.New("too many answers were lost to tell whether racing writers are kept apart; try again")

// round is one race. It returns the ETag afterwards, and whether there is a
// known winner.
func (p *prober) round(ctx context.Context, key, etag string) (string, bool, error) {
	const check = "racing writers"
	var (
		wg     sync.WaitGroup
		bodies [probeWriters][]byte
		etags  [probeWriters]string
		errs   [probeWriters]error
		start  = make(chan struct{})
	)
	for i := range probeWriters {
		bodies[i] = p.body()
		wg.Go(func() {
			<-start
			etags[i], errs[i] = p.write(ctx, key, etag, bodies[i], nil)
		})
	}
	close(start)
	wg.Wait()
	winner, winners := 0, 0
	for i, err := range errs {
		switch classify(err) {
		case outcomeApplied:
			winner = i
			winners++
		case outcomeRefused, outcomeUnsent:
			return "", false, err
		}
	}
	if winners > 1 {
		return "", false, p.fails(check, "%d of %d writes on one condition were accepted", winners, probeWriters)
	}
	s, err := p.b.fetch(ctx, key)
	switch {
	case err != nil:
		return "", false, err
	case winners == 0: // all answers were lost or busy, which says nothing of the race
	case string(s.body) != string(bodies[winner]):
		return "", false, p.fails(check, "the write that was accepted is not what is stored")
	case s.etag != etags[winner]:
		return "", false, p.fails(check, "the ETag of a write, %s, is not the stored object's, %s", quoteShort(etags[winner]), quoteShort(s.etag))
	}
	return s.etag, winners == 1, nil
}
