package lockhttp

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/internal/input"
)

// lockBody is what is known about one resource.
type lockBody struct {
	Resource   string    `json:"resource"`
	State      string    `json:"state"`
	holder               // or the last one of an expired lease
	AcquiredAt time.Time `json:"createdAt,omitzero"`
	HeldFor    seconds   `json:"heldForSeconds"`
	Waiting    int       `json:"waiting"`
}

// unlockedBody is the response to a force unlock.
type unlockedBody struct {
	// Invalidated is the claim that must be raised at the resource.
	Resource string `json:"resource"`
	LeaseID  string `json:"leaseId"`
	twice
	// Raised says that the server has done so. Until somebody has, the cut
	// holder can still write.
	Raised     bool      `json:"raised"`
	Cut        lockBody  `json:"cut"`
	AuditID    int64     `json:"auditId"`
	Repeated   bool      `json:"repeated,omitempty"`
	ServerTime time.Time `json:"serverTime"`
}

func (s *Server) lock(l driver.LeaseInfo, id *Identity) lockBody {
	return lockBody{
		Resource: l.Resource, State: string(l.State), AcquiredAt: l.AcquiredAt, HeldFor: seconds(max(0, l.HeldFor)),
		holder: *holderOf(&driver.HeldError{
			Owner: l.Owner, Metadata: l.Metadata, Token: l.Token, LeaseID: l.LeaseID, ExpiresAt: l.ExpiresAt, Remaining: max(0, l.Remaining),
		}, id.sees()),
		// The issuer counts processes, and this server is one of them.
		Waiting: max(l.Waiters, s.waiters.Count(l.Resource)),
	}
}

func (s *Server) get(w http.ResponseWriter, r *http.Request, id *Identity, in *fields) error {
	resource := in.text("resource")
	err := in.end()
	if err == nil {
		err = allowed(id, resource)
	}
	if err != nil {
		return err
	}
	var body lockBody
	if s.opts.Admin != nil {
		info, err := s.lease(r.Context(), resource)
		if err != nil {
			return err
		}
		body = s.lock(info, id)
	} else {
		held, err := s.held(r.Context(), resource)
		if err == driver.ErrNoWatch { // one that failed is around more
			return &httpError{kind: &kindUnsupported, err: err}
		}
		if err != nil {
			return err
		}
		body = lockBody{Resource: resource, State: string(driver.StateFree), Waiting: s.waiters.Count(resource)}
		if h := holderOf(held, id.sees()); h != nil {
			body.State, body.holder = string(driver.StateHeld), *h
		}
	}
	s.respond(w, struct {
		lockBody
		ServerTime time.Time `json:"serverTime"`
	}{body, time.Now()})
	return nil
}

// lease is the issuer's record of a resource.
func (s *Server) lease(ctx context.Context, resource string) (driver.LeaseInfo, error) {
	info, err := within(ctx, s, "get", guard.Claim{Resource: resource}, func(ctx context.Context) (driver.LeaseInfo, error) {
		return s.opts.Admin.Get(ctx, resource)
	}, nil)
	return info, readOnly(err)
}

func (s *Server) forceUnlock(w http.ResponseWriter, r *http.Request, id *Identity, in *fields) error {
	resource, actor, reason := in.text("resource"), in.text("actorId"), in.text("reason")
	opts := &driver.ForceUnlockOptions{ExpectedLeaseID: in.text("leaseId"), RequestID: in.text("requestId")}
	if err := in.end(); err != nil {
		return err
	}
	body, err := s.unlock(r.Context(), id, resource, actor, reason, opts)
	if err != nil {
		return err
	}
	s.respond(w, body)
	return nil
}

// mayOperate checks that the identity may do what operators do, and that the server can.
func (s *Server) mayOperate(id *Identity) error {
	switch {
	case !id.Operator:
		return &httpError{kind: &kindForbidden}
	case s.opts.Admin == nil:
		return &httpError{kind: &kindUnsupported}
	}
	return nil
}

func (s *Server) mayUnlock(id *Identity, resource string) error {
	if err := allowed(id, resource); err != nil {
		return err
	}
	return s.mayOperate(id)
}

// unlock force-unlocks a resource and raises the invalidated claim, if the server
// can.
func (s *Server) unlock(ctx context.Context, id *Identity, resource, actor, reason string, opts *driver.ForceUnlockOptions) (body unlockedBody, err error) {
	if err := s.mayUnlock(id, resource); err != nil {
		return body, err
	}
	if actor == "" {
		return body, guard.Missing("actorId")
	}
	if strings.TrimSpace(reason) == "" {
		return body, guard.Missing("reason")
	}
	if opts.RequestID == "" {
		opts.RequestID = input.NewLeaseID() // known to a client that has to repeat it
	}
	if !s.work.Begin() {
		return body, errClosing
	}
	defer s.work.End() // after the raise, or Close would end between the two
	began := s.now()
	// Once begun it is finished, even if the operator's browser goes away: a token that
	// is invalidated and not raised leaves the cut holder able to write.
	ctx = context.WithoutCancel(ctx)
	done, err := within(ctx, s, "force unlock", guard.Claim{Resource: resource, LeaseID: opts.RequestID}, func(ctx context.Context) (driver.ForceUnlocked, error) {
		return s.opts.Admin.ForceUnlock(ctx, resource, actor, reason, opts)
	}, nil)
	s.observe(ctx, guard.OpForceUnlock, done.Invalidated, began, err)
	if err != nil {
		return body, &httpError{kind: kindOf(err), err: err, leaseID: opts.RequestID}
	}
	body = unlockedBody{
		Resource: resource, LeaseID: done.Invalidated.LeaseID, twice: twiceOf(done.Invalidated.Token),
		Cut: s.lock(done.Cut, id), AuditID: done.AuditID, Repeated: done.Repeated,
	}
	if s.opts.Raise != nil {
		_, err := within(ctx, s, "raise", done.Invalidated, func(ctx context.Context) (none, error) { return none{}, s.opts.Raise(ctx, done.Invalidated) }, nil)
		// A mark that is already there, or higher, also stops the cut holder.
		body.Raised = err == nil || errors.Is(err, guard.ErrStale)
		if !body.Raised {
			s.opts.Logger.LogAttrs(ctx, slog.LevelWarn, "lock_raise_failed", slog.String("resource", resource), slog.Any("error", err))
		}
	}
	body.ServerTime = time.Now()
	s.log(ctx, "lock_force_unlocked", slog.String("resource", resource), slog.String("actor", actor), slog.String("reason", reason),
		slog.String("fencingToken", body.Token.String()), slog.Bool("raised", body.Raised), slog.String("subject", id.Subject))
	return body, nil
}
