package s3fence

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/fencepost-go/fencepost/guard"
)

// Store keeps the marks of resources in a bucket, for services that have a
// bucket but no database. Create one with [Bucket.Store]. It is safe for
// concurrent use, and all replicas of a service that guard a resource share one
// bucket and one Options.Prefix.
//
// Each resource has an object of about 1 KiB. Admitting a claim equal to the
// mark takes one request, a raise one or two, the first claim on a resource
// five: reading its mark and the floor, making its object, reading the floor
// again, writing the mark.
//
// # Retiring
//
// Several objects cannot be changed in one step, so Retire relies on an order
// instead: it raises the floor, an object of its own, and only then deletes (or,
// where that is not safe, empties) the marks that it chose, each on condition
// that it was not raised meanwhile. A resource without a mark therefore either
// was never written or has a token that the floor covers. That is true when the
// floor is read, not later: between reading and creating the mark, another could
// be admitted with a higher token and be retired. So the first claim makes a
// blank object first, which asserts nothing, and reads the floor while that is
// in place; the mark then replaces the blank, and only the blank. If a mark was
// retired in between, so was the blank, and the replacement fails. No clock is
// involved.
type Store struct{ b *Bucket }

var _ guard.Store = (*Store)(nil)

// Store returns the bucket's store of marks.
func (b *Bucket) Store() *Store { return &Store{b: b} }

// record is the body of a mark, of a blank and of the floor.
type record struct {
	Resource string `json:"resource,omitempty"`
	// RaisedAt is by the writer's clock: the store's has whole seconds.
	RaisedAt time.Time `json:"raisedAt"`
}

// recordWrite builds the write of a record over base.
func (s *Store) recordWrite(key string, next state, resource string) *write {
	body := encodeJSON(record{Resource: resource, RaisedAt: s.b.clock().UTC()})
	return s.b.sealedWrite(key, next, Headers{ContentType: "application/json"}, body)
}

// Admit implements [guard.Store].
func (s *Store) Admit(ctx context.Context, claim guard.Claim) (guard.Mark, error) {
	start := time.Now()
	mark, err := s.admit(ctx, claim)
	s.b.observe(ctx, guard.OpAdmit, claim, mark, start, err)
	return mark, err
}

func (s *Store) admit(ctx context.Context, claim guard.Claim) (guard.Mark, error) {
	if err := claim.Validate(); err != nil {
		return guard.Mark{}, err
	}
	key := s.b.markKey(claim.Resource)
	c := &change{verb: "admit", claim: claim, key: key, id: newWriteID()}
	c.next = func(ctx context.Context, base *state) (*write, error) {
		mark, err := s.markAt(ctx, c, base)
		if err != nil {
			return nil, err
		}
		if err := guard.Decide(guard.SameOrNewer, mark, claim); err != nil {
			return nil, err
		}
		switch {
		case base.kind == kindMark && mark.Token == claim.Token:
			return nil, nil
		case base.kind == kindAbsent:
			blank := s.recordWrite(key, base.follow(kindBlank, guard.Claim{}, newWriteID()), claim.Resource)
			blank.interim = true
			return blank, nil
		}
		return s.recordWrite(key, base.follow(kindMark, claim, c.id), claim.Resource), nil
	}
	_, err := s.b.swap(ctx, c)
	if err == nil {
		return guard.Mark{Token: claim.Token, LeaseID: claim.LeaseID}, nil
	}
	var rejected *guard.RejectedError
	if errors.As(err, &rejected) {
		return rejected.Mark, err
	}
	return guard.Mark{}, err
}

// markAt returns the mark of a resource whose object is in the given state: its
// own, or the floor, which it reads.
func (s *Store) markAt(ctx context.Context, c *change, at *state) (guard.Mark, error) {
	switch at.kind {
	case kindMark:
		return at.mark, nil
	case kindAbsent, kindBlank:
	default:
		return guard.Mark{}, s.b.unread(c, damaged(c.key, "it is no mark: another program wrote it"))
	}
	floor, err := s.floor(ctx)
	if err != nil {
		return guard.Mark{}, s.b.unread(c, err)
	}
	return guard.Mark{Token: floor, Floor: floor != guard.NoToken}, nil
}

// floor reads the floor.
func (s *Store) floor(ctx context.Context) (guard.Token, error) {
	at, err := s.b.peek(ctx, s.b.floorKey())
	switch {
	case err != nil:
		return guard.NoToken, err
	case at.kind == kindAbsent:
		return guard.NoToken, nil
	case at.kind != kindFloor:
		return guard.NoToken, damaged(s.b.floorKey(), "it is no floor: another program wrote it")
	}
	return at.mark.Token, nil
}

// Mark implements [guard.Store].
func (s *Store) Mark(ctx context.Context, resource string) (guard.Mark, error) {
	if err := guard.ValidateResource(resource); err != nil {
		return guard.Mark{}, err
	}
	c := &change{verb: "read mark", claim: guard.Claim{Resource: resource}, key: s.b.markKey(resource)}
	if err := c.ended(ctx); err != nil {
		return guard.Mark{}, err
	}
	at, err := s.b.read(ctx, c)
	if err != nil {
		return guard.Mark{}, s.b.unread(c, err)
	}
	return s.markAt(ctx, c, &at)
}

// retireWorkers is how many marks are read or deleted at once.
const retireWorkers = 16

// Retire implements [guard.Store]. It reads every mark, one request each. Marks
// are stamped by the clocks of those who raise them. Without
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
	floor, err := s.raiseFloor(ctx, c, highest)
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
		removed, err := drop(ctx, m)
		mu.Lock()
		defer mu.Unlock()
		if removed && m.at.kind == kindMark {
			done.Count++
		}
		return err
	})
	if err != nil {
		return guard.Retired{}, guard.OutcomeUnknown(c.op(), guard.Claim{}, s.b.explain(err))
	}
	return done, nil
}

// retiring is a chosen mark or blank, in its state when chosen.
type retiring struct {
	key string
	at  state
}

// choose returns the marks and blanks written before the time, and the highest
// token among the marks.
func (s *Store) choose(ctx context.Context, before time.Time) (chosen []retiring, highest guard.Token, err error) {
	var keys []string
	err = s.b.list(ctx, s.b.marksPrefix(), "", func(object types.Object) error {
		// Stores on a file system also list files that they are about to rename.
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

// raiseFloor raises the floor to at least the token and returns the new floor.
func (s *Store) raiseFloor(ctx context.Context, c *change, to guard.Token) (guard.Token, error) {
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

// drop deletes a mark if it has not changed since it was chosen. The floor
// covers it, whenever the deletion takes effect.
func (s *Store) drop(ctx context.Context, m retiring) (removed bool, err error) {
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

// empty replaces a mark by a blank if the mark has not changed.
func (s *Store) empty(ctx context.Context, m retiring) (removed bool, err error) {
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
