package s3fence

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

// Store keeps the marks of resources in a bucket, for services that have one
// and no database. Make it with [Bucket.Store]. It is safe for concurrent use,
// and all replicas of a service that guard a resource share one bucket and one
// Options.Prefix.
//
// Each resource has an object of about 1 KiB. Admitting what already is the
// mark takes one request, a raise one or two, the first claim on a resource
// five: reading its mark and the floor, making its object, reading the floor
// again, writing the mark.
//
// # Retiring
//
// Several objects cannot be changed in one step, so Retire goes by an order
// instead: it lifts the floor, an object of its own, and only then deletes (or,
// where that is not safe, empties) the marks that it chose, each on condition
// that it was not raised meanwhile. A
// resource without a mark therefore was never written or has a token that the
// floor covers. That is true when the floor is read, not later: between reading
// and creating the mark, another could be admitted with a higher token and be
// retired. So the first claim makes a blank object first, which asserts
// nothing, and reads the floor while that is in place; the mark then replaces
// the blank, and only the blank. If a mark was retired in between, so was the
// blank, and the replacement fails. No clock is involved.
type Store struct{ b *Bucket }

var _ guard.Store = (*Store)(nil)

// Store returns the bucket's store of marks.
func (b *Bucket) Store() *Store { return &Store{b: b} }

// record is the body of a mark, of a blank and of the floor.
type record struct {
	Resource string `json:"resource,omitempty"`
	// RaisedAt is by the clock of who wrote it: the store's has whole seconds.
	RaisedAt time.Time `json:"raisedAt"`
}

// recordWrite builds the write of a record over base.
func (s *Store) recordWrite(key string, next state, resource string) *write {
	var body bytes.Buffer
	enc := json.NewEncoder(&body)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(record{Resource: resource, RaisedAt: s.b.clock().UTC()}); err != nil {
		panic("s3fence: encode mark: " + err.Error()) // it is text and a time
	}
	return s.b.sealedWrite(key, next, Headers{ContentType: "application/json"}, bytes.TrimSuffix(body.Bytes(), []byte("\n")))
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
// own, or the floor, which is read now.
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
