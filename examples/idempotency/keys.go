package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost-go/fencepost/guard"
)

// Why a key does not let its request go on. None is stored.
var (
	errReused = errors.New("the key was used for another request")       // 422
	errBusy   = errors.New("a request with this key is being worked on") // 409
)

// abandoned is when the same holder may try again what it left unfinished:
// longer than a request can take.
const abandoned = 30 * time.Second

// saved is the answer to a finished request.
type saved struct {
	Status int
	Body   string
}

// fingerprint says what was asked for. The token is not in it: a successor
// that repeats its predecessor's request with the same key asks for the same.
func fingerprint(method, path, ifMatch string, body []byte) []byte {
	h := sha256.New()
	for _, part := range []string{method, path, ifMatch, string(body)} {
		fmt.Fprintf(h, "%d:%s", len(part), part)
	}
	return h.Sum(nil)
}

// querier is a pool or a transaction.
type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// replay looks for the answer to a finished request. It needs no token: the
// answer was given once, giving it again writes nothing, and a holder that
// lost it together with its lease has a right to know what happened.
func replay(ctx context.Context, q querier, tenant, key string, print []byte) (answer *saved, err error) {
	var stored []byte
	var status *int
	var body *string
	err = q.QueryRow(ctx, `SELECT fingerprint, status, body FROM idempotency_keys WHERE tenant = $1 AND key = $2`,
		tenant, key).Scan(&stored, &status, &body)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil, nil
	case err != nil:
		return nil, err
	case string(stored) != string(print):
		return nil, errReused
	case status == nil || body == nil:
		return nil, nil
	}
	return &saved{*status, *body}, nil
}

// reserve takes the key for a request that goes on. An unfinished key of
// a lower token is taken over: the fence has seen to it that its holder cannot
// finish any more. One of the same token is left to whoever works on it.
func reserve(ctx context.Context, tx pgx.Tx, tenant, key string, print []byte, claim guard.Claim) (attempt int, err error) {
	err = tx.QueryRow(ctx, `
INSERT INTO idempotency_keys AS k (tenant, key, fingerprint, token) VALUES ($1, $2, $3, $4)
ON CONFLICT (tenant, key) DO UPDATE SET token = excluded.token, attempt = k.attempt + 1, started_at = clock_timestamp()
WHERE k.status IS NULL AND k.fingerprint = excluded.fingerprint
  AND (k.token < excluded.token OR k.token = excluded.token AND k.started_at < clock_timestamp() - $5::interval)
RETURNING attempt`, tenant, key, print, int64(claim.Token), abandoned).Scan(&attempt)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, errBusy // or finished just now: the next look-up tells
	}
	return attempt, err
}

// finish stores the answer in the transaction of the work. That no row matches
// means that another attempt has taken the key: this one's work is rolled back.
func finish(ctx context.Context, tx pgx.Tx, tenant, key string, attempt int, answer saved) error {
	tag, err := tx.Exec(ctx, `UPDATE idempotency_keys SET status = $4, body = $5
WHERE tenant = $1 AND key = $2 AND attempt = $3 AND status IS NULL`, tenant, key, attempt, answer.Status, answer.Body)
	if err == nil && tag.RowsAffected() == 0 {
		return errBusy
	}
	return err
}

// giveUp frees the key of a request that was refused, so that it may be sent
// again: a refusal that was stored would be repeated for ever.
func giveUp(ctx context.Context, tx pgx.Tx, tenant, key string, attempt int) error {
	_, err := tx.Exec(ctx, `DELETE FROM idempotency_keys
WHERE tenant = $1 AND key = $2 AND attempt = $3 AND status IS NULL`, tenant, key, attempt)
	return err
}
