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
)

// lockBody is what is known about one resource.
type lockBody struct {
	Resource   string    `json:"resource"`
	State      string    `json:"state"`
	holder               // or the last one of an expired lease
	CreatedAt  time.Time `json:"createdAt,omitzero"`
	HeldFor    seconds   `json:"heldForSeconds"`
	Waiting    int       `json:"waiting"`
	ServerTime time.Time `json:"serverTime,omitzero"` // unless it is a part of another body
}

type listBody struct {
	Locks      []lockBody `json:"locks"`
	Next       string     `json:"next,omitempty"`
	ServerTime time.Time  `json:"serverTime"`
}

// recordBody is one record of the audit.
type recordBody struct {
	ID        int64     `json:"id"`
	At        time.Time `json:"createdAt"`
	Action    string    `json:"action"`
	Resource  string    `json:"resource"`
	Actor     string    `json:"actorId"` // who was authenticated
	Reason    string    `json:"reason"`
	RequestID string    `json:"requestId"`
	twice
	Cut lockBody `json:"cut"`
}

type auditBody struct {
	Records    []recordBody `json:"records"`
	Next       int64        `json:"next,omitempty"`
	ServerTime time.Time    `json:"serverTime"`
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
		Resource: l.Resource, State: string(l.State), CreatedAt: l.AcquiredAt, HeldFor: seconds(min(max(0, l.HeldFor), secondsMost)),
		holder: *holderOf(&driver.HeldError{
			Owner: l.Owner, Metadata: l.Metadata, Token: l.Token, LeaseID: l.LeaseID, ExpiresAt: l.ExpiresAt, Remaining: max(0, l.Remaining),
		}, id.Operator),
		// The issuer counts processes, and this server is one of them.
		Waiting: max(l.Waiters, s.waiters.Count(l.Resource)),
	}
}

func (s *Server) get(w http.ResponseWriter, q *request) error {
	resource := q.claim.Resource
	var body lockBody
	if s.opts.Admin != nil {
		info, err := within(q.Context(), s, "get", q.claim, func(ctx context.Context) (driver.LeaseInfo, error) {
			return s.opts.Admin.Get(ctx, resource)
		}, nil)
		if err != nil {
			return readOnly(err)
		}
		body = s.lock(info, q.id)
	} else {
		watching, err := s.watchIssuer(q.Context(), driver.Watch{Resource: resource}, func() {})
		if err != nil {
			return err
		}
		watching.Stop()
		body = lockBody{Resource: resource, State: string(driver.StateFree), Waiting: s.waiters.Count(resource)}
		if h := holderOf(watching.Held, q.id.Operator); h != nil {
			body.State, body.holder = string(driver.StateHeld), *h
		}
	}
	body.ServerTime = time.Now()
	s.respond(w, body)
	return nil
}

// list is one page of the identity's resources, in the order of their names.
func (s *Server) list(w http.ResponseWriter, q *request) error {
	if s.opts.Admin == nil {
		return &httpError{kind: &kindUnsupported}
	}
	opts := &driver.ListOptions{After: q.after}
	if q.state != "" {
		opts.States = []driver.LeaseState{q.state}
	}
	infos, more, err := page(q, "list",
		func(ctx context.Context, pattern string) iter.Seq2[driver.LeaseInfo, error] {
			return s.opts.Admin.List(ctx, pattern, opts)
		},
		func(l driver.LeaseInfo) string { return l.Resource },
		func(a, b driver.LeaseInfo) int { return strings.Compare(a.Resource, b.Resource) })
	if err != nil {
		return err
	}
	body := listBody{Locks: make([]lockBody, len(infos)), ServerTime: time.Now()}
	for n, info := range infos {
		body.Locks[n] = s.lock(info, q.id)
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
	opts := &driver.AuditOptions{Before: q.before}
	records, more, err := page(q, "audit",
		func(ctx context.Context, pattern string) iter.Seq2[driver.AuditRecord, error] {
			return s.opts.Admin.Audit(ctx, pattern, opts)
		},
		func(r driver.AuditRecord) string { return r.Resource },
		func(a, b driver.AuditRecord) int { return cmp.Compare(b.ID, a.ID) })
	if err != nil {
		return err
	}
	body := auditBody{Records: make([]recordBody, len(records)), ServerTime: time.Now()}
	for n, r := range records {
		body.Records[n] = recordBody{
			ID: r.ID, At: r.At, Action: strings.ToUpper(r.Action), Resource: r.Resource, Actor: r.Actor, Reason: r.Reason,
			RequestID: r.RequestID, twice: twiceOf(r.Token), Cut: s.lock(r.Cut, q.id),
		}
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
	opts := &driver.ForceUnlockOptions{ExpectedLeaseID: q.claim.LeaseID, RequestID: cmp.Or(q.requestID, input.NewLeaseID())}
	if !s.work.Begin() {
		return errClosing
	}
	defer s.work.End() // after the raise, or Close would end between the two
	began := s.now()
	// Once begun it is finished, even if the operator's browser goes away: a token that
	// is invalidated and not raised leaves the cut holder able to write.
	ctx := context.WithoutCancel(q.Context())
	done, err := within(ctx, s, "force unlock", guard.Claim{Resource: resource, LeaseID: opts.RequestID}, func(ctx context.Context) (driver.ForceUnlocked, error) {
		return s.opts.Admin.ForceUnlock(ctx, resource, q.id.Subject, reason, opts)
	}, nil)
	s.observe(ctx, guard.OpForceUnlock, done.Invalidated, began, err)
	if err != nil {
		return &httpError{kind: kindOf(err), err: onTheWire(err), leaseID: opts.RequestID}
	}
	body := unlockedBody{
		Resource: resource, LeaseID: done.Invalidated.LeaseID, twice: twiceOf(done.Invalidated.Token),
		Cut: s.lock(done.Cut, q.id), AuditID: done.AuditID, Repeated: done.Repeated,
	}
	if s.opts.Raise != nil {
		_, err := within(ctx, s, "raise", done.Invalidated, func(ctx context.Context) (none, error) { return none{}, s.opts.Raise(ctx, done.Invalidated) }, nil)
		// A mark that is already there, or higher, also stops the cut holder.
		body.Raised = err == nil || errors.Is(err, guard.ErrStale)
		if !body.Raised {
			s.log(ctx, slog.LevelWarn, "lock_raise_failed", slog.String("resource", resource), slog.Any("error", err))
		}
	}
	body.ServerTime = time.Now()
	s.log(ctx, slog.LevelInfo, "lock_force_unlocked", slog.String("resource", resource), slog.String("actor", q.id.Subject), slog.String("reason", reason),
		slog.String("fencingToken", body.Token.String()), slog.Bool("raised", body.Raised))
	s.respond(w, body)
	return nil
}
