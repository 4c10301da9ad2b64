package lockhttp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/internal/pause"
	"github.com/fencepost-go/fencepost/lockclient/internal/waiting"
	"github.com/fencepost-go/fencepost/lockclient/internal/wire"
)

// acquiring is one request for a lease.
type acquiring struct {
	driver.Request
	s        *Server
	id       *Identity
	given    bool          // the client chose the lease ID and may present it again
	wait     time.Duration // the longest wait
	notAfter time.Time     // by this server's clock; zero means never
	arrived  time.Duration
	from     time.Duration // when the last attempt began, by the issuer's clock
	at       time.Time     // and by the wall clock
	lost     bool          // an attempt may have been granted unnoticed
}

func (s *Server) acquire(w http.ResponseWriter, q *request) error {
	a, err := q.acquiring()
	if err != nil {
		return err
	}
	if q.id.limited() || !a.given && s.releases.full(q.id.key(), releasesMost) {
		return &httpError{kind: &kindTooMany}
	}
	if err := s.mayLease(q.Context(), q.id, a.Resource); err != nil {
		return err
	}
	if s.closing() || !s.work.Begin() {
		return errClosing
	}
	defer s.work.End() // after a release of what nobody got has begun
	grant, err := a.run(q.Context())
	held, refused := errors.AsType[*driver.HeldError](err)
	if !refused && !errors.Is(err, driver.ErrLate) { // it asks again, by the time in the response
		s.waiters.Asked(a.Resource, a.name())
	}
	body := grantBody{Resource: a.Resource, LeaseID: a.LeaseID, Waited: seconds(a.from - a.arrived), Holder: s.holderOf(held, q.id)}
	if refused { // the last attempt may be long ago
		body.Waited = seconds(s.now() - a.arrived)
	}
	if err == nil {
		err = a.hand(q.Context(), grant, &body)
	}
	if err != nil {
		a.abandon()
	}
	claim := guard.Claim{Resource: a.Resource, Token: grant.Token, LeaseID: a.LeaseID}
	s.observe(q.Context(), guard.OpAcquire, claim, a.arrived, err)
	if err != nil && !refused {
		id := a.LeaseID
		if a.lost && !a.given { // its release may come at any time
			id = ""
		}
		return &httpError{kind: kindOf(err), err: err, leaseID: id}
	}
	body.ServerTime = time.Now()
	if refused {
		write(w, http.StatusConflict, "json", body) // "curl -f ... && work" must not work
		return nil
	}
	s.log(q.Context(), slog.LevelInfo, "lock_acquired", slog.String("resource", a.Resource), slog.String("ownerId", a.Owner), slog.String("leaseId", a.LeaseID),
		slog.String("fencingToken", grant.Token.String()), slog.Float64("ttlSeconds", grant.TTL.Seconds()), slog.String("subject", q.id.Subject))
	s.respond(w, body)
	return nil
}

// acquiring is what the request asks for, with what it leaves to the server.
func (q *request) acquiring() (*acquiring, error) {
	if err := q.mayBeSigned(); err != nil {
		return nil, err
	}
	a := &acquiring{s: q.s, id: q.id, given: q.claim.LeaseID != "", wait: q.wait, notAfter: q.notAfter, arrived: q.s.now()}
	if !a.notAfter.IsZero() {
		a.wait = max(0, min(a.wait, time.Until(a.notAfter)))
	}
	a.from = a.arrived
	a.Request = driver.Request{
		Resource: q.claim.Resource, LeaseID: cmp.Or(q.claim.LeaseID, newLeaseID(q.ttl, q.claim.Resource)), Owner: cmp.Or(q.owner, q.id.Owner, q.id.Subject),
		Metadata: q.metadata, TTL: q.ttl, Waiting: q.waiting || a.wait > 0,
	}
	return a, nil
}

// name is the waiter's.
func (a *acquiring) name() waiting.Name {
	return waiting.Name{Subject: a.id.key(), LeaseID: a.LeaseID}
}

// hand puts a grant into the response, unless nobody is left to take it or it would be
// over.
func (a *acquiring) hand(ctx context.Context, grant driver.Grant, body *grantBody) (err error) {
	claim := guard.Claim{Resource: a.Resource, Token: grant.Token, LeaseID: a.LeaseID}
	a.lost = true // until it is handed over
	if ctx.Err() != nil || a.s.now()-a.from >= grant.TTL {
		return guard.OutcomeUnknown("acquire", claim, cmp.Or(context.Cause(ctx), driver.ErrLate))
	}
	body.Acquired, body.twice, body.Reclaimed = true, wire.TwiceOf(grant.Token), grant.Reclaimed
	body.TTL, body.CreatedAt, body.ExpiresAt = seconds(grant.TTL), grant.AcquiredAt, a.at.Add(grant.TTL)
	if body.Proof, err = a.s.sign(ctx, a.id, claim, body.ExpiresAt); err != nil {
		return guard.OutcomeUnknown("acquire", claim, fmt.Errorf("signing: %w", err))
	}
	return nil
}

// closing reports whether Close was called. It waits for renewals and releases that
// arrive while it waits; if it did so for acquires, it could wait without end.
func (s *Server) closing() bool {
	select {
	case <-s.closed:
		return true
	default:
		return false
	}
}

// abandon releases a grant that nobody got or may yet be made, unless the
// client chose the lease ID: it may present that again, and this release could
// arrive after that.
func (a *acquiring) abandon() {
	if a.given || !a.lost {
		return
	}
	// None is left out: acquires are refused before.
	done, _ := a.s.releases.begin(a.id.key(), math.MaxInt)
	a.s.work.Go(func() { // the request itself is counted, so Close waits
		defer done()
		end := a.from + a.TTL + a.s.opts.Timeout // then there is nothing left to release
		closed := a.s.closed                     // ends one pause; nil after that
		for longest := releasePause; ; longest = min(2*longest, releasePauseMost) {
			ctx, cancel := context.WithTimeout(a.s.ctx, a.s.opts.Timeout)
			_, err := a.s.issuer.Release(ctx, a.Claim())
			cancel()
			if closed != nil && a.s.closing() {
				closed, longest, end = nil, releasePause, min(end, a.s.now()+a.s.opts.Timeout)
			}
			left := end - a.s.now()
			if err == nil || left <= 0 {
				return
			}
			pause.For(a.s.ctx, min(pause.Jitter(longest, 2), left), closed)
			if a.s.ctx.Err() != nil {
				return
			}
		}
	})
}

const (
	// releasesMost is how many such releases of an identity may be in progress; then its
	// acquires must have a lease ID of their own.
	releasesMost = 1000
	// The pauses between their attempts grow: an issuer that is down has many.
	releasePause     = 5 * time.Millisecond
	releasePauseMost = 10 * time.Second
)

// run asks, and waits if the request allows it. The error of a refusal is a
// [*driver.HeldError].
func (a *acquiring) run(ctx context.Context) (grant driver.Grant, err error) {
	reserved := time.Duration(0) // for a client that was called
	if a.Waiting {
		reserved = a.s.waiters.Reserved(a.Resource, a.name())
	}
	switch {
	case a.wait == 0 && reserved > 0:
		return grant, kept(a.Resource, reserved)
	case a.wait == 0:
		return a.try(ctx)
	}
	done, ok := a.s.waits.begin(a.id.key(), cmp.Or(a.id.Limits.Waiting, defaultWaiting))
	if !ok {
		return grant, &httpError{kind: &kindTooMany}
	}
	defer done()
	limited, cancel := context.WithTimeout(ctx, a.wait-min(a.wait, a.s.now()-a.arrived))
	defer cancel()
	var refusal *driver.HeldError // the last
	over, known := a.s.waiters.Wait(limited, &waiting.Waiter{
		Resource: a.Resource, LeaseID: a.LeaseID, Poll: a.s.limits.Poll, Nap: pollEvery, Watch: a.s.watchIssuer, Closed: a.s.closed,
		First: a.given && reserved == 0, // it may have the lease already
		Heard: func(h *driver.HeldError) { refusal = h },
		Ask: func(context.Context) (waiting.Verdict, *driver.HeldError) { // the last try may end after the wait
			grant, err = a.try(ctx)
			held, refused := errors.AsType[*driver.HeldError](err)
			switch {
			case refused && held.Remaining <= 0: // another holder with each try
				refusal = held
				return waiting.Busy, nil
			case errors.Is(err, driver.ErrBusy):
				return waiting.Busy, nil
			case refused:
				return waiting.Refused, held
			case err != nil && ctx.Err() == nil && kindOf(err).status >= http.StatusInternalServerError:
				return waiting.Failed, nil
			}
			return waiting.Over, nil
		},
	})
	switch {
	case over:
		return grant, err
	case limited.Err() == nil:
		return driver.Grant{}, errClosing
	}
	if held := cmp.Or(known, refusal); held != nil {
		return driver.Grant{}, held
	}
	if reserved := a.s.waiters.Reserved(a.Resource, a.name()); reserved > 0 {
		return driver.Grant{}, kept(a.Resource, reserved)
	}
	return driver.Grant{}, guard.Unavailable("acquire", a.Claim(), cmp.Or(err, errNoResponse))
}

// errNoResponse ends a wait behind others that have no response yet.
var errNoResponse = errors.New("the issuer gave no response during the wait")

// pollEvery is the longest pause between two tries if the issuer reports no changes.
const pollEvery = 100 * time.Millisecond

// kept is the refusal of a lease that is kept for a longer-waiting client.
func kept(resource string, remaining time.Duration) *driver.HeldError {
	return &driver.HeldError{Resource: resource, ExpiresAt: time.Now().Add(remaining), Remaining: remaining}
}

var errClosing = guard.Unavailable("acquire", guard.Claim{}, errors.New("the server is closing"))

// try asks the issuer. The grant's TTL counts from a.from.
func (a *acquiring) try(ctx context.Context) (driver.Grant, error) {
	for race := 0; ; race++ {
		a.from, a.at = a.s.now(), time.Now()
		a.Timeout = min(a.s.opts.Timeout, a.TTL)
		if !a.notAfter.IsZero() {
			a.Timeout = min(a.Timeout, a.notAfter.Sub(a.at))
		}
		if a.Timeout <= 0 {
			return driver.Grant{}, driver.ErrLate
		}
		g, err := within(ctx, a.s, "acquire", a.Claim(), func(ctx context.Context) (driver.Grant, error) {
			return a.s.issuer.Acquire(ctx, a.Request)
		}, nil)
		if err == nil {
			g.TTL = left(cmp.Or(g.TTL, a.TTL), a.from, g.From)
			return g, nil
		}
		if errors.Is(err, driver.ErrLate) && race == 0 && ctx.Err() == nil { // the issuer had to prepare first
			continue
		}
		if held, refused := errors.AsType[*driver.HeldError](err); refused {
			if held.Remaining <= 0 && race < waiting.MaxRaces && ctx.Err() == nil {
				continue
			}
			return driver.Grant{}, held
		}
		err = onTheWire(err) // the client's own faults were checked before, but for an ID in use
		k := kindOf(err)
		a.lost = a.lost || k == &kindUnknown || k == &kindInternal || k == &kindBehind
		return driver.Grant{}, err
	}
}
