package lockclient

import (
	"context"
	"time"

	"github.com/fencepost-go/fencepost/guard"

	"github.com/jackc/pgx/v5"
)

// forceUnlockSQL is one statement and one transaction. $6 is the topic to
// notify, NULL for none.
const forceUnlockSQL = `SELECT o_status, o_id, o_at, o_token, o_state, o_cut_token, o_lease_id, o_owner,
  CASE WHEN isfinite(o_acquired_at) THEN o_acquired_at END, CASE WHEN isfinite(o_expires_at) THEN o_expires_at END
FROM fencepost.force_unlock($1::text, $2::text, $3::text, $4::text, $5::text, $6::text, $7::text::integer, $8::timestamptz, $9::bigint::oid)`

func (p *postgres) forceUnlock(ctx context.Context, r unlockRequest) (a unlockAnswer, err error) {
	err = p.on(ctx, p.pool, p.set.opTimeout, func(ctx context.Context, conn *pgx.Conn, lockTimeout string) error {
		// So that the burned token is above what a failover may have lost.
		in, err := p.enter(ctx, conn, lockTimeout)
		if err != nil {
			return harmless(err)
		}
		var started *time.Time
		if !in.started.IsZero() {
			started = &in.started
		}
		burn := func(topic *string) error {
			a, err = scanUnlock(conn.QueryRow(ctx, forceUnlockSQL, r.resource, r.actor, r.reason, r.expected, r.requestID,
				topic, lockTimeout, started, int64(in.leases)), r)
			return err
		}
		named := topic(r.resource)
		err = burn(&named)
		switch pg := pgError(err); {
		case pg == nil || !serverSaidNo(pg):
		case pg.Code == "54000": // a full queue of notifications must not keep an operator from it
			err = burn(nil)
		case pg.Code == "23505": // the request ID was used for another resource at the same moment: now it is seen
			err = burn(&named)
		}
		if err == nil && a.status == unlockMoved {
			_, err = p.reenter(ctx, conn, lift{}, lockTimeout)
			err = harmless(err)
		}
		return err
	})
	return a, failure("force unlock", r.claim(), err)
}

func scanUnlock(row pgx.Row, r unlockRequest) (a unlockAnswer, err error) {
	var id, token, cutToken *int64
	var at, acquired, expires *time.Time
	var state, leaseID, owner *string
	err = row.Scan((*string)(&a.status), &id, &at, &token, &state, &cutToken, &leaseID, &owner, &acquired, &expires)
	a.done = ForceUnlocked{
		AuditID: of(id), At: of(at),
		Cut: LeaseInfo{
			Resource: r.resource, State: LeaseState(of(state)), Token: guard.Token(of(cutToken)), LeaseID: of(leaseID), Owner: of(owner),
			AcquiredAt: of(acquired), ExpiresAt: of(expires),
		},
	}
	a.done.Cut.lasted(a.done.At)
	if token != nil {
		a.done.Burned = guard.Claim{Resource: r.resource, Token: guard.Token(*token), LeaseID: r.requestID}
	}
	return a, err
}

// auditSQL reads the latest records first, and one more than the page, which
// tells whether it is the last. $1 low, $2 high, $3 from, $4 to, $5 the ID to be
// below, $6 how many.
const auditSQL = `SELECT a.id, a.at, a.action, a.resource, a.actor, a.reason, a.database_user, a.request_id, a.token,
  a.cut_state, a.cut_token, a.cut_lease_id, a.cut_owner,
  CASE WHEN isfinite(a.cut_acquired_at) THEN a.cut_acquired_at END, CASE WHEN isfinite(a.cut_expires_at) THEN a.cut_expires_at END
FROM fencepost.audit a
WHERE a.resource >= $1::text AND a.resource < $2::text
  AND ($3::timestamptz IS NULL OR a.at >= $3::timestamptz) AND ($4::timestamptz IS NULL OR a.at < $4::timestamptz)
  AND ($5::bigint IS NULL OR a.id < $5::bigint)
ORDER BY a.id DESC LIMIT $6::bigint`

func (p *postgres) audit(ctx context.Context, q auditQuery) (records []AuditRecord, err error) {
	err = p.read(ctx, "audit", func(ctx context.Context, conn *pgx.Conn) error {
		records, err = collect(ctx, conn, scanRecord, q.bounded(auditSQL), q.low, q.high, q.from, q.to, q.before, int64(q.limit)+1)
		return err
	})
	return records, err
}

func scanRecord(row pgx.Row, r *AuditRecord) error {
	var token, cutToken int64
	var leaseID *string
	var acquired, expires *time.Time
	err := row.Scan(&r.ID, &r.At, &r.Action, &r.Resource, &r.Actor, &r.Reason, &r.DatabaseUser, &r.RequestID, &token,
		(*string)(&r.Cut.State), &cutToken, &leaseID, &r.Cut.Owner, &acquired, &expires)
	r.Token, r.Cut.Token = guard.Token(token), guard.Token(cutToken)
	r.Cut.Resource, r.Cut.LeaseID, r.Cut.AcquiredAt, r.Cut.ExpiresAt = r.Resource, of(leaseID), of(acquired), of(expires)
	r.Cut.lasted(r.At)
	return err
}

// lasted fills in how long a lease had been held, and would have lasted, at the
// moment at.
func (l *LeaseInfo) lasted(at time.Time) {
	if l.State == StateHeld && !at.IsZero() && !l.AcquiredAt.IsZero() {
		l.HeldFor, l.Remaining = max(0, at.Sub(l.AcquiredAt)), max(0, l.ExpiresAt.Sub(at))
	}
}

var _ explainer = (*postgres)(nil)

// forceUnlockedSQL says who ended a lease; no row, or a refusal, if nobody is
// known to have. $1 resource, $2 lease ID, $3 token.
const forceUnlockedSQL = `SELECT o_actor, o_reason, o_at FROM fencepost.force_unlocked($1::text, $2::text, $3::bigint) WHERE o_actor IS NOT NULL`

func (p *postgres) why(ctx context.Context, claim guard.Claim) (cause error) {
	err := p.on(ctx, p.own, whyTimeout, func(ctx context.Context, conn *pgx.Conn, _ string) error {
		var cut ForceUnlockedError
		err := conn.QueryRow(ctx, forceUnlockedSQL, claim.Resource, claim.LeaseID, int64(claim.Token)).Scan(&cut.Actor, &cut.Reason, &cut.At)
		cause = &cut
		return err
	})
	if err != nil {
		return nil // nobody, or it cannot be told
	}
	return cause
}
