package lockhttp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
)

// The states of a renewal, as they are sent.
const (
	stateExtended = "extended"
	stateOver     = "over"
)

func (s *Server) renewOne(w http.ResponseWriter, q *request) error {
	claim, err := q.complete()
	if err != nil {
		return err
	}
	ttl := cmp.Or(q.ttl, s.granted.lease(claim).ttl)
	if ttl == 0 {
		return guard.Invalid("ttlSeconds", "", "is required: this server does not know for how long the lease was granted")
	}
	if err := q.mayLast(ttl); err != nil {
		return err
	}
	results, failures := s.renew(q.Context(), q.id, []driver.Renewal{{Claim: claim, TTL: ttl}})
	switch {
	case failures[0] != nil:
		return &httpError{kind: kindOf(failures[0]), err: failures[0], leaseID: claim.LeaseID}
	case results[0].State == stateOver:
		return &httpError{kind: &kindOver, leaseID: claim.LeaseID, cut: s.cutOf(q.Context(), claim)}
	}
	s.respond(w, results[0])
	return nil
}

// cutOf returns who ended a lease by force; nil if nobody did, or nobody knows
// that.
func (s *Server) cutOf(ctx context.Context, claim guard.Claim) (cut *driver.ForceUnlockedError) {
	if e, ok := s.issuer.(driver.Explainer); ok {
		_, err := within(ctx, s, "why", claim, func(ctx context.Context) (none, error) { return none{}, e.Why(ctx, claim) }, nil)
		errors.As(err, &cut)
	}
	return cut
}

// why says who ended a lease by force. It changes nothing.
func (s *Server) why(w http.ResponseWriter, q *request) error {
	s.respond(w, whyBody{cutOf(s.cutOf(q.Context(), q.claim)), time.Now()})
	return nil
}

func (s *Server) renewBatch(w http.ResponseWriter, q *request) error {
	bodies, seen := make([]renewedBody, len(q.renewals)), map[guard.Claim]bool{}
	var renewals []driver.Renewal
	var places []int // of the renewals among the bodies
	for n, raw := range q.renewals {
		item := &request{Request: q.Request, s: s, id: q.id}
		in, err := parseObject(raw)
		if err == nil {
			err = item.parse(in, "body", "resource! leaseId! fencingToken! ttlSeconds!")
		}
		if err == nil && seen[item.claim] {
			err = guard.Invalid("leaseId", item.claim.LeaseID, "is given twice")
		}
		if err != nil {
			bodies[n] = refused(item.claim, err)
			continue
		}
		seen[item.claim] = true
		renewals, places = append(renewals, driver.Renewal{Claim: item.claim, TTL: item.ttl}), append(places, n)
	}
	if len(renewals) > 0 {
		results, _ := s.renew(q.Context(), q.id, renewals)
		for n, place := range places {
			bodies[place] = results[n]
		}
	}
	s.respond(w, batchBody{bodies, time.Now()})
	return nil
}

// refused is the verdict on an item that was not carried out, or nobody knows it. The
// others were.
func refused(claim guard.Claim, err error) renewedBody {
	k := kindOf(err)
	b := renewedOf(claim, k.name)
	b.Field, b.Detail = k.explain(err)
	return b
}

// renew carries out renewals, as many at a time as the issuer takes. failures
// are the errors of those whose outcome is not known.
func (s *Server) renew(ctx context.Context, id *Identity, renewals []driver.Renewal) (bodies []renewedBody, failures []error) {
	began, at := s.now(), time.Now()
	bodies, failures = make([]renewedBody, len(renewals)), make([]error, len(renewals))
	results, err := within(ctx, s, "renew", renewals[0].Claim, func(ctx context.Context) ([]driver.Renewed, error) {
		results := make([]driver.Renewed, len(renewals))
		batch := max(1, s.limits.Batch)
		var parts sync.WaitGroup // none waits for one that halts another
		for n := 0; n < len(renewals); n += batch {
			end := min(n+batch, len(renewals))
			parts.Go(func() { s.issuer.Renew(ctx, renewals[n:end], results[n:end]) })
		}
		parts.Wait()
		return results, nil
	}, nil)
	for n, r := range renewals {
		got := driver.Renewed{Err: err}
		if err == nil {
			got = results[n]
		}
		if bodies[n], failures[n] = s.renewed(id, r, got, began, at); failures[n] != nil {
			bodies[n] = refused(r.Claim, failures[n])
		}
		s.observe(ctx, guard.OpRenew, r.Claim, began, failures[n])
	}
	return bodies, failures
}

// renewed is the verdict on one renewal, which began at a time by the issuer's clock and
// by the wall clock.
func (s *Server) renewed(id *Identity, r driver.Renewal, got driver.Renewed, began time.Duration, at time.Time) (b renewedBody, err error) {
	ttl := left(cmp.Or(got.TTL, r.TTL), began, got.From)
	switch {
	case got.State == driver.Over:
		s.granted.remove(r.Claim)
		return renewedOf(r.Claim, stateOver), nil
	case got.State == driver.Extended && s.now()-began >= ttl:
		return b, guard.OutcomeUnknown("renew", r.Claim, driver.ErrLate)
	case got.State != driver.Extended && got.Err == nil:
		return b, guard.OutcomeUnknown("renew", r.Claim, errors.New("the issuer left it out"))
	case got.State != driver.Extended:
		return b, got.Err
	}
	b = renewedOf(r.Claim, stateExtended)
	b.TTL, b.ExpiresAt = seconds(ttl), at.Add(ttl)
	s.granted.add(id.Subject, r.Claim, 0, b.ExpiresAt)
	if b.Proof, err = s.sign(id, r.Claim, b.ExpiresAt); err != nil {
		err = guard.OutcomeUnknown("renew", r.Claim, fmt.Errorf("signing: %w", err))
	}
	return b, err
}

// running reports whether the claim's lease runs, or that is not known now. The release of
// any other lease ID is stored for an hour, so it counts as an acquire; so does every one
// where the issuer never says who has a lease.
func (s *Server) running(ctx context.Context, claim guard.Claim) bool {
	if s.granted.lease(claim).until.After(time.Now()) {
		return true
	}
	held, err := s.held(ctx, claim.Resource)
	return err != nil && !errors.Is(err, driver.ErrNoWatch) || held != nil && held.LeaseID == claim.LeaseID
}

// release releases a lease. A claim with a resource and no token is abandoned: see
// [driver.Issuer]. One without a resource is that of a lease that runs.
func (s *Server) release(w http.ResponseWriter, q *request) (err error) {
	claim := q.claim
	if claim.Resource == "" {
		if claim, err = q.complete(); err != nil {
			return err
		}
	}
	if claim.Token == guard.NoToken && q.id.Limits.Acquire != nil && !s.running(q.Context(), claim) && q.id.limited() {
		return &httpError{kind: &kindTooMany}
	}
	began := s.now()
	// A worker may send its release and exit.
	freed, err := within(context.WithoutCancel(q.Context()), s, "release", claim, func(ctx context.Context) (bool, error) {
		return s.issuer.Release(ctx, claim)
	}, nil)
	s.observe(q.Context(), guard.OpRelease, claim, began, err)
	if err != nil {
		return &httpError{kind: kindOf(err), err: err, leaseID: claim.LeaseID}
	}
	s.granted.remove(claim)
	if !freed {
		return &httpError{kind: &kindOver, leaseID: claim.LeaseID}
	}
	s.log(q.Context(), "lock_released", slog.String("resource", claim.Resource), slog.String("leaseId", claim.LeaseID), slog.String("subject", q.id.Subject))
	s.respond(w, releasedBody{true, claim.Resource, claim.LeaseID, time.Now()})
	return nil
}
