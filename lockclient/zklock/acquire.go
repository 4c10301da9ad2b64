package zklock

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/internal/sequence"
)

// Acquire grants or refuses.
func (i *Issuer) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	ctx, cancel := context.WithTimeout(ctx, r.Timeout)
	defer cancel()
	grant, err := i.acquire(ctx, r)
	return grant, failed("acquire", r.Claim(), err)
}

func (i *Issuer) acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	s, err := i.session(ctx, r.TTL)
	if err != nil {
		return driver.Grant{}, err
	}
	if r.Waiting { // most likely the lease is held: a read, which writes nothing
		if h, err := s.current(ctx, r.Resource); err != nil || h != nil && h.ID != r.LeaseID {
			return driver.Grant{}, refused(r.Resource, h, err)
		}
	}
	var floor stored // most resources have none; a failed transaction shows it
	for range sequence.MaxRetries {
		base := i.knownBase()
		lease := sequence.New(r, max(base.value, floor.value))
		lease.TTL = r.TTL.Milliseconds()
		responses, which, err := s.multi(ctx,
			s.touch(),
			i.create(i.idPath(r.Resource, r.LeaseID), nil, zk.FlagEphemeral),
			i.create(i.lockPath(r.Resource), lease.Text(), zk.FlagEphemeral),
			&zk.CheckVersionRequest{Path: i.container(r.Resource), Version: floor.version},
			&zk.CheckVersionRequest{Path: i.basePath(), Version: base.version})
		switch {
		case err == nil:
			return i.granted(ctx, s, r, lease.Base, responses[0].Stat)
		case which < 0:
			s.doubt(r.Claim(), err)
			return driver.Grant{}, err
		case which == 1 && errors.Is(err, zk.ErrNoNode):
			err = s.makeContainer(ctx, r.Resource)
		case which == 1 && errors.Is(err, zk.ErrNodeExists):
			grant, err := i.own(ctx, s, r)
			if !errors.Is(err, errChanged) {
				return grant, err
			}
			continue
		case which == 2 && errors.Is(err, zk.ErrNodeExists):
			h, err := s.holder(ctx, r.Resource)
			return driver.Grant{}, refused(r.Resource, h, err)
		case which == 3 && errors.Is(err, zk.ErrBadVersion):
			floor, err = s.floor(ctx, r.Resource)
		case which == 4 && (errors.Is(err, zk.ErrBadVersion) || errors.Is(err, zk.ErrNoNode)):
			err = i.learnBase(ctx, s)
		}
		if err != nil {
			return driver.Grant{}, sequence.Unwritten{Err: err}
		}
	}
	return driver.Grant{}, errChanged
}

// granted makes a grant from a transaction that was carried out.
func (i *Issuer) granted(ctx context.Context, s *session, r driver.Request, base int64, stat *zk.Stat) (driver.Grant, error) {
	claim := guard.Claim{Resource: r.Resource, LeaseID: r.LeaseID, Token: sequence.Token(base, stat.Mzxid)}
	err := s.forward(stat.Mzxid)
	if err == nil && claim.Token == guard.NoToken {
		err = sequence.Unwritten{Err: sequence.ErrExhausted}
	}
	var from time.Duration
	if err == nil {
		from, err = s.keep(claim) // fails if an earlier request of this lease ID left something
	}
	if err != nil {
		s.remove(ctx, claim, 0)
		return driver.Grant{}, err
	}
	if r.Waiting {
		i.leaveUnwatched(r.Resource)
	}
	return driver.Grant{Token: claim.Token, AcquiredAt: time.UnixMilli(stat.Mtime), From: from, TTL: s.timeout}, nil
}

// own is the result of an acquire whose lease ID exists already: its lease runs, or it
// is spent. The error is errChanged if neither is the case any more.
func (i *Issuer) own(ctx context.Context, s *session, r driver.Request) (driver.Grant, error) {
	h, err := s.find(ctx, r.Claim())
	if err != nil {
		return driver.Grant{}, err
	}
	if h == nil {
		id, err := s.stat(ctx, i.idPath(r.Resource, r.LeaseID))
		if err == nil && id != nil && id.EphemeralOwner == 0 {
			err = sequence.Refusal{Err: driver.ErrLeaseIDSpent}
		} else if err == nil {
			err = errChanged
		}
		return driver.Grant{}, err
	}
	if h.Owner != r.Owner {
		return driver.Grant{}, sequence.Refusal{Err: driver.LeaseIDInUse(r.LeaseID, h.Owner)}
	}
	from, err := s.take(ctx, r.Claim(), h)
	if err != nil {
		return driver.Grant{}, err
	}
	return driver.Grant{Token: h.Token, AcquiredAt: time.UnixMilli(h.At), From: from, TTL: s.timeout}, nil
}

// Renew writes once for all leases of a session, and then reads who has each.
func (i *Issuer) Renew(ctx context.Context, renewals []driver.Renewal, results []driver.Renewed) {
	byTTL := map[time.Duration][]int{}
	for n, r := range renewals {
		byTTL[r.TTL] = append(byTTL[r.TTL], n)
	}
	var wg sync.WaitGroup
	for ttl, items := range byTTL {
		wg.Go(func() {
			s, err := i.session(ctx, ttl)
			if err == nil {
				_, _, err = s.multi(ctx, s.touch())
			}
			for _, n := range items {
				wg.Go(func() { results[n] = s.renew(ctx, renewals[n].Claim, err) })
			}
		})
	}
	wg.Wait()
}

// renew renews a lease; err is why the session has not written.
func (s *session) renew(ctx context.Context, claim guard.Claim, err error) driver.Renewed {
	var h *held
	if err == nil {
		h, err = s.find(ctx, claim)
	}
	if err == nil && h == nil {
		s.forget(claim)
		return driver.Renewed{State: driver.Over}
	}
	var from time.Duration
	if err == nil {
		from, err = s.take(ctx, claim, h)
	}
	if err != nil {
		return driver.Renewed{Err: failed("renew", claim, err)}
	}
	return driver.Renewed{State: driver.Extended, From: from, TTL: s.timeout}
}

// find returns the lease of a claim if it runs; nil if not. A claim without a token is of
// any. From before it looks, this session does not delete the lease for a while.
func (s *session) find(ctx context.Context, claim guard.Claim) (*held, error) {
	if err := s.postpone(ctx, claim); err != nil {
		return nil, err
	}
	h, err := s.holder(ctx, claim.Resource)
	if err != nil || h == nil || !h.of(claim) {
		return nil, err
	}
	return h, nil
}

// take makes a lease that was found this session's: one of another session moves, by deleting
// its two nodes and creating them again. The version of the lock counts how often that
// was done, so that the session that had the lease does not delete it. The error is
// errChanged if the lease is another one by now.
//
// The later end wins: a lease of a longer TTL moves to a session of that TTL, since
// one holder may rely on it.
func (s *session) take(ctx context.Context, claim guard.Claim, h *held) (from time.Duration, err error) {
	claim.Token = h.Token
	if h.ttl() > s.timeout {
		longer, err := s.i.session(ctx, h.ttl())
		if err == nil {
			err = longer.catchUp(ctx)
		}
		if err == nil {
			h, err = longer.find(ctx, claim)
		}
		if err == nil && h == nil {
			err = errChanged
		}
		if err != nil {
			return 0, err
		}
		return longer.take(ctx, claim, h)
	}
	if h.session == s.id {
		return s.keep(claim)
	}
	if h.version >= maxAdoptions {
		return 0, unwritten("the lease moved between sessions too often")
	}
	lease := *h.Lease
	lease.TTL = s.timeout.Milliseconds()
	id, lock, text := s.i.idPath(claim.Resource, h.ID), s.i.lockPath(claim.Resource), lease.Text()
	ops := []any{
		s.touch(),
		deletion(id, -1),
		deletion(lock, h.version),
		s.i.create(id, nil, zk.FlagEphemeral),
		s.i.create(lock, text, zk.FlagEphemeral),
	}
	for range h.version + 1 {
		ops = append(ops, &zk.SetDataRequest{Path: lock, Data: text, Version: -1})
	}
	_, which, err := s.multi(ctx, ops...)
	switch {
	case err == nil:
		return s.keep(claim)
	case which < 0:
		s.doubt(claim, err)
	case raced(which, err):
		return 0, errChanged
	}
	return 0, err
}
