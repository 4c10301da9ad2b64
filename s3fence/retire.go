package s3fence

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/fencepost-go/fencepost/guard"
)

// retireWorkers is how many marks are read or deleted at once.
const retireWorkers = 16

// Retire implements [guard.Store]. It reads every mark, which takes a request
// each. Marks are stamped by the clocks of those who raise them. Without
// [Options].AtomicDelete the objects stay, emptied: growth is then bounded by
// the number of resources ever claimed.
func (s *Store) Retire(ctx context.Context, before time.Time) (guard.Retired, error) {
	c := &change{verb: "retire", claim: guard.Claim{Resource: "floor"}, key: s.b.floorKey(), id: newWriteID()}
	if err := ended(ctx, c.op(), guard.Claim{}); err != nil {
		return guard.Retired{}, err
	}
	chosen, highest, err := s.choose(ctx, before)
	if err != nil {
		return guard.Retired{}, guard.Unavailable(c.op(), guard.Claim{}, s.b.explain(err))
	}
	floor, err := s.lift(ctx, c, highest)
	if err != nil {
		return guard.Retired{}, err
	}
	done := guard.Retired{Floor: floor}
	var mu sync.Mutex
	err = inParallel(ctx, chosen, func(ctx context.Context, m retiring) error {
		drop := s.empty
		if s.b.opts.AtomicDelete {
			drop = s.drop
		}
		gone, err := drop(ctx, m)
		mu.Lock()
		defer mu.Unlock()
		if gone && m.at.kind == kindMark {
			done.Count++
		}
		return err
	})
	if err != nil {
		return guard.Retired{}, guard.OutcomeUnknown(c.op(), guard.Claim{}, s.b.explain(err))
	}
	return done, nil
}

// retiring is a mark that was chosen, or a blank, as it was then.
type retiring struct {
	key string
	at  state
}

// choose returns what was written before the time, and the highest token among
// the marks.
func (s *Store) choose(ctx context.Context, before time.Time) (chosen []retiring, highest guard.Token, err error) {
	var keys []string
	err = s.b.list(ctx, s.b.marksPrefix(), "", func(object types.Object) error {
		// Stores on a file system list files that they are about to rename.
		if key := aws.ToString(object.Key); s.b.isMarkKey(key) {
			keys = append(keys, key)
		}
		return nil
	})
	if err != nil {
		return nil, guard.NoToken, err
	}
	var mu sync.Mutex
	err = inParallel(ctx, keys, func(ctx context.Context, key string) error {
		at, err := s.b.peek(ctx, key)
		if err != nil || at.kind != kindMark && at.kind != kindBlank {
			return err
		}
		var r record
		if err := json.Unmarshal(at.body, &r); err != nil {
			return damaged(key, "its record cannot be read")
		}
		if !r.RaisedAt.Before(before) {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		chosen = append(chosen, retiring{key: key, at: at})
		highest = max(highest, at.mark.Token)
		return nil
	})
	return chosen, highest, err
}

// lift raises the floor to at least the token and returns what it is then.
func (s *Store) lift(ctx context.Context, c *change, to guard.Token) (guard.Token, error) {
	c.claim.Token = to
	c.next = func(_ context.Context, base *state) (*write, error) {
		switch {
		case base.kind != kindAbsent && base.kind != kindFloor:
			return nil, s.b.unread(c, damaged(c.key, "it is no floor: another program wrote it"))
		case base.mark.Token >= to:
			return nil, nil
		}
		return s.recordWrite(c.key, base.follow(kindFloor, c.claim, c.id), ""), nil
	}
	at, err := s.b.swap(ctx, c)
	return max(at.mark.Token, to), err
}

// drop deletes a mark if it is as it was when it was chosen. The floor covers
// it, whenever the deletion takes effect.
func (s *Store) drop(ctx context.Context, m retiring) (gone bool, err error) {
	s.b.forget(m.key)
	sent := false
	for try := range maxSends {
		if try > 0 {
			sleep(ctx, s.b.backoff(try))
		}
		if ctx.Err() != nil {
			return false, context.Cause(ctx)
		}
		err = s.b.removeIf(ctx, m.key, m.at.etag)
		switch classify(err) {
		case outcomeApplied:
			return true, nil
		case outcomeNotMatched:
			status, _ := httpStatus(err)
			return sent && status == 404, nil // 404: the answer to the first one was lost
		case outcomeRefused:
			return false, err
		case outcomeUnknown:
			sent = true
		}
	}
	return false, err
}

// empty puts a blank in the place of a mark if that is as it was.
func (s *Store) empty(ctx context.Context, m retiring) (gone bool, err error) {
	if m.at.kind == kindBlank {
		return false, nil
	}
	s.b.forget(m.key)
	c := &change{verb: "retire", key: m.key, id: newWriteID(), start: &m.at}
	c.next = func(_ context.Context, base *state) (*write, error) {
		if base.etag != m.at.etag {
			return nil, nil // raised meanwhile
		}
		return s.recordWrite(m.key, base.follow(kindBlank, guard.Claim{}, c.id), ""), nil
	}
	at, err := s.b.swap(ctx, c)
	return at.made(c.id), err
}

// inParallel calls f for each item until one fails.
func inParallel[T any](ctx context.Context, items []T, f func(context.Context, T) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	slots := make(chan struct{}, retireWorkers)
	for _, item := range items {
		slots <- struct{}{}
		if ctx.Err() != nil {
			break
		}
		wg.Go(func() {
			defer func() { <-slots }()
			if err := f(ctx, item); err != nil {
				cancel(err)
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}
