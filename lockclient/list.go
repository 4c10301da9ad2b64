package lockclient

import (
	"context"
	"iter"
	"strconv"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

// LeaseState says whether somebody has a lease.
type LeaseState string

// The states.
const (
	// StateHeld: somebody has it, by the server's clock.
	StateHeld LeaseState = "held"
	// StateExpired: it ran out without a release; its holder crashed, was
	// paused or could not reach the server. Everybody may acquire it.
	StateExpired LeaseState = "expired"
	// StateFree: it was released or force-unlocked, or never granted.
	StateFree LeaseState = "free"
)

// LeaseInfo is what the server knows of one resource. A free one keeps its row,
// for the token, until [Client.Purge] deletes it.
type LeaseInfo struct {
	// Resource is the whole name, which the fences and claims know.
	Resource string `json:"resource"`
	// Name is what the calls of this handle take: Resource without the
	// namespace of a handle that is confined to one.
	Name string `json:"name"`
	// State is held, expired or free, by the server's clock.
	State LeaseState `json:"state"`
	// Token is the last token that was granted or burned.
	Token guard.Token `json:"token"`
	// LeaseID is the holder's, or the last one's if the lease expired; empty if
	// the state is free.
	LeaseID string `json:"leaseId,omitempty"`
	// Owner is the last holder's name; empty if there never was one.
	Owner string `json:"owner,omitempty"`
	// AcquiredAt and ExpiresAt are by the server's clock; zero where there is no
	// such moment. Of a free lease ExpiresAt is when it was freed.
	AcquiredAt time.Time `json:"acquiredAt,omitzero"`
	ExpiresAt  time.Time `json:"expiresAt,omitzero"`
	// HeldFor is how long it has been held, Remaining how long it lasts unless
	// it is renewed; both zero unless it is held.
	HeldFor   time.Duration `json:"heldForNanoseconds"`
	Remaining time.Duration `json:"remainingNanoseconds"`
	// Awaited says that somebody waits for it, or did so within the last five
	// seconds. Waiters that poll, behind a pooler, are not seen.
	Awaited bool `json:"awaited"`
}

// ListOptions configures [Operator.List]. The zero value is the default.
type ListOptions struct {
	// States are the states to list; none means all.
	States []LeaseState
	// AwaitedOnly lists only the leases that somebody waits for.
	AwaitedOnly bool
	// Limit is how many leases a page has at most; 0 means 100, at most 1000.
	Limit int
	// After is where the page begins: the Next of the page before it; empty is
	// the beginning.
	After string
}

// LeasePage is a part of a list, in the order of the names' bytes.
type LeasePage struct {
	// Leases can be fewer than the limit, even none, though there is more.
	Leases []LeaseInfo `json:"leases"`
	// Next is the After of the next page; empty at the end.
	Next string `json:"next,omitempty"`
}

// List returns a page of the leases whose names begin with prefix; an empty
// prefix is every lease of the handle's namespace. No character of the prefix
// has a meaning of its own. One call costs one statement that reads a range of
// the primary key, stops when the page is full and looks at no more than 5,000
// rows, however many there are; a selection by state or waiters that finds few
// can therefore return a short page with a Next.
// Leases that come and go between two pages may be missed, none is listed twice.
//
// Errors: guard.ErrInvalid (prefix, Limit, States, After) and
// guard.ErrUnavailable.
func (o *Operator) List(ctx context.Context, prefix string, opts *ListOptions) (LeasePage, error) {
	q, err := o.listQuery(prefix, opts)
	if err != nil {
		return LeasePage{}, err
	}
	s, err := o.overseer(ctx, "list")
	if err != nil {
		return LeasePage{}, err
	}
	rows, last, more, err := s.list(ctx, q)
	if err != nil {
		return LeasePage{}, withCause(ctx, err)
	}
	page := LeasePage{Leases: o.named(rows)}
	if more {
		page.Next = last
	}
	return page, nil
}

// All goes through the whole list, page by page. An error, of [Operator.List],
// is the last thing it yields. ListOptions.Limit is the size of its pages.
func (o *Operator) All(ctx context.Context, prefix string, opts *ListOptions) iter.Seq2[LeaseInfo, error] {
	return func(yield func(LeaseInfo, error) bool) {
		var page ListOptions
		if opts != nil {
			page = *opts
		}
		for {
			got, err := o.List(ctx, prefix, &page)
			if err != nil {
				yield(LeaseInfo{}, err)
				return
			}
			for _, info := range got.Leases {
				if !yield(info, nil) {
					return
				}
			}
			if page.After = got.Next; page.After == "" {
				return
			}
		}
	}
}

// Get returns what the server knows of one resource.
//
// Errors: guard.ErrInvalid, guard.ErrNotFound (it was never leased, or purged;
// a [*guard.RejectedError]) and guard.ErrUnavailable.
func (o *Operator) Get(ctx context.Context, resource string) (LeaseInfo, error) {
	full, err := o.c.namespace.resource(resource)
	if err != nil {
		return LeaseInfo{}, err
	}
	s, err := o.overseer(ctx, "get")
	if err != nil {
		return LeaseInfo{}, err
	}
	info, found, err := s.get(ctx, full)
	switch {
	case err != nil:
		return LeaseInfo{}, withCause(ctx, err)
	case !found:
		return LeaseInfo{}, notFound(full)
	}
	info.Name = o.c.namespace.name(info.Resource)
	return info, nil
}

func notFound(resource string) error {
	return &guard.RejectedError{Reason: guard.ReasonNotFound, Claim: guard.Claim{Resource: resource}, Cause: errNoRow}
}

// named fills in what the handle calls the leases.
func (o *Operator) named(rows []LeaseInfo) []LeaseInfo {
	for i := range rows {
		rows[i].Name = o.c.namespace.name(rows[i].Resource)
	}
	return rows
}

type listQuery struct {
	span
	after   string
	states  []string // nil: all
	awaited bool
	limit   int
}

func (o *Operator) listQuery(prefix string, opts *ListOptions) (q listQuery, err error) {
	if opts == nil {
		opts = &ListOptions{}
	}
	if q.span, err = o.c.namespace.prefixed(prefix); err != nil {
		return q, err
	}
	if q.limit, err = paging(opts.Limit, defaultPage); err != nil {
		return q, err
	}
	if opts.After != "" {
		if err := guard.ValidateResource(opts.After); err != nil {
			return q, guard.Invalid("After", opts.After, "is not the Next of a page")
		}
	}
	for i, state := range opts.States {
		switch state {
		case StateHeld, StateExpired, StateFree:
			q.states = append(q.states, string(state))
		default:
			return q, guard.Invalid("States["+strconv.Itoa(i)+"]", string(state), "must be held, expired or free")
		}
	}
	q.after, q.awaited = opts.After, opts.AwaitedOnly
	return q, nil
}
