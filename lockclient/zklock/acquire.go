package zklock

import (
	"context"
	"errors"
	"slices"
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
			s.doubt(r.Claim(), 0, err)
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
		from, err = s.keep(claim, 0) // fails if an earlier request of this lease ID left something
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
	h, err := s.holder(ctx, r.Resource)
	if err != nil {
		return driver.Grant{}, err
	}
	if h == nil || h.ID != r.LeaseID {
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
	from, err := s.take(ctx, r.Resource, h)
	if err != nil {
		return driver.Grant{}, err
	}
	return driver.Grant{Token: h.Token, AcquiredAt: time.UnixMilli(h.At), From: from, TTL: s.timeout}, nil
}

// Renew writes once for all leases of a session, and checks with the same
// transaction that they are there and its own.
func (i *Issuer) Renew(ctx context.Context, renewals []driver.Renewal, results []driver.Renewed) {
	byTTL := map[time.Duration][]int{}
	for n, r := range renewals {
		byTTL[r.TTL] = append(byTTL[r.TTL], n)
	}
	var wg sync.WaitGroup
	for ttl, items := range byTTL {
		wg.Go(func() { i.renew(ctx, ttl, items, renewals, results) })
	}
	wg.Wait()
}

func (i *Issuer) renew(ctx context.Context, ttl time.Duration, items []int, renewals []driver.Renewal, results []driver.Renewed) {
	fail := func(items []int, err error) {
		for _, n := range items {
			results[n] = driver.Renewed{Err: failed("renew", renewals[n].Claim, err)}
		}
	}
	s, err := i.session(ctx, ttl)
	if err != nil {
		fail(items, err)
		return
	}
	var mine, others []int // by whether this session has the lease, as far as is known
	for _, n := range items {
		switch l, known := s.lease(renewals[n].Claim); {
		case !known:
			others = append(others, n)
		case l.ending:
			results[n] = driver.Renewed{State: driver.Over}
		default:
			mine = append(mine, n)
		}
	}
	for len(mine) > 0 {
		ops := []any{s.touch()}
		for _, n := range mine {
			claim := renewals[n].Claim
			l, _ := s.lease(claim)
			ops = append(ops, &zk.CheckVersionRequest{Path: i.idPath(claim.Resource, claim.LeaseID), Version: l.version})
		}
		_, which, err := s.multi(ctx, ops...)
		if err == nil {
			for _, n := range mine {
				results[n] = s.extend(renewals[n].Claim)
			}
			break
		}
		if which < 1 {
			fail(mine, err)
			break
		}
		n := mine[which-1] // it is over, or another session has it
		s.forget(renewals[n].Claim)
		mine, others = slices.Delete(mine, which-1, which), append(others, n)
	}
	if len(others) == 0 {
		return
	}
	if err := s.catchUp(ctx); err != nil {
		fail(others, err)
		return
	}
	for _, n := range others {
		results[n] = s.renewOther(ctx, renewals[n].Claim)
	}
}

// renewOther renews a lease of another session by taking it over. The session has
// caught up.
func (s *session) renewOther(ctx context.Context, claim guard.Claim) driver.Renewed {
	h, err := s.holder(ctx, claim.Resource)
	if err == nil && (h == nil || h.ID != claim.LeaseID || h.Token != claim.Token) {
		return driver.Renewed{State: driver.Over}
	}
	var from time.Duration
	if err == nil {
		from, err = s.take(ctx, claim.Resource, h)
	}
	if err != nil {
		return driver.Renewed{Err: failed("renew", claim, err)}
	}
	return driver.Renewed{State: driver.Extended, From: from, TTL: s.timeout}
}

// take moves a running lease to this session: it deletes its two nodes and
// creates them again. The version of the lease ID's node counts how often that
// was done, so that the session that had the lease before notices. The error is
// errChanged if the lease is another one by now.
//
// The later end wins: a lease of a longer TTL moves to a session of that TTL, since
// one holder may rely on it.
func (s *session) take(ctx context.Context, resource string, h *held) (from time.Duration, err error) {
	if ttl := h.ttl(); ttl > s.timeout {
		longer, err := s.i.session(ctx, ttl)
		if err != nil {
			return 0, err
		}
		return longer.take(ctx, resource, h)
	}
	claim := guard.Claim{Resource: resource, Token: h.Token, LeaseID: h.ID}
	if err := s.postpone(ctx, claim); err != nil {
		return 0, err
	}
	path := s.i.idPath(resource, h.ID)
	id, err := s.stat(ctx, path)
	switch {
	case err != nil:
		return 0, err
	case id == nil:
		return 0, errChanged
	case h.session == s.id:
		return s.keep(claim, id.Version)
	case id.Version >= maxAdoptions:
		return 0, unwritten("the lease moved between sessions too often")
	}
	lease := *h.Lease
	lease.TTL = s.timeout.Milliseconds()
	ops := []any{s.touch(), &zk.DeleteRequest{Path: path, Version: id.Version}, s.i.create(path, nil, zk.FlagEphemeral)}
	for range id.Version + 1 {
		ops = append(ops, &zk.SetDataRequest{Path: path, Version: -1})
	}
	ops = append(ops, &zk.DeleteRequest{Path: s.i.lockPath(resource), Version: -1},
		s.i.create(s.i.lockPath(resource), lease.Text(), zk.FlagEphemeral))
	_, which, err := s.multi(ctx, ops...)
	switch {
	case err == nil:
		return s.keep(claim, id.Version+1)
	case which < 0:
		s.doubt(claim, id.Version+1, err)
	case errors.Is(err, zk.ErrNoNode) || errors.Is(err, zk.ErrBadVersion):
		return 0, errChanged
	}
	return 0, err
}
