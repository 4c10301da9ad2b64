package lockhttp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/internal/wire"
)

// renew extends a lease. A claim without a token is that of a lease that runs; without a
// TTL it is that of the grant.
func (s *Server) renew(w http.ResponseWriter, q *request) error {
	if err := q.mayBeSigned(); err != nil {
		return err
	}
	if err := q.named(); err != nil {
		return err
	}
	granted, _ := saidBy(q.claim.LeaseID)
	ttl := cmp.Or(q.ttl, granted)
	if ttl == 0 {
		return guard.Invalid("ttlSeconds", "", "is required: only a lease ID that the server made says for how long the lease was granted")
	}
	if err := q.mayLast(ttl); err != nil {
		return err
	}
	claim := q.claim
	if claim.Token == guard.NoToken {
		token, err := q.running()
		if err != nil {
			return err
		}
		if token == guard.NoToken {
			return &httpError{kind: &kindOver, leaseID: claim.LeaseID, cut: s.cutOf(q.Context(), claim)}
		}
		claim.Token = token
	}
	began, at := s.now(), time.Now()
	got, err := within(q.Context(), s, "renew", claim, func(ctx context.Context) (driver.Renewed, error) {
		var results [1]driver.Renewed
		s.issuer.Renew(ctx, []driver.Renewal{{Claim: claim, TTL: ttl}}, results[:])
		return results[0], results[0].Err
	}, nil)
	lasts := left(cmp.Or(got.TTL, ttl), began, got.From)
	body := renewedBody{Resource: claim.Resource, LeaseID: claim.LeaseID, twice: wire.TwiceOf(claim.Token), State: "extended"}
	switch {
	case err != nil || got.State == driver.Over:
	case got.State != driver.Extended:
		err = guard.OutcomeUnknown("renew", claim, errors.New("the issuer left it out"))
	case s.now()-began >= lasts:
		err = guard.OutcomeUnknown("renew", claim, driver.ErrLate)
	default:
		body.TTL, body.ExpiresAt = seconds(lasts), at.Add(lasts)
		if body.Proof, err = s.sign(q.Context(), q.id, claim, body.ExpiresAt); err != nil {
			err = guard.OutcomeUnknown("renew", claim, fmt.Errorf("signing: %w", err))
		}
	}
	s.observe(q.Context(), guard.OpRenew, claim, began, err)
	if err != nil {
		return &httpError{kind: kindOf(err), err: err, leaseID: claim.LeaseID}
	}
	if got.State == driver.Over {
		return &httpError{kind: &kindOver, leaseID: claim.LeaseID, cut: s.cutOf(q.Context(), claim)}
	}
	body.ServerTime = time.Now()
	s.respond(w, body)
	return nil
}

// cutOf returns who ended a lease by force; nil if nobody did, or nobody knows
// that.
func (s *Server) cutOf(ctx context.Context, claim guard.Claim) *cut {
	by, _ := within(ctx, s, "why", claim, func(ctx context.Context) (by *cut, err error) {
		if claim.Token == guard.NoToken && s.opts.Admin != nil { // the issuer finds it by its token
			looked := 0
			for r, err := range s.opts.Admin.Audit(ctx, strings.ReplaceAll(claim.Resource, "*", "%2A"), nil) {
				if looked++; err != nil || looked > 10 {
					return nil, err
				}
				if r.Resource == claim.Resource && r.Cut.LeaseID == claim.LeaseID {
					return &cut{r.Actor, r.Reason, r.At}, nil
				}
			}
		}
		if e, ok := s.issuer.(driver.Explainer); ok {
			if forced, is := errors.AsType[*driver.ForceUnlockedError](e.Why(ctx, claim)); is {
				return &cut{forced.Actor, forced.Reason, forced.At}, nil
			}
		}
		return nil, nil
	}, nil)
	return by
}

// release releases a lease. A claim without a token is abandoned besides: nothing is
// granted under its lease ID any more, as [driver.Issuer] says.
func (s *Server) release(w http.ResponseWriter, q *request) error {
	if err := q.named(); err != nil {
		return err
	}
	claim := q.claim
	// The issuer remembers the ID for a while then, unless it is that of a lease that runs.
	if claim.Token == guard.NoToken && q.id.Limits.Acquire != nil {
		token, err := q.running()
		if invalid := errors.Is(err, guard.ErrInvalid); err != nil && !invalid {
			return err
		}
		if token == guard.NoToken && q.id.limited() {
			return &httpError{kind: &kindTooMany}
		}
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
	if !freed {
		return &httpError{kind: &kindOver, leaseID: claim.LeaseID, cut: s.cutOf(q.Context(), claim)}
	}
	s.log(q.Context(), slog.LevelInfo, "lock_released", slog.String("resource", claim.Resource), slog.String("leaseId", claim.LeaseID), slog.String("subject", q.id.Subject))
	s.respond(w, releasedBody{true, claim.Resource, claim.LeaseID, time.Now()})
	return nil
}
