package sqlfence_test

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/sqlfence"
	"github.com/fencepost-go/fencepost/sqlfence/internal/scratch"
	"github.com/fencepost-go/fencepost/sqlfence/sqladmin"
)

// message is what any broker's client delivers.
type message struct {
	ID      string
	Account string
	Cents   int64
	Headers headers
}

// headers are a broker's. Brokers allow a key more than once, and get returns all its
// values: two tokens are refused; none is picked.
type headers []struct{ Key, Value string }

func (h *headers) get(key string) (values []string) {
	for _, kv := range *h {
		if kv.Key == key {
			values = append(values, kv.Value)
		}
	}
	return values
}

func (h *headers) set(key, value string) {
	kept := (*h)[:0]
	for _, kv := range *h {
		if kv.Key != key {
			kept = append(kept, kv)
		}
	}
	*h = append(kept, struct{ Key, Value string }{key, value})
}

// produce puts the producer's claim into a message: the producer holds the
// lease and decides; the consumer writes.
func produce(id string, cents int64, account string, claim guard.Claim) (message, error) {
	m := message{ID: id, Account: account, Cents: cents}
	err := guard.Inject(claim, m.Headers.set)
	return m, err
}

// verdict says what to do with a message.
type verdict string

const (
	acknowledge verdict = "acknowledge"       // done
	drop        verdict = "acknowledge, drop" // never to be done: its holder was succeeded
	deadLetter  verdict = "dead-letter"       // needs a person
	redeliver   verdict = "redeliver"         // later
	halt        verdict = "keep, and stop"    // the consumer needs a person, not the message
)

// verdictOf is the table. A stale message must not be redelivered: it stays
// stale and would loop forever. Use dead-letter instead of drop if somebody
// should inspect the work of holders that were cut off.
func verdictOf(err error) verdict {
	switch guard.ReasonOf(err) {
	case guard.ReasonNone, guard.ReasonSpent: // spent: this token has already written
		return acknowledge
	case guard.ReasonStale, guard.ReasonLeaseLost:
		return drop
	case guard.ReasonUnavailable, guard.ReasonOutcomeUnknown:
		// Redelivery after an unknown outcome is safe only because the message's
		// ID is stored with its work.
		return redeliver
	case guard.ReasonSetup:
		// A missing right or schema fails for every message: to dead-letter them
		// would empty the queue, to redeliver them would not end.
		return halt
	}
	// Conflict and mark_ahead mean a broken issuer; invalid, missing, misdirected,
	// not_found and unfenced a broken message; other a bug.
	return deadLetter
}

// accounts names what is fenced, also for the workers that hold the leases.
var accounts = guard.Must(guard.NewTemplate("account:{id}"))

// consumer applies messages to accounts.
type consumer struct{ db *sqlfence.DB[pgx.Tx] }

// consume applies m once. The resource is derived from what is written. A
// message that names another is an error, and its token means nothing.
func (c *consumer) consume(ctx context.Context, m message) error {
	resource, err := accounts.Name(m.Account)
	if err != nil {
		return err
	}
	claim, err := guard.Extract(resource, m.Headers.get)
	if err != nil {
		return err
	}
	return c.db.InTx(ctx, claim, func(ctx context.Context, tx pgx.Tx) error { return apply(ctx, tx, m) })
}

// apply does the work and records that it is done, in one transaction.
func apply(ctx context.Context, tx pgx.Tx, m message) error {
	tag, err := tx.Exec(ctx, `INSERT INTO consumed (id) VALUES ($1) ON CONFLICT DO NOTHING`, m.ID)
	if err != nil || tag.RowsAffected() == 0 { // delivered again: already done
		return err
	}
	tag, err = tx.Exec(ctx, `UPDATE accounts SET cents = cents + $2 WHERE id = $1`, m.Account, m.Cents)
	if err == nil && tag.RowsAffected() == 0 {
		err = fmt.Errorf("account %q: %w", m.Account, guard.ErrNotFound)
	}
	return err
}

const consumerSchema = `CREATE TABLE accounts (id text PRIMARY KEY, cents bigint NOT NULL);
	CREATE TABLE consumed (id text PRIMARY KEY);
	INSERT INTO accounts VALUES ('acme', 0)`

// A claim travels in a message's headers, and the consumer's write is fenced by it. A stale
// message is acknowledged and dropped.
func ExampleDB_InTx_consumer() {
	ctx := context.Background()
	pool, done := scratch.Open(ctx)
	defer done()
	c := &consumer{guard.Must(sqlfence.Pgx(pool, nil))}
	if err := sqladmin.Pgx(pool).Migrate(ctx); err != nil {
		fmt.Println(err)
	}
	pool.Exec(ctx, consumerSchema)

	// The producer with token 10 is cut off; its last message is late.
	old := guard.Claim{Resource: "account:acme", Token: 10, LeaseID: "a"}
	now := guard.Claim{Resource: "account:acme", Token: 11, LeaseID: "b"}
	for _, m := range []message{
		guard.Must(produce("m1", 100, "acme", old)),
		guard.Must(produce("m2", 10, "acme", now)),
		guard.Must(produce("m2", 10, "acme", now)), // delivered again
		guard.Must(produce("m3", 1, "acme", old)),  // late
		{ID: "m4", Account: "acme", Cents: 5},
	} {
		fmt.Println(m.ID, verdictOf(c.consume(ctx, m)))
	}
	var cents int64
	err := pool.QueryRow(ctx, "SELECT cents FROM accounts").Scan(&cents)
	fmt.Println("the account is at", cents, err)
	// Output:
	// m1 acknowledge
	// m2 acknowledge
	// m2 acknowledge
	// m3 acknowledge, drop
	// m4 dead-letter
	// the account is at 110 <nil>
}
