package lockhttp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
)

// renew extends a lease. A claim without a resource or a token is that of a lease that
// runs; without a TTL it is that of the grant.
func (s *Server) renew(w http.ResponseWriter, q *request) error {
	if err := q.mayBeSigned(); err != nil {
		return err
	}
	claim, err := q.complete()
	if err != nil {
		return err
	}
	ttl := cmp.Or(q.ttl, s.granted.ttl(claim))
	if ttl == 0 {
		return guard.Invalid("ttlSeconds", "", "is required: this server does not know for how long the lease was granted")
	}
	if err := q.mayLast(ttl); err != nil {
		return err
	}
	began, at := s.now(), time.Now()
	got, err := within(q.Context(), s, "renew", claim, func(ctx context.Context) (driver.Renewed, error) {
		var results [1]driver.Renewed
		s.issuer.Renew(ctx, []driver.Renewal{{Claim: claim, TTL: ttl}}, results[:])
		return results[0], results[0].Err
	}, nil)
	lasts := left(cmp.Or(got.TTL, ttl), began, got.From)
	body := renewedBody{Resource: claim.Resource, LeaseID: claim.LeaseID, twice: twiceOf(claim.Token), State: "extended"}
	switch {
	case err != nil || got.State == driver.Over:
	case got.State != driver.Extended:
		err = guard.OutcomeUnknown("renew", claim, errors.New("the issuer left it out"))
	case s.now()-began >= lasts:
		err = guard.OutcomeUnknown("renew", claim, driver.ErrLate)
	default:
		body.TTL, body.ExpiresAt = seconds(lasts), at.Add(lasts)
		s.granted.add(q.id.key(), claim, 0, body.ExpiresAt)
		if body.Proof, err = s.sign(q.id, claim, body.ExpiresAt); err != nil {
			err = guard.OutcomeUnknown("renew", claim, fmt.Errorf("signing: %w", err))
		}
	}
	s.observe(q.Context(), guard.OpRenew, claim, began, err)
	if err != nil {
		return &httpError{kind: kindOf(err), err: err, leaseID: claim.LeaseID}
	}
	if got.State == driver.Over {
		s.granted.remove(claim)
		return &httpError{kind: &kindOver, leaseID: claim.LeaseID, cut: s.cutOf(q.Context(), claim)}
	}
	body.ServerTime = time.Now()
	s.respond(w, body)
	return nil
}

// cutOf returns who ended a lease by force; nil if nobody did, or nobody knows
// that.
func (s *Server) cutOf(ctx context.Context, claim guard.Claim) *cut {
	var by *driver.ForceUnlockedError
	if e, ok := s.issuer.(driver.Explainer); ok {
		_, err := within(ctx, s, "why", claim, func(ctx context.Context) (none, error) { return none{}, e.Why(ctx, claim) }, nil)
		errors.As(err, &by)
	}
	if by == nil {
		return nil
	}
	return &cut{by.Actor, by.Reason, by.At}
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
	// The lease ID is stored for an hour then, unless it is that of a lease that runs.
	known := cmp.Or(claim.Token, s.granted.token(claim))
	if known == guard.NoToken && q.id.limited() {
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
		claim.Token = known
		return &httpError{kind: &kindOver, leaseID: claim.LeaseID, cut: s.cutOf(q.Context(), claim)}
	}
	s.log(q.Context(), slog.LevelInfo, "lock_released", slog.String("resource", claim.Resource), slog.String("leaseId", claim.LeaseID), slog.String("subject", q.id.Subject))
	s.respond(w, releasedBody{true, claim.Resource, claim.LeaseID, time.Now()})
	return nil
}
