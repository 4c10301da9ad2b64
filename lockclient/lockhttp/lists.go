package lockhttp

import (
	"cmp"
	"context"
	"iter"
	"net/http"
	"strings"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
)

type listBody struct {
	Locks      []lockBody `json:"locks"`
	Next       string     `json:"next,omitempty"`
	ServerTime time.Time  `json:"serverTime"`
}

type auditBody struct {
	Records    []recordBody `json:"records"`
	Next       int64        `json:"next,omitempty"`
	ServerTime time.Time    `json:"serverTime"`
}

// recordBody is one record of the audit.
type recordBody struct {
	ID        int64     `json:"id"`
	At        time.Time `json:"createdAt"`
	Action    string    `json:"action"`
	Resource  string    `json:"resource"`
	Actor     string    `json:"actorId"`
	Reason    string    `json:"reason"`
	RequestID string    `json:"requestId"`
	twice
	Cut lockBody `json:"cut"`
}

// selection is what a page is of.
type selection struct {
	prefix string
	after  string // the resource before the first
	before int64  // what all IDs of records are below; 0 begins with the latest
	limit  int
	states []driver.LeaseState // none means all
}

const pageMost = 1000

func (s *Server) list(w http.ResponseWriter, r *http.Request, id *Identity, in *fields) error {
	if s.opts.Admin == nil {
		return &httpError{kind: &kindUnsupported}
	}
	q := selection{prefix: in.text("prefix"), after: in.text("after"), limit: in.limit()}
	var err error
	if q.states, err = statesOf(in.texts("state")); err == nil {
		err = in.end()
	}
	if err != nil {
		return err
	}
	locks, next, err := s.listed(r.Context(), id, q)
	if err != nil {
		return err
	}
	s.respond(w, listBody{locks, next, time.Now()})
	return nil
}

func statesOf(words []string) (states []driver.LeaseState, err error) {
	for _, word := range words {
		switch state := driver.LeaseState(word); state {
		case driver.StateHeld, driver.StateExpired, driver.StateFree:
			states = append(states, state)
		default:
			return nil, guard.Invalid("state", word, "must be held, expired or free")
		}
	}
	return states, nil
}

// listed is one page of the identity's resources, in the order of their names. next is
// the last of them if there are more.
func (s *Server) listed(ctx context.Context, id *Identity, q selection) (locks []lockBody, next string, err error) {
	if q.after != "" && allowed(id, q.after) != nil {
		return nil, "", guard.Invalid("after", q.after, "is not where a page of this list ends")
	}
	opts := &driver.ListOptions{States: q.states, After: q.after}
	infos, more, err := paged(ctx, s, id, pages[driver.LeaseInfo]{
		op: "list", selection: q,
		list: func(ctx context.Context, pattern string) iter.Seq2[driver.LeaseInfo, error] {
			return s.opts.Admin.List(ctx, pattern, opts)
		},
		order:    func(a, b driver.LeaseInfo) int { return strings.Compare(a.Resource, b.Resource) },
		resource: func(l driver.LeaseInfo) string { return l.Resource },
	})
	locks = make([]lockBody, len(infos))
	for n, info := range infos {
		locks[n] = s.lock(info, id)
	}
	if more {
		next = locks[q.limit-1].Resource
	}
	return locks, next, err
}

func (s *Server) audit(w http.ResponseWriter, r *http.Request, id *Identity, in *fields) error {
	q := selection{prefix: in.text("prefix"), before: in.number("before", 0, 1<<62), limit: in.limit()}
	if err := in.end(); err != nil {
		return err
	}
	records, next, err := s.audited(r.Context(), id, q)
	if err != nil {
		return err
	}
	s.respond(w, auditBody{records, next, time.Now()})
	return nil
}

// audited is one page of the audit, the latest first. next is the last one's ID if there
// are more.
func (s *Server) audited(ctx context.Context, id *Identity, q selection) (records []recordBody, next int64, err error) {
	if err := s.mayOperate(id); err != nil {
		return nil, 0, err
	}
	opts := &driver.AuditOptions{Before: q.before}
	all, more, err := paged(ctx, s, id, pages[driver.AuditRecord]{
		op: "audit", selection: q,
		list: func(ctx context.Context, pattern string) iter.Seq2[driver.AuditRecord, error] {
			return s.opts.Admin.Audit(ctx, pattern, opts)
		},
		order:    func(a, b driver.AuditRecord) int { return cmp.Compare(b.ID, a.ID) },
		resource: func(r driver.AuditRecord) string { return r.Resource },
	})
	records = make([]recordBody, len(all))
	for n, r := range all {
		records[n] = recordBody{
			ID: r.ID, At: r.At, Action: strings.ToUpper(r.Action), Resource: r.Resource, Actor: r.Actor, Reason: r.Reason,
			RequestID: r.RequestID, twice: twiceOf(r.Token), Cut: s.lock(r.Cut, id),
		}
	}
	if more {
		next = all[q.limit-1].ID
	}
	return records, next, err
}

// pages is a list that is read in pages, one at a time.
type pages[T any] struct {
	op string
	selection
	list     func(ctx context.Context, pattern string) iter.Seq2[T, error] // in order
	order    func(a, b T) int
	resource func(T) string
}

// paged reads one page of what the identity may name, from the lists of all its
// templates.
func paged[T any](ctx context.Context, s *Server, id *Identity, p pages[T]) (rows []T, more bool, err error) {
	type page struct { // a call that is left behind writes into its own
		rows []T
		more bool
	}
	got, err := within(ctx, s, p.op, guard.Claim{}, func(ctx context.Context) (got page, err error) {
		all := func(func(T, error) bool) {}
		for _, pattern := range id.patterns(p.prefix) {
			all = merge(all, p.list(ctx, pattern), p.order)
		}
		for row, err := range all {
			switch {
			case err != nil:
				return page{}, err
			case !id.may(p.resource(row)):
				continue
			case len(got.rows) == p.limit:
				got.more = true
				return got, nil
			}
			got.rows = append(got.rows, row)
		}
		return got, nil
	}, nil)
	return got.rows, got.more, renamed(readOnly(err), "prefix")
}

// merge yields what two ordered lists have, in order, and once what both have. An error
// comes as soon as its list is read.
func merge[T any](a, b iter.Seq2[T, error], order func(a, b T) int) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		next, stop := iter.Pull2(b)
		defer stop()
		y, errY, more := next()
		for x, errX := range a {
			for more && (errY != nil || errX == nil && order(y, x) < 0) {
				if !yield(y, errY) {
					return
				}
				y, errY, more = next()
			}
			if more && errX == nil && order(y, x) == 0 {
				y, errY, more = next()
			}
			if !yield(x, errX) {
				return
			}
		}
		for more {
			if !yield(y, errY) {
				return
			}
			y, errY, more = next()
		}
	}
}
