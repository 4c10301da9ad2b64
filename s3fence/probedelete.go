package s3fence

import (
	"context"
	"sync"
)

const (
	// deleteRounds is how often deletions and writes race, deleteEach how many
	// of either kind.
	deleteRounds = 16
	deleteEach   = 8
)

// deletion checks what Options.AtomicDelete declares.
func (p *prober) deletion(ctx context.Context) error {
	const check = "DELETE with If-Match"
	err := p.b.removeIf(ctx, p.key, `"00000000000000000000000000000000"`)
	switch classify(err) {
	case outcomeNotMatched:
	case outcomeApplied:
		return p.fails(check, "a deletion was accepted that had to be refused")
	case outcomeRefused:
		return p.fails(check, "%v", err)
	default:
		return err
	}
	etag, err := p.etag(ctx)
	if err != nil {
		return err
	}
	if etag == "" {
		return p.fails(check, "the object of a deletion that was refused is gone")
	}
	if err := p.b.removeIf(ctx, p.key, etag); err != nil && classify(err) != outcomeUnknown {
		return p.fails(check, "a deletion was refused that had to be accepted: %v", err)
	}
	for range deleteRounds {
		if err := p.deleteRound(ctx, check); err != nil {
			return err
		}
	}
	return nil
}

// deleteRound lets deletions and writes race on one condition. If a write was
// accepted, no deletion may have taken it away.
func (p *prober) deleteRound(ctx context.Context, check string) error {
	on, err := p.etag(ctx)
	if err == nil && on == "" {
		on, err = p.expect(ctx, "If-None-Match: * after a deletion", p.key, "", true, p.body(), nil)
	}
	if err != nil {
		return err
	}
	var (
		wg    sync.WaitGroup
		etags [deleteEach]string
		wrote [deleteEach]error
		start = make(chan struct{})
	)
	for i := range deleteEach {
		body := p.body()
		wg.Go(func() {
			<-start
			etags[i], wrote[i] = p.write(ctx, p.key, on, body, nil)
		})
		wg.Go(func() {
			<-start
			_ = p.b.removeIf(ctx, p.key, on) // what is there afterwards tells
		})
	}
	close(start)
	wg.Wait()
	now, err := p.etag(ctx)
	if err != nil {
		return err
	}
	for i, err := range wrote {
		switch classify(err) {
		case outcomeApplied:
			if now != etags[i] {
				return p.fails(check, "a racing write was accepted, and deleted on the condition that it was not there")
			}
		case outcomeRefused, outcomeLater:
			return err
		}
	}
	return nil
}
