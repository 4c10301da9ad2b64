package lockclient

import (
	"context"
	"log/slog"
	"time"

	"github.com/fencepost-go/fencepost/guard"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Operator looks at leases and repairs them: what somebody on call needs. It is
// made by [NewOperator], or by [Client.Operator] of a client. It is safe for
// concurrent use, starts nothing and needs no closing.
//
// [Operator.ForceUnlock], which takes something from somebody, asks for an actor
// and a reason and leaves a record. The calls that lift the issuer are those of
// the client.
type Operator struct {
	c *Client
}

// OperatorOptions configures [NewOperator]. The zero value is the default.
type OperatorOptions struct {
	// Logger gets the events lock_force_unlocked, lock_advanced, lock_purged,
	// lock_purge_failed, lock_epoch_raised and lock_epoch_hidden; nil means none.
	Logger *slog.Logger
	// Observer is told of every force unlock, and of what [Operator.Probe] does;
	// nil means none.
	Observer guard.Observer
	// Namespace confines the operator as Options.Namespace does a client.
	Namespace string
	// OpTimeout and LockTimeout are as in [Options].
	OpTimeout, LockTimeout time.Duration
}

// NewOperator returns an operator's handle on pool. It sends nothing. opts may
// be nil.
//
// The error is an InvalidError (errors.Is guard.ErrInvalid) that names the
// field.
func NewOperator(pool *pgxpool.Pool, opts *OperatorOptions) (*Operator, error) {
	if pool == nil {
		return nil, guard.Invalid("pool", "nil", "must not be nil")
	}
	if opts == nil {
		opts = &OperatorOptions{}
	}
	o := &Options{
		Logger: opts.Logger, Observer: opts.Observer, Namespace: opts.Namespace,
		OpTimeout: opts.OpTimeout, LockTimeout: opts.LockTimeout,
	}
	set, err := o.settings()
	if err != nil {
		return nil, err
	}
	clock := systemClock()
	ev := events{logger: opts.Logger, observer: opts.Observer}
	// Nobody's lease depends on this pool, so renewals of a probe may share it.
	pg := &postgres{pool: pool, own: pool, set: set, clock: clock, events: ev, definer: true}
	return &Operator{newClient(pg, operatorOwner, set, clock, ev)}, nil
}

// operatorOwner owns the lease of a probe.
const operatorOwner = "operator"

// Operator returns an operator's handle that uses the client's pool, namespace
// and settings, and ends with the client.
func (c *Client) Operator() *Operator { return &Operator{c} }

// Advance is [Client.Advance].
func (o *Operator) Advance(ctx context.Context, resource string, above guard.Token) (guard.Token, error) {
	return o.c.Advance(ctx, resource, above)
}

// AdvanceFloor is [Client.AdvanceFloor].
func (o *Operator) AdvanceFloor(ctx context.Context, above guard.Token) (guard.Token, error) {
	return o.c.AdvanceFloor(ctx, above)
}

// Epoch is [Client.Epoch].
func (o *Operator) Epoch(ctx context.Context) (Epoch, error) { return o.c.Epoch(ctx) }

// RaiseEpoch is [Client.RaiseEpoch].
func (o *Operator) RaiseEpoch(ctx context.Context) (Epoch, error) { return o.c.RaiseEpoch(ctx) }

// Purge is [Client.Purge].
func (o *Operator) Purge(ctx context.Context, opts *PurgeOptions) (Purged, error) {
	return o.c.Purge(ctx, opts)
}

// overseer is what an issuer does for an [Operator], beside what [operator] is.
// Errors are guard.ErrUnavailable and, of forceUnlock, guard.ErrOutcomeUnknown.
type overseer interface {
	list(ctx context.Context, q listQuery) (rows []LeaseInfo, last string, more bool, err error)
	get(ctx context.Context, resource string) (info LeaseInfo, found bool, err error)
	longHeld(ctx context.Context, q longHeldQuery) ([]LeaseInfo, error)
	forceUnlock(ctx context.Context, r unlockRequest) (unlockAnswer, error)
	audit(ctx context.Context, q auditQuery) ([]AuditRecord, error)
	inspect(ctx context.Context) (Inspection, error)
}

func (o *Operator) overseer(ctx context.Context, op string) (overseer, error) {
	if err := o.c.usable(ctx); err != nil {
		return nil, guard.Unavailable(op, guard.Claim{}, err)
	}
	if s, ok := o.c.issuer.(overseer); ok {
		return s, nil
	}
	return nil, guard.Unavailable(op, guard.Claim{}, errNoOperator)
}
