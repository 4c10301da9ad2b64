package lockhttp

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/internal/input"
	"github.com/fencepost-go/fencepost/lockclient/internal/wire"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin"
)

// timed is what the response to a question has besides what was asked for.
type timed struct {
	ServerTime time.Time `json:"serverTime"`
}

type listBody struct {
	Locks []lockadmin.LeaseInfo `json:"locks"`
	Next  string                `json:"next,omitempty"`
	timed
}

type auditBody struct {
	Records []lockadmin.AuditRecord `json:"records"`
	Next    int64                   `json:"next,omitempty"`
	timed
}

// shown is what an identity may know of a lease. It names what everybody may know, so that a
// field that is added later is an operator's alone.
func (s *Server) shown(l lockadmin.LeaseInfo, id *Identity) lockadmin.LeaseInfo {
	// The issuer counts processes, and this server is one of them.
	l.Waiters = max(l.Waiters, s.waiters.Count(l.Resource))
	if id.Operator {
		return l
	}
	// Without the token and the lease ID, with which it could act as the holder.
	public := lockadmin.LeaseInfo{
		Resource: l.Resource, State: l.State, CreatedAt: l.CreatedAt, ExpiresAt: l.ExpiresAt,
		HeldFor: l.HeldFor, Remaining: l.Remaining, Awaited: l.Awaited, Waiters: l.Waiters,
	}
	if s.opts.ShowHolders {
		public.Owner, public.Metadata = l.Owner, l.Metadata
	}
	return public
}

// respondTimed responds with v and the server's time.
func (s *Server) respondTimed(w http.ResponseWriter, v any) error {
	body, err := wire.Join(v, timed{time.Now()})
	if err == nil {
		s.respond(w, body)
	}
	return err
}

func (s *Server) get(w http.ResponseWriter, q *request) error {
	resource := q.claim.Resource
	var info lockadmin.LeaseInfo
	var err error
	if s.opts.Admin != nil {
		info, err = within(q.Context(), s, "get", q.claim, func(ctx context.Context) (lockadmin.LeaseInfo, error) {
			return s.opts.Admin.Get(ctx, resource)
		}, nil)
		if err != nil {
			return readOnly(err)
		}
	} else {
		watching, err := s.watchIssuer(q.Context(), driver.Watch{Resource: resource}, func() {})
		if err != nil {
			return err
		}
		watching.Stop()
		info = lockadmin.LeaseInfo{Resource: resource, State: lockadmin.StateFree}
		if h := watching.Held; h != nil {
			info.State, info.Owner, info.Metadata, info.Token, info.LeaseID = lockadmin.StateHeld, h.Owner, h.Metadata, h.Token, h.LeaseID
			info.ExpiresAt, info.Remaining = h.ExpiresAt, h.Remaining
		}
	}
	return s.respondTimed(w, s.shown(info, q.id))
}

// list is one page of the identity's resources, in the order of their names.
func (s *Server) list(w http.ResponseWriter, q *request) error {
	if s.opts.Admin == nil {
		return &httpError{kind: &kindUnsupported}
	}
	opts := &lockadmin.ListOptions{After: q.after}
	if q.state != "" {
		opts.States = []lockadmin.LeaseState{q.state}
	}
	infos, more, err := page(q, "list",
		func(ctx context.Context, pattern string) iter.Seq2[lockadmin.LeaseInfo, error] {
			return s.opts.Admin.List(ctx, pattern, opts)
		},
		func(l lockadmin.LeaseInfo) string { return l.Resource },
		func(a, b lockadmin.LeaseInfo) int { return strings.Compare(a.Resource, b.Resource) })
	if err != nil {
		return err
	}
	body := listBody{Locks: make([]lockadmin.LeaseInfo, len(infos)), timed: timed{time.Now()}}
	for n, info := range infos {
		body.Locks[n] = s.shown(info, q.id)
	}
	if more {
		body.Next = infos[len(infos)-1].Resource
	}
	s.respond(w, body)
	return nil
}

// audit is one page of the audit, the latest first.
func (s *Server) audit(w http.ResponseWriter, q *request) error {
	if err := q.mayOperate(); err != nil {
		return err
	}
	opts := &lockadmin.AuditOptions{Before: q.before}
	records, more, err := page(q, "audit",
		func(ctx context.Context, pattern string) iter.Seq2[lockadmin.AuditRecord, error] {
			return s.opts.Admin.Audit(ctx, pattern, opts)
		},
		func(r lockadmin.AuditRecord) string { return r.Resource },
		func(a, b lockadmin.AuditRecord) int { return cmp.Compare(b.ID, a.ID) })
	if err != nil {
		return err
	}
	body := auditBody{Records: append([]lockadmin.AuditRecord{}, records...), timed: timed{time.Now()}}
	for n := range body.Records {
		body.Records[n].DatabaseUser = "" // the server's own
	}
	if more {
		body.Next = records[len(records)-1].ID
	}
	s.respond(w, body)
	return nil
}

// page reads one page of what the identity may name, and whether there is more. list is
// what a pattern selects, in order; a row that two patterns select is the same in both.
func page[T any](q *request, op string, list func(context.Context, string) iter.Seq2[T, error], resource func(T) string, order func(a, b T) int) (rows []T, more bool, err error) {
	limit := int(cmp.Or(q.limit, 100))
	rows, err = within(q.Context(), q.s, op, guard.Claim{}, func(ctx context.Context) (rows []T, err error) {
		for _, pattern := range q.id.patterns(q.prefix) {
			left := limit + 1 // more of one pattern are not on this page
			for row, err := range list(ctx, pattern) {
				if err != nil {
					return nil, err
				}
				if !q.id.may(resource(row)) {
					continue
				}
				rows = append(rows, row)
				if left--; left == 0 {
					break
				}
			}
		}
		slices.SortFunc(rows, order)
		return slices.CompactFunc(rows, func(a, b T) bool { return order(a, b) == 0 }), nil
	}, nil)
	return rows[:min(limit, len(rows))], len(rows) > limit, renamed(readOnly(err), "prefix")
}

// mayOperate checks that the identity may do what operators do, and that the server can.
func (q *request) mayOperate() error {
	switch {
	case !q.id.Operator:
		return &httpError{kind: &kindForbidden}
	case q.s.opts.Admin == nil:
		return &httpError{kind: &kindUnsupported}
	}
	return nil
}

// mayOperateAll is mayOperate for what concerns every resource of the issuer.
func (q *request) mayOperateAll() error {
	if !q.id.AllResources {
		return &httpError{kind: &kindForbidden}
	}
	return q.mayOperate()
}

// reachedBody is the response to an advance.
type reachedBody struct {
	Resource string `json:"resource,omitempty"`
	Above    twice  `json:"above"` // every later token is above it
}

// advance raises the issuer above a token of one resource.
func (s *Server) advance(w http.ResponseWriter, q *request) error {
	if err := q.mayOperate(); err != nil {
		return err
	}
	reached, err := within(q.Context(), s, "advance", q.claim, func(ctx context.Context) (guard.Token, error) {
		return s.opts.Admin.Advance(ctx, q.claim.Resource, q.claim.Token)
	}, nil)
	return s.respondRaised(w, q, err, "lock_advanced", slog.String("resource", q.claim.Resource), reachedBody{q.claim.Resource, wire.TwiceOf(reached)})
}

// advanceFloor raises the issuer above a token of any resource.
func (s *Server) advanceFloor(w http.ResponseWriter, q *request) error {
	if err := q.mayOperateAll(); err != nil {
		return err
	}
	reached, err := within(q.Context(), s, "advance floor", guard.Claim{}, func(ctx context.Context) (guard.Token, error) {
		return s.opts.Admin.AdvanceFloor(ctx, q.claim.Token)
	}, nil)
	return s.respondRaised(w, q, err, "lock_advanced", slog.String("above", reached.String()), reachedBody{Above: wire.TwiceOf(reached)})
}

// epoch says from where tokens are counted.
func (s *Server) epoch(w http.ResponseWriter, q *request) error {
	if err := q.mayOperateAll(); err != nil {
		return err
	}
	epoch, err := within(q.Context(), s, "epoch", guard.Claim{}, s.opts.Admin.Epoch, nil)
	if err != nil {
		return readOnly(err)
	}
	return s.respondTimed(w, epoch)
}

// raiseEpoch puts every later token above all that were issued.
func (s *Server) raiseEpoch(w http.ResponseWriter, q *request) error {
	if err := q.mayOperateAll(); err != nil {
		return err
	}
	epoch, err := within(q.Context(), s, "raise epoch", guard.Claim{}, s.opts.Admin.RaiseEpoch, nil)
	return s.respondRaised(w, q, err, "lock_epoch_raised", slog.Int64("epoch", epoch.Number), epoch)
}

// purgeBody is the response to a purge. More says that it ended before it was through.
type purgeBody struct {
	More bool `json:"more,omitempty"`
	timed
}

// purge deletes what is kept of leases that have been free for long, within MaxWait. What was
// deleted before it failed is reported, since a purge may be continued.
func (s *Server) purge(w http.ResponseWriter, q *request) error {
	if err := q.mayOperateAll(); err != nil {
		return err
	}
	opts := &lockadmin.PurgeOptions{OlderThan: q.idle, Batch: int(q.batch), LockTimeout: q.lockTimeout}
	purged, err := bounded(q.Context(), s, s.opts.MaxWait, "purge", guard.Claim{}, func(ctx context.Context) (lockadmin.Purged, error) {
		return s.opts.Admin.Purge(ctx, opts)
	}, nil)
	if err != nil && purged.Count == 0 {
		return onTheWire(err)
	}
	s.log(q.Context(), slog.LevelInfo, "lock_purged", slog.String("actorId", q.id.Subject), slog.Int64("purged", purged.Count), slog.Bool("more", err != nil))
	body, err := wire.Join(purged, purgeBody{err != nil, timed{time.Now()}})
	if err == nil {
		s.respond(w, body)
	}
	return err
}

// respondRaised responds to a request that has raised tokens, and logs who did it: engines keep
// no record of that.
func (s *Server) respondRaised(w http.ResponseWriter, q *request, err error, event string, what slog.Attr, body any) error {
	if err != nil {
		return onTheWire(err)
	}
	s.log(q.Context(), slog.LevelInfo, event, slog.String("actorId", q.id.Subject), what)
	return s.respondTimed(w, body)
}

// forceUnlock force-unlocks a resource and raises the invalidated claim, if the server
// can.
func (s *Server) forceUnlock(w http.ResponseWriter, q *request) error {
	if err := q.mayOperate(); err != nil {
		return err
	}
	if strings.TrimSpace(q.reason) == "" {
		return guard.Missing("reason")
	}
	resource, reason := q.claim.Resource, q.reason
	if q.actor != "" && q.actor != q.id.Subject { // a name proves nothing
		reason += " (in the name of " + q.actor + ")"
	}
	// An ID of the server's own is known to a client that has to repeat the request.
	opts := &lockadmin.ForceUnlockOptions{ExpectedLeaseID: q.claim.LeaseID, RequestID: cmp.Or(q.requestID, input.NewLeaseID())}
	if !s.work.Begin() {
		return errClosing
	}
	defer s.work.End() // after the raise, or Close would end between the two
	began := s.now()
	// Once begun it is finished, even if the operator's browser goes away: a token that
	// is invalidated and not raised leaves the cut holder able to write.
	ctx := context.WithoutCancel(q.Context())
	done, err := within(ctx, s, "force unlock", guard.Claim{Resource: resource, LeaseID: opts.RequestID}, func(ctx context.Context) (lockadmin.ForceUnlocked, error) {
		return s.opts.Admin.ForceUnlock(ctx, resource, q.id.Subject, reason, opts)
	}, nil)
	s.observe(ctx, guard.OpForceUnlock, done.Invalidated, began, err)
	if err != nil {
		return &httpError{kind: kindOf(err), err: onTheWire(err), leaseID: opts.RequestID}
	}
	if s.opts.Raise != nil {
		_, err := within(ctx, s, "raise", done.Invalidated, func(ctx context.Context) (none, error) { return none{}, s.opts.Raise(ctx, done.Invalidated) }, nil)
		// A mark that is already there, or higher, also stops the cut holder.
		done.Raised = err == nil || errors.Is(err, guard.ErrStale)
		if !done.Raised {
			s.log(ctx, slog.LevelWarn, "lock_raise_failed", slog.String("resource", resource), slog.Any("error", err))
		}
	}
	s.log(ctx, slog.LevelInfo, "lock_force_unlocked", slog.String("resource", resource), slog.String("actorId", q.id.Subject), slog.String("reason", reason),
		slog.String("fencingToken", done.Invalidated.Token.String()), slog.Bool("raised", done.Raised))
	return s.respondTimed(w, done)
}
