package lockclient

import (
	"context"
	"strconv"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

// AuditRecord is one record of fencepost.audit. No role can change or delete
// one; the table's owner would have to take its triggers away first.
type AuditRecord struct {
	// ID grows from record to record; there may be gaps.
	ID int64 `json:"id"`
	// At is when, by the server's clock.
	At time.Time `json:"at"`
	// Action is what was done: "force_unlock".
	Action string `json:"action"`
	// Resource is the whole name, Name what the calls of this handle take.
	Resource string `json:"resource"`
	Name     string `json:"name"`
	// Actor and Reason are as they were given; DatabaseUser is the role that
	// the server had authenticated.
	Actor        string `json:"actor"`
	Reason       string `json:"reason"`
	DatabaseUser string `json:"databaseUser"`
	// RequestID is the request's; with Token, the burned claim's lease ID.
	RequestID string `json:"requestId"`
	// Token is the token that was burned.
	Token guard.Token `json:"token"`
	// Cut is the resource as it was before; HeldFor and Remaining are as of At.
	Cut LeaseInfo `json:"cut"`
}

// AuditOptions configures [Operator.Audit]. The zero value is the default.
type AuditOptions struct {
	// Limit is how many records a page has at most; 0 means 100, at most 1000.
	Limit int
	// After is where the page begins: the Next of the page before it; empty is
	// the latest record.
	After string
}

// AuditPage is a part of the audit, the latest record first.
type AuditPage struct {
	// Records are the page's.
	Records []AuditRecord `json:"records"`
	// Next is the After of the next page; empty at the end.
	Next string `json:"next,omitempty"`
}

// Audit returns what operators did to the resources whose names begin with
// prefix, from from up to and without to, the latest first. A zero time is no
// bound. opts may be nil.
//
// Errors: guard.ErrInvalid (prefix, from not before to, Limit, After) and
// guard.ErrUnavailable.
func (o *Operator) Audit(ctx context.Context, prefix string, from, to time.Time, opts *AuditOptions) (AuditPage, error) {
	q, err := o.auditQuery(prefix, from, to, opts)
	if err != nil {
		return AuditPage{}, err
	}
	s, err := o.overseer(ctx, "audit")
	if err != nil {
		return AuditPage{}, err
	}
	records, err := s.audit(ctx, q)
	if err != nil {
		return AuditPage{}, withCause(ctx, err)
	}
	page := AuditPage{Records: records}
	if len(records) > q.limit { // one more was asked for, to know
		page.Records = records[:q.limit]
		page.Next = strconv.FormatInt(records[q.limit-1].ID, 10)
	}
	for i := range page.Records {
		r := &page.Records[i]
		r.Name = o.c.namespace.name(r.Resource)
		r.Cut.Name = r.Name
	}
	return page, nil
}

type auditQuery struct {
	span
	from, to *time.Time
	before   *int64 // the ID
	limit    int
}

func (o *Operator) auditQuery(prefix string, from, to time.Time, opts *AuditOptions) (q auditQuery, err error) {
	if opts == nil {
		opts = &AuditOptions{}
	}
	if q.span, err = o.c.namespace.prefixed(prefix); err != nil {
		return q, err
	}
	if q.limit, err = paging(opts.Limit, defaultPage); err != nil {
		return q, err
	}
	if !from.IsZero() {
		q.from = &from
	}
	if !to.IsZero() {
		q.to = &to
		if !from.Before(to) {
			return q, guard.Invalid("from", from.Format(time.RFC3339Nano), "must be before to, which is "+to.Format(time.RFC3339Nano))
		}
	}
	if opts.After != "" {
		id, err := strconv.ParseInt(opts.After, 10, 64)
		if err != nil || id <= 0 || strconv.FormatInt(id, 10) != opts.After {
			return q, guard.Invalid("After", opts.After, "is not the Next of a page")
		}
		q.before = &id
	}
	return q, nil
}
