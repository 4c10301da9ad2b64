package pgadmin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/internal/input"
	"github.com/fencepost-go/fencepost/lockclient/internal/pglease"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"
)

// ForceUnlock ends the lease on resource, whoever has it: it raises the
// issuer's token by at least one and frees the lease, so that the next in the
// queue is granted it at once. The audit record, with actor and reason, is written in
// the same statement; there is no force unlock without one. The holder's next
// renewal finds its lease lost, with [lockclient.ErrForceUnlocked] as the
// cause; waiters are woken. opts may be nil.
//
// It does not stop the cut holder from writing: the resource does not know
// until a higher token arrives there. Either raise the mark to the invalidated claim at the
// resource (Raise of sqlfence's DB, of httpfence's Middleware or of s3fence's
// Objects, or guard.Store.Admit), after which every write of the cut holder is
// refused as stale, or wait for the next holder to do so. An expired or free
// lease can be force-unlocked too, for the invalidated claim: a paused holder may
// come back to any of them.
//
// Actor is who does it, 1 to 128 bytes, reason is why, 1 to 1000 bytes; neither
// may be only spaces.
//
// An attempt whose response is lost is repeated under the same request ID.
// Errors: guard.ErrInvalid (actor, reason, an ID; also a request ID that was
// used for another resource); guard.ErrNotFound (the resource was never leased,
// or purged); [lockadmin.ErrLeaseChanged]; guard.ErrUnavailable (nothing was changed);
// guard.ErrOutcomeUnknown: the [guard.FailedError]'s claim has the request ID as
// its lease ID; call again with it.
func (o *Operator) ForceUnlock(ctx context.Context, resource, actor, reason string, opts *lockadmin.ForceUnlockOptions) (lockadmin.ForceUnlocked, error) {
	r, err := o.unlockRequest(resource, actor, reason, opts)
	if err != nil {
		return lockadmin.ForceUnlocked{}, err
	}
	began := time.Now()
	done, err := o.forceUnlock(ctx, r)
	o.unlockDone(ctx, r, done, err, time.Since(began))
	return done, err
}

// forceUnlock retries when the row is contended or the response is lost. The statuses
// are the words of the function.
func (o *Operator) forceUnlock(ctx context.Context, r unlockRequest) (done lockadmin.ForceUnlocked, err error) {
	var status string
	err = o.retry(ctx, true, func() (err error) {
		if status, done, err = o.invalidate(ctx, r); err == nil && status == unlockMoved {
			err = guard.Unavailable("force unlock", r.claim(), errRaced)
		}
		return err
	})
	if err == nil {
		switch status {
		case "cut":
		case "repeated": // under this request ID, before
			done.Repeated = true
		case "not found":
			err = notFound(r.resource)
		case "changed":
			err = &lockadmin.LeaseChangedError{Expected: r.expected, Now: done.Cut}
		case "foreign":
			err = guard.Invalid("RequestID", r.requestID, "was used for another resource")
		default:
			err = guard.OutcomeUnknown("force unlock", r.claim(), fmt.Errorf("the server says %q, which this build does not know", status))
		}
	}
	if err != nil {
		return lockadmin.ForceUnlocked{}, err
	}
	return done, nil
}

// unlockMoved: nothing was done, since this is not the server that was entered.
const unlockMoved = "moved"

// unlockRequest is one ForceUnlock with everything but the context.
type unlockRequest struct {
	resource, actor, reason, expected, requestID string
}

func (r unlockRequest) claim() guard.Claim {
	return guard.Claim{Resource: r.resource, LeaseID: r.requestID}
}

func (o *Operator) unlockRequest(resource, actor, reason string, opts *lockadmin.ForceUnlockOptions) (r unlockRequest, err error) {
	set := pglease.Of(opts)
	err = cmp.Or(guard.ValidateResource(resource), lockadmin.ValidateActor(actor), lockadmin.ValidateReason(reason))
	if err != nil {
		return r, err
	}
	if err := validateExpected(set.ExpectedLeaseID); err != nil {
		return r, err
	}
	if err := guard.ValidateLeaseID(set.RequestID); err != nil {
		return r, renamed(err, "RequestID")
	}
	r.resource, r.actor, r.reason, r.expected, r.requestID = resource, actor, reason, set.ExpectedLeaseID, cmp.Or(set.RequestID, input.NewLeaseID())
	return r, nil
}

// validateExpected permits each lease ID that the table can hold, control characters too: an
// issuer's role may have written what no issuer grants, and that must be cut as well.
func validateExpected(id string) error {
	switch {
	case len(id) > guard.MaxLeaseIDLen:
		return guard.Invalid("ExpectedLeaseID", id, fmt.Sprintf("is %d bytes long, at most %d are allowed", len(id), guard.MaxLeaseIDLen))
	case !utf8.ValidString(id) || strings.Contains(id, "\x00"):
		return guard.Invalid("ExpectedLeaseID", id, "must be valid UTF-8 without NUL, as the table's lease IDs are")
	}
	return nil
}

func renamed(err error, field string) error {
	if invalid, ok := errors.AsType[*guard.InvalidError](err); ok {
		invalid.Field = field
	}
	return err
}

// unlockDone reports what was done, or not done.
func (o *Operator) unlockDone(ctx context.Context, r unlockRequest, done lockadmin.ForceUnlocked, err error, took time.Duration) {
	claim := r.claim()
	if err == nil {
		claim = done.Invalidated
		o.log(ctx, slog.LevelWarn, "lock_force_unlocked", slog.String("resource", r.resource),
			slog.String("actorId", r.actor), slog.String("reason", r.reason),
			slog.String("fencingToken", claim.Token.String()), slog.String("requestId", r.requestID),
			slog.String("ownerId", done.Cut.Owner), slog.String("leaseId", done.Cut.LeaseID), slog.Int64("auditId", done.AuditID))
	} else {
		o.log(ctx, slog.LevelWarn, "lock_force_unlock_failed", slog.String("resource", r.resource),
			slog.String("actorId", r.actor), slog.String("requestId", r.requestID), slog.Any("error", err))
	}
	if o.observer != nil {
		event := guard.Event{
			Op: guard.OpForceUnlock, Surface: guard.SurfaceLock, Claim: claim, Reason: guard.ReasonOf(err), Duration: took, Err: err,
		}
		o.report(func() { o.observer.Observe(context.WithoutCancel(ctx), event) })
	}
}

// forceUnlockSQL is one statement and one transaction. $6 is the topic to
// notify, NULL for none.
var forceUnlockSQL = `SELECT $1::pg_catalog.text, coalesce(o_cut_token, 0), coalesce(o_lease_id, ''), coalesce(o_owner, ''), coalesce(o_state, ''),
  ` + moment("o_acquired_at", "o_state") + `, ` + moment("o_expires_at", "o_state") + `, o_at,
  o_status, coalesce(o_id, 0), coalesce(o_token, 0), o_at
FROM fencepost.force_unlock($1::pg_catalog.text, $2::pg_catalog.text, $3::pg_catalog.text, $4::pg_catalog.text, $5::pg_catalog.text, $6::pg_catalog.text, $7::pg_catalog.text::integer, $8::pg_catalog.timestamptz, $9::bigint::pg_catalog.oid)`

func (o *Operator) invalidate(ctx context.Context, r unlockRequest) (status string, done lockadmin.ForceUnlocked, err error) {
	err = o.do(ctx, func(ctx context.Context, conn *pgx.Conn, lockTimeout string) error {
		// So that the invalidated token is above any that a failover may have lost.
		in, err := o.server.Enter(ctx, conn, lockTimeout)
		if err != nil {
			return pglease.Harmless(err)
		}
		invalidate := func(topic *string) error {
			status, done = "", lockadmin.ForceUnlocked{}
			done.Invalidated = guard.Claim{Resource: r.resource, LeaseID: r.requestID}
			return o.scanCut(conn.QueryRow(ctx, forceUnlockSQL, r.resource, r.actor, r.reason, r.expected, r.requestID,
				topic, lockTimeout, zeronull.Timestamptz(in.Started), int64(in.Leases)),
				&done.Cut, &status, &done.AuditID, (*int64)(&done.Invalidated.Token), (*zeronull.Timestamptz)(&done.At))
		}
		named := pglease.Topic(r.resource)
		err = invalidate(&named)
		switch pg := pglease.Error(err); {
		case pg == nil || !pglease.NothingWritten(pg):
		case pg.Code == "54000" || pg.Code == "22023":
			// Neither a full notification queue nor a channel that is not a name, which a
			// waiter can write into the row, stops an operator.
			err = invalidate(nil)
		case pg.Code == "23505": // the request ID was used for another resource at the same moment: the retry sees it
			err = invalidate(&named)
		}
		if err == nil && status == unlockMoved {
			_, err = o.server.Reenter(ctx, conn, pglease.Raise{}, lockTimeout)
			err = pglease.Harmless(err)
		}
		return err
	})
	return status, done, pglease.Failure("force unlock", r.claim(), err)
}
