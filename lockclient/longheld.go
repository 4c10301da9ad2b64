package lockclient

import (
	"context"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

// LongHeldOptions configures [Operator.LongHeld]. The zero value is the default.
type LongHeldOptions struct {
	// Prefix is as in [Operator.List].
	Prefix string
	// Limit is how many leases are returned at most; 0 means 100, at most 1000.
	Limit int
}

// LongHeld returns the leases that have been held, renewals included, for
// longer than threshold by the server's clock, the longest held first. No index
// leads there: it reads every row under the prefix, once. opts may be nil.
//
// Errors: guard.ErrInvalid (threshold below zero, Prefix, Limit) and
// guard.ErrUnavailable.
func (o *Operator) LongHeld(ctx context.Context, threshold time.Duration, opts *LongHeldOptions) ([]LeaseInfo, error) {
	if opts == nil {
		opts = &LongHeldOptions{}
	}
	if threshold < 0 {
		return nil, guard.Invalid("threshold", threshold.String(), "must not be negative")
	}
	q := longHeldQuery{threshold: threshold}
	var err error
	if q.span, err = o.c.namespace.prefixed(opts.Prefix); err != nil {
		return nil, err
	}
	if q.limit, err = paging(opts.Limit, defaultPage); err != nil {
		return nil, err
	}
	s, err := o.overseer(ctx, "long held")
	if err != nil {
		return nil, err
	}
	rows, err := s.longHeld(ctx, q)
	if err != nil {
		return nil, withCause(ctx, err)
	}
	return o.named(rows), nil
}

type longHeldQuery struct {
	span
	threshold time.Duration
	limit     int
}
