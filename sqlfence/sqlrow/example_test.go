package sqlrow_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/sqlfence/internal/scratch"
	"github.com/fencepost-go/fencepost/sqlfence/sqlrow"
)

func TestMain(m *testing.M) { scratch.Main(m) }

// A worker that was paused writes after its successor has.
func ExampleTable_Update() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	pool, done := scratch.Open(ctx)
	defer done()
	pool.Exec(ctx, `CREATE TABLE closes (tenant text PRIMARY KEY, status text NOT NULL DEFAULT 'open',
		last_fencing_token bigint NOT NULL DEFAULT 0)`)
	pool.Exec(ctx, `INSERT INTO closes (tenant) VALUES ('tenant_123')`)

	rows := sqlrow.Pgx(pool)
	name := guard.Must(guard.NewTemplate("{tenant}:close"))
	closes, err := sqlrow.NewTable([]string{"closes"}, []string{"tenant"}, name, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	b := guard.Claim{Resource: "tenant_123:close", Token: 11}
	fmt.Println("b:", closes.Update(ctx, rows, b, sqlrow.Key{"tenant_123"}, sqlrow.Set{"status": "closed"}))

	a := guard.Claim{Resource: "tenant_123:close", Token: 10}
	err = closes.Update(ctx, rows, a, sqlrow.Key{"tenant_123"}, sqlrow.Set{"status": "open"})
	fmt.Println("a:", err)
	fmt.Println(errors.Is(err, guard.ErrStale))
	other := guard.Claim{Resource: "tenant_124:close", Token: 12}
	fmt.Println(closes.Update(ctx, rows, other, sqlrow.Key{"tenant_123"}, sqlrow.Set{"status": "open"}))
	// Output:
	// b: <nil>
	// a: fencepost: stale fencing token: token 10 for "tenant_123:close", the mark is 11
	// true
	// fencepost: claim for another resource: the claim is for "tenant_124:close", this resource is "tenant_123:close"; name both by one guard.Template
}

// A new holder takes over before it reads: the old holder's later writes are
// refused from then on, so none of its acknowledged writes is lost.
func ExampleTable_Raise() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	pool, done := scratch.Open(ctx)
	defer done()
	pool.Exec(ctx, `CREATE TABLE cursors (feed text PRIMARY KEY, position bigint NOT NULL DEFAULT 0,
		last_fencing_token bigint NOT NULL DEFAULT 0)`)
	pool.Exec(ctx, `INSERT INTO cursors VALUES ('orders', 70, 10)`)

	rows := sqlrow.Pgx(pool)
	cursors, err := sqlrow.NewTable([]string{"cursors"}, []string{"feed"}, guard.Must(guard.NewTemplate("{feed}:cursor")), &sqlrow.TableOptions{Rule: guard.SameOrNewer})
	if err != nil {
		fmt.Println(err)
		return
	}
	orders := sqlrow.Key{"orders"}
	a := guard.Claim{Resource: "orders:cursor", Token: 10}
	b := guard.Claim{Resource: "orders:cursor", Token: 11}

	var position int64
	fmt.Println("b takes over:", cursors.Raise(ctx, rows, b, orders, sqlrow.Dest{"position": &position}), position)
	err = cursors.Update(ctx, rows, a, orders, sqlrow.Set{"position": 75})
	fmt.Println("a writes, stale:", errors.Is(err, guard.ErrStale))
	fmt.Println("b writes:", cursors.Update(ctx, rows, b, orders, sqlrow.Set{"position": position + 10}))
	// Output:
	// b takes over: <nil> 70
	// a writes, stale: true
	// b writes: <nil>
}

// A row that may not exist yet. Once it is there it is never deleted, so that its
// mark stays: no older holder brings it back.
func ExampleTable_Upsert() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	pool, done := scratch.Open(ctx)
	defer done()
	pool.Exec(ctx, `CREATE TABLE sessions (id text PRIMARY KEY, node text, ended boolean NOT NULL DEFAULT false,
		last_fencing_token bigint NOT NULL DEFAULT 0)`)

	rows := sqlrow.Pgx(pool)
	sessions, err := sqlrow.NewTable([]string{"sessions"}, []string{"id"}, guard.Must(guard.NewTemplate("session:{id}")), nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	at := func(token guard.Token) guard.Claim { return guard.Claim{Resource: "session:s1", Token: token} }
	s1 := sqlrow.Key{"s1"}
	fmt.Println("10:", sessions.Upsert(ctx, rows, at(10), s1, sqlrow.Set{"node": "a"}))
	fmt.Println("12:", sessions.Update(ctx, rows, at(12), s1, sqlrow.Set{"node": nil, "ended": true}))
	fmt.Println("11:", sessions.Upsert(ctx, rows, at(11), s1, sqlrow.Set{"node": "a"}))
	// Output:
	// 10: <nil>
	// 12: <nil>
	// 11: fencepost: stale fencing token: token 11 for "session:s1", the mark is 12
}
