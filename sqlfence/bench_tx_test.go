package sqlfence

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

// writeRow is a statement of a transaction.
func writeRow(client, i int) func(ctx context.Context, tx testTx) error {
	return running("UPDATE jobs SET v = $2 WHERE id = $1", client, i)
}

// BenchmarkEnter: the user's own transaction with Enter in it against the same
// without. Each client has its own resource, because Enter writes its mark.
func BenchmarkEnter(b *testing.B) {
	benchmark(b, func(b *testing.B, e *env, db fence, clients int) {
		claims := make([]guard.Claim, clients)
		for i := range claims {
			claims[i] = claimOf("job:"+itoa(i), 5)
			must(b, db.Raise(b.Context(), claims[i]))
		}
		paired(b, clients, func(client, i int) error {
			return entering(db)(b.Context(), claims[client], writeRow(client, i))
		}, func(client, i int) error { return db.plain(b.Context(), writeRow(client, i)) })
	})
}

// BenchmarkRaise: how long a raise takes while 32 clients of the older holder
// run one transaction after another, and continue under the new token after it.
func BenchmarkRaise(b *testing.B) {
	server, err := benchServer()
	if err != nil {
		b.Fatal(err)
	}
	for i := range openers {
		b.Run(openers[i].driver, func(b *testing.B) {
			url, drop, err := server.NewDatabase(b.Context())
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() { drop() })
			e := newEnvAt(b, i, url)
			e.exec("CREATE TABLE jobs (id int PRIMARY KEY, v bigint NOT NULL DEFAULT 0) WITH (fillfactor = 50); INSERT INTO jobs SELECT generate_series(0, 31)")
			var token atomic.Int64
			token.Store(1)
			ctx, stop := context.WithCancel(b.Context())
			var sharers sync.WaitGroup
			for client := range 32 {
				sharers.Go(func() {
					for i := 0; ctx.Err() == nil; i++ {
						err := e.db.fenced(ctx, claimOf("jobs", guard.Token(token.Load())), writeRow(client, i))
						if err != nil && !errors.Is(err, guard.ErrStale) && ctx.Err() == nil {
							b.Error(err)
							return
						}
					}
				})
			}
			time.Sleep(200 * time.Millisecond)
			var took []time.Duration
			for b.Loop() {
				start := time.Now()
				must(b, e.db.Raise(b.Context(), claimOf("jobs", guard.Token(token.Load()+1))))
				took = append(took, time.Since(start))
				token.Add(1)
				time.Sleep(5 * time.Millisecond)
			}
			stop()
			sharers.Wait()
			slices.Sort(took)
			for unit, at := range map[string]int{"p50-ms": len(took) / 2, "p90-ms": len(took) * 90 / 100, "p99-ms": len(took) * 99 / 100, "max-ms": len(took) - 1} {
				b.ReportMetric(float64(took[at].Microseconds())/1000, unit)
			}
			b.ReportMetric(0, "ns/op") // with the pauses: means nothing
		})
	}
}
