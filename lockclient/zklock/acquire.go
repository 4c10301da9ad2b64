package zklock

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/internal/sequence"
)

// held is what is stored of a lease that was not released.
type held struct {
	*sequence.Lease
	version int32
	end     int64         // in ms since 1970 by the leader's clock
	left    time.Duration // as of a look; it ran out unless that is positive
}

// at returns how long the lease lasts from a moment of the leader's clock.
func (h *held) at(now int64) time.Duration { return time.Duration(h.end-now) * time.Millisecond }

// runs reports whether somebody has the lease; h may be nil.
func (h *held) runs() bool { return h != nil && h.left > 0 }

// of reports whether it is the claim's; one without a token is of any. h may be nil.
func (h *held) of(claim guard.Claim) bool {
	return h != nil && h.ID == claim.LeaseID && (h.Token == claim.Token || claim.Token == guard.NoToken)
}

// holds is who has the lease; nil if nobody.
func (h *held) holds(resource string) *driver.HeldError {
	if !h.runs() {
		return nil
	}
	return sequence.HeldBy(resource, h.Lease, h.left)
}

// look returns who has the lease, as of now.
func (s *session) look(ctx context.Context, resource string) (*held, error) {
	now, err := s.now(ctx)
	if err != nil {
		return nil, err
	}
	return s.holder(ctx, resource, now.Mtime)
}

// holder returns who has the lease at a moment of the leader's clock; nil if nobody. It is
// at least as new as the session's last write.
func (s *session) holder(ctx context.Context, resource string, now int64) (*held, error) {
	path := s.i.lockPath(resource)
	n, err := s.get(ctx, path)
	if err != nil || n == nil {
		return nil, err
	}
	lease, err := sequence.Read(path, n.value, n.stat.Mzxid) // a renewal stores the token
	if err != nil {
		return nil, err
	}
	if lease.TTL == 0 || lease.Grant == "" || n.stat.EphemeralOwner != 0 {
		return nil, sequence.Foreign{Place: path, Value: string(n.value)}
	}
	if lease.At == 0 {
		lease.At = n.stat.Mtime
	}
	h := &held{Lease: lease, version: n.stat.Version, end: n.stat.Mtime + lease.TTL + clocksDiffer.Milliseconds()}
	if lease.By != 0 && n.stat.Mtime >= lease.By { // by a renewal that came after the end
		h.end = lease.By
	}
	h.left = h.at(max(now, n.stat.Mtime))
	return h, nil
}

// Acquire grants or refuses.
func (i *Issuer) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	from := driver.Now()
	ctx, cancel := context.WithTimeout(ctx, r.Timeout)
	defer cancel()
	grant, err := i.acquire(ctx, r)
	grant.From = from
	return grant, failed("acquire", r.Claim(), err)
}

func (i *Issuer) acquire(ctx context.Context, r driver.Request) (grant driver.Grant, err error) {
	s, err := i.session(ctx)
	if err != nil {
		return grant, err
	}
	var h *held    // what the transaction replaces
	if r.Waiting { // most likely the lease is held
		if h, err = s.look(ctx, r.Resource); err != nil {
			return grant, err
		}
	}
	for range sequence.MaxRetries {
		if h.runs() {
			grant, err := s.own(ctx, r, h)
			if !errors.Is(err, sequence.ErrChanged) {
				return grant, err
			}
			if h, err = s.look(ctx, r.Resource); err != nil {
				return grant, err
			}
			continue
		}
		before, base := i.known()
		lease := sequence.New(r, base.value)
		lease.TTL, lease.Grant = r.TTL.Milliseconds(), rand.Text()
		id, lock := i.create(i.idPath(r.Resource, r.LeaseID), nil, 0), i.lockPath(r.Resource)
		sameBase := check(i.valuePath(base.value), -1)
		ops := []any{sameBase, id, deletion(id.Path, -1), i.create(i.grantPath(r.Resource, lease.Grant), nil, 0)}
		if h == nil {
			ops = append(ops, i.create(lock, lease.Text(), 0))
		} else { // it ran out
			ops = append(ops, deletion(i.grantPath(r.Resource, h.Grant), -1), set(lock, lease.Text(), h.version))
		}
		stat, refused, err := s.multi(ctx, ops...)
		switch {
		case err == nil:
			return i.granted(ctx, s, r, lease, before, stat)
		case refused == nil:
			return grant, err
		case refused == id && errors.Is(err, zk.ErrNoNode):
			err = s.makeNode(ctx, i.container(r.Resource), zk.FlagContainer)
		case refused == id && errors.Is(err, zk.ErrNodeExists):
			err = sequence.Refusal{Err: driver.ErrLeaseIDSpent}
		case refused == sameBase && raced(err):
			err = i.learnBase(ctx, s)
		case raced(err):
			h, err = s.look(ctx, r.Resource)
		}
		if err != nil {
			return grant, sequence.Unwritten{Err: err}
		}
	}
	return grant, sequence.ErrChanged
}

// granted makes a grant from a transaction that was carried out.
func (i *Issuer) granted(ctx context.Context, s *session, r driver.Request, lease *sequence.Lease, before guard.Token, stat *zk.Stat) (driver.Grant, error) {
	token := sequence.Token(lease.Base, stat.Mzxid)
	var err error = sequence.Unwritten{Err: sequence.ErrExhausted}
	if token != guard.NoToken {
		err = i.forward(before, token)
	}
	if err != nil {
		// Whoever is first to see the grant's node gone has removed the lease.
		_, refused, left := s.multi(ctx, i.removal(r.Resource, lease.Grant, -1)...)
		if left != nil && (refused == nil || !raced(left)) {
			err = fmt.Errorf("%v; what was granted may be there until its TTL: %v", err, left) // an unknown outcome, whatever the two are
		}
		return driver.Grant{}, err
	}
	if r.Waiting { // if its turn had not come, those behind it would wait for its place to run out
		i.mu.Lock()
		p := i.places[r.Resource]
		i.mu.Unlock()
		i.leave(p)
	}
	return driver.Grant{Token: token, AcquiredAt: time.UnixMilli(stat.Mtime), TTL: r.TTL}, nil
}

// own is the result of an acquire of a lease that runs. The error is ErrChanged if that has
// changed.
func (s *session) own(ctx context.Context, r driver.Request, h *held) (driver.Grant, error) {
	switch {
	case h.ID != r.LeaseID:
		return driver.Grant{}, sequence.Refusal{Err: h.holds(r.Resource)}
	case h.Owner != r.Owner:
		return driver.Grant{}, sequence.Refusal{Err: driver.LeaseIDInUse(r.LeaseID, h.Owner)}
	}
	err := s.extend(ctx, r.Resource, h, r.TTL)
	return driver.Grant{Token: h.Token, AcquiredAt: time.UnixMilli(h.At), TTL: r.TTL}, err
}

// Renew writes once, for the leader's time, and then each lease that runs.
func (i *Issuer) Renew(ctx context.Context, renewals []driver.Renewal, results []driver.Renewed) {
	from := driver.Now()
	var now *zk.Stat
	s, err := i.session(ctx)
	if err == nil {
		now, err = s.now(ctx)
	}
	var wg sync.WaitGroup
	for n, r := range renewals {
		wg.Go(func() {
			runs, err := false, err
			if err == nil {
				runs, err = s.renew(ctx, r, now.Mtime)
			}
			switch {
			case err != nil:
				results[n] = driver.Renewed{Err: failed("renew", r.Claim, err)}
			case runs:
				results[n] = driver.Renewed{State: driver.Extended, From: from, TTL: r.TTL}
			default:
				results[n] = driver.Renewed{State: driver.Over}
			}
		})
	}
	wg.Wait()
}

// renew extends a lease if it runs.
func (s *session) renew(ctx context.Context, r driver.Renewal, now int64) (runs bool, err error) {
	for range sequence.MaxRetries {
		h, err := s.holder(ctx, r.Claim.Resource, now)
		if err != nil || !h.runs() || !h.of(r.Claim) {
			return false, err
		}
		if err = s.extend(ctx, r.Claim.Resource, h, r.TTL); !errors.Is(err, sequence.ErrChanged) {
			return err == nil, err
		}
	}
	return false, sequence.ErrChanged
}

// extend makes a lease last for the TTL from now. The later end wins: a longer TTL
// stays, since one holder may rely on it. The error is ErrChanged if the lease has changed,
// or was over when the request arrived.
func (s *session) extend(ctx context.Context, resource string, h *held, ttl time.Duration) error {
	lease := *h.Lease
	lease.TTL, lease.By = max(lease.TTL, ttl.Milliseconds()), h.end
	stat, refused, err := s.multi(ctx,
		check(s.i.grantPath(resource, h.Grant), -1), // a successor's lock may have this version too
		set(s.i.lockPath(resource), lease.Text(), h.version))
	if refused != nil && raced(err) || err == nil && h.at(stat.Mtime) <= 0 {
		return sequence.ErrChanged
	}
	return err
}

// raced says of a refused transaction that a node has changed since it was read.
func raced(err error) bool {
	return errors.Is(err, zk.ErrBadVersion) || errors.Is(err, zk.ErrNodeExists) || errors.Is(err, zk.ErrNoNode)
}
