package lockhttp

import (
	"cmp"
	"context"
	"encoding/json"
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

// parseRenewal reads one renewal of a batch.
func (s *Server) parseRenewal(id *Identity, f *fields) (driver.Renewal, error) {
	r := driver.Renewal{Claim: f.claim(true), TTL: f.seconds("ttlSeconds")}
	err := f.end()
	if err == nil {
		err = mine(id, r.Claim)
	}
	if err == nil {
		err = s.checkTTL(id, r.TTL)
	}
	return r, err
}

func (s *Server) renewOne(w http.ResponseWriter, r *http.Request, id *Identity, in *fields) error {
	renewal := driver.Renewal{Claim: in.claim(false), TTL: in.seconds("ttlSeconds")}
	err := in.end()
	if err == nil && renewal.TTL != 0 {
		err = s.checkTTL(id, renewal.TTL)
	}
	if err == nil {
		renewal.Claim, err = s.complete(r.Context(), id, renewal.Claim)
	}
	if err != nil {
		return err
	}
	if renewal.TTL == 0 {
		if renewal.TTL = s.granted.lease(renewal.Claim).ttl; renewal.TTL == 0 {
			return guard.Invalid("ttlSeconds", "", "is required: this server does not know for how long the lease was granted")
		}
		if err := s.checkTTL(id, renewal.TTL); err != nil {
			return err
		}
	}
	results, failures := s.renew(r.Context(), id, []driver.Renewal{renewal})
	switch {
	case failures[0] != nil:
		return &httpError{kind: kindOf(failures[0]), err: failures[0], leaseID: renewal.Claim.LeaseID}
	case results[0].State == stateOver:
		return &httpError{kind: &kindOver, leaseID: renewal.Claim.LeaseID, cut: s.cutOf(r.Context(), renewal.Claim)}
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
func (s *Server) why(w http.ResponseWriter, r *http.Request, id *Identity, in *fields) error {
	claim := in.claim(true)
	err := in.end()
	if err == nil {
		err = mine(id, claim)
	}
	if err != nil {
		return err
	}
	s.respond(w, whyBody{cutOf(s.cutOf(r.Context(), claim)), time.Now()})
	return nil
}

func (s *Server) renewBatch(w http.ResponseWriter, r *http.Request, id *Identity, in *fields) error {
	var raw []json.RawMessage
	if list := in.take("renewals"); list == nil || json.Unmarshal(list, &raw) != nil || len(raw) == 0 || len(raw) > batchMost {
		return guard.Invalid("renewals", string(list), fmt.Sprintf("must be a list of 1 to %d renewals", batchMost))
	}
	if err := in.end(); err != nil {
		return err
	}
	bodies, seen := make([]renewedBody, len(raw)), map[guard.Claim]bool{}
	var renewals []driver.Renewal
	var places []int // of the renewals among the bodies
	for n := range raw {
		renewal, err := s.parseRenewal(id, parseBody(raw[n]))
		if err == nil && seen[renewal.Claim] {
			err = guard.Invalid("leaseId", renewal.Claim.LeaseID, "is given twice")
		}
		if err != nil {
			bodies[n] = refused(renewal.Claim, err)
			continue
		}
		seen[renewal.Claim] = true
		renewals, places = append(renewals, renewal), append(places, n)
	}
	if len(renewals) > 0 {
		results, _ := s.renew(r.Context(), id, renewals)
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

// mine checks a claim's names, and that the identity may name its resource.
func mine(id *Identity, claim guard.Claim) error {
	if err := allowed(id, claim.Resource); err != nil {
		return err
	}
	return leaseID(claim.LeaseID)
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
func (s *Server) release(w http.ResponseWriter, r *http.Request, id *Identity, in *fields) error {
	claim := in.claim(false)
	if err := in.end(); err != nil {
		return err
	}
	if claim.Resource == "" {
		found, err := s.complete(r.Context(), id, claim)
		if err != nil {
			return err
		}
		claim = found
	} else if err := mine(id, claim); err != nil {
		return err
	}
	if claim.Token == guard.NoToken && id.Limits.Acquire != nil && !s.running(r.Context(), claim) && id.limited() {
		return &httpError{kind: &kindTooMany}
	}
	began := s.now()
	// A worker may send its release and exit.
	freed, err := within(context.WithoutCancel(r.Context()), s, "release", claim, func(ctx context.Context) (bool, error) {
		return s.issuer.Release(ctx, claim)
	}, nil)
	s.observe(r.Context(), guard.OpRelease, claim, began, err)
	if err != nil {
		return &httpError{kind: kindOf(err), err: err, leaseID: claim.LeaseID}
	}
	s.granted.remove(claim)
	if !freed {
		return &httpError{kind: &kindOver, leaseID: claim.LeaseID}
	}
	s.log(r.Context(), "lock_released", slog.String("resource", claim.Resource), slog.String("leaseId", claim.LeaseID), slog.String("subject", id.Subject))
	s.respond(w, releasedBody{true, claim.Resource, claim.LeaseID, time.Now()})
	return nil
}
