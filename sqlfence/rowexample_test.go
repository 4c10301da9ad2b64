package sqlfence_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/sqlfence"
)

// A new holder takes over before it reads: the old holder's later writes are
// refused from then on, so none of its acknowledged writes is lost.
func ExampleTable_Takeover() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	pool, done := open(ctx)
	defer done()
	pool.Exec(ctx, `CREATE TABLE cursors (feed text PRIMARY KEY, position bigint NOT NULL DEFAULT 0,
		last_fencing_token bigint NOT NULL DEFAULT 0)`)
	pool.Exec(ctx, `INSERT INTO cursors VALUES ('orders', 70, 10)`)

	db, err := sqlfence.Pgx(pool, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	cursors, err := sqlfence.NewTable([]string{"cursors"}, []string{"feed"}, guard.Must(guard.NewTemplate("{feed}:cursor")), &sqlfence.TableOptions{Rule: guard.SameOrNewer})
	if err != nil {
		fmt.Println(err)
		return
	}
	orders := sqlfence.Key{"orders"}
	a := guard.Claim{Resource: "orders:cursor", Token: 10}
	b := guard.Claim{Resource: "orders:cursor", Token: 11}

	var position int64
	fmt.Println("b takes over:", cursors.Takeover(ctx, db, b, orders, sqlfence.Dest{"position": &position}), position)
	err = cursors.Update(ctx, db, a, orders, sqlfence.Set{"position": 75})
	fmt.Println("a writes, stale:", errors.Is(err, guard.ErrStale))
	fmt.Println("b writes:", cursors.Update(ctx, db, b, orders, sqlfence.Set{"position": position + 10}))
	// Output:
	// b takes over: <nil> 70
	// a writes, stale: true
	// b writes: <nil>
}

// A row that may not exist yet, and one that must not come back.
func ExampleTable_Upsert() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	pool, done := open(ctx)
	defer done()
	pool.Exec(ctx, `CREATE TABLE sessions (id text PRIMARY KEY, node text, deleted_at timestamptz,
		last_fencing_token bigint NOT NULL DEFAULT 0)`)

	db, err := sqlfence.Pgx(pool, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	sessions, err := sqlfence.NewTable([]string{"sessions"}, []string{"id"}, guard.Must(guard.NewTemplate("session:{id}")), &sqlfence.TableOptions{DeletedColumn: "deleted_at"})
	if err != nil {
		fmt.Println(err)
		return
	}
	at := func(token guard.Token) guard.Claim { return guard.Claim{Resource: "session:s1", Token: token} }
	s1 := sqlfence.Key{"s1"}
	fmt.Println("10:", sessions.Upsert(ctx, db, at(10), s1, sqlfence.Set{"node": "a"}))
	fmt.Println("12:", sessions.Delete(ctx, db, at(12), s1, sqlfence.Set{"node": nil}))
	fmt.Println("11:", sessions.Upsert(ctx, db, at(11), s1, sqlfence.Set{"node": "a"}))
	// Output:
	// 10: <nil>
	// 12: <nil>
	// 11: fencepost: stale fencing token: token 11 for "session:s1", the mark is 12
}
