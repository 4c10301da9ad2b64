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

// Reasons why a key stops its request. None is stored.
var (
	errReused = errors.New("the key was used for another request")       // 422
	errBusy   = errors.New("a request with this key is being worked on") // 409
)

// abandoned is the age after which the same holder may retry what it left
// unfinished: longer than a request can take.
const abandoned = 30 * time.Second

// saved is the response to a finished request.
type saved struct {
	Status int
	Body   string
}

// fingerprint identifies a request. It excludes the token: a successor that
// repeats its predecessor's request with the same key asks for the same.
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

// replay looks up the response to a finished request. It needs no token: the
// response was sent once, repeating it writes nothing, and a holder that lost it
// together with its lease has a right to know what happened.
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

// reserve takes the key for a request that goes on. It takes over an unfinished
// key of a lower token: the fence ensures that its holder can no longer finish.
// It leaves one of the same token to the request that works on it.
func reserve(ctx context.Context, tx pgx.Tx, tenant, key string, print []byte, claim guard.Claim) (attempt int, err error) {
	err = tx.QueryRow(ctx, `
INSERT INTO idempotency_keys AS k (tenant, key, fingerprint, token) VALUES ($1, $2, $3, $4)
ON CONFLICT (tenant, key) DO UPDATE SET token = excluded.token, attempt = k.attempt + 1, started_at = clock_timestamp()
WHERE k.status IS NULL AND k.fingerprint = excluded.fingerprint
  AND (k.token < excluded.token OR k.token = excluded.token AND k.started_at < clock_timestamp() - $5::interval)
RETURNING attempt`, tenant, key, print, int64(claim.Token), abandoned).Scan(&attempt)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, errBusy // or just finished: the next look-up shows
	}
	return attempt, err
}

// finish stores the response in the transaction of the work. If no row matches,
// another attempt has taken the key, and this one's work is rolled back.
func finish(ctx context.Context, tx pgx.Tx, tenant, key string, attempt int, answer saved) error {
	tag, err := tx.Exec(ctx, `UPDATE idempotency_keys SET status = $4, body = $5
WHERE tenant = $1 AND key = $2 AND attempt = $3 AND status IS NULL`, tenant, key, attempt, answer.Status, answer.Body)
	if err == nil && tag.RowsAffected() == 0 {
		return errBusy
	}
	return err
}

// giveUp frees the key of a refused request, so that it may be sent again: a
// stored refusal would be repeated forever.
func giveUp(ctx context.Context, tx pgx.Tx, tenant, key string, attempt int) error {
	_, err := tx.Exec(ctx, `DELETE FROM idempotency_keys
WHERE tenant = $1 AND key = $2 AND attempt = $3 AND status IS NULL`, tenant, key, attempt)
	return err
}
