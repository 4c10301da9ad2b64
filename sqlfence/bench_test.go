package sqlfence

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/sqlfence/sqlrow"
)

// benchServer waits for the disk, as a production server does.
var benchServer = sync.OnceValues(func() (*pgtest.Server, error) {
	return pgtest.Start(context.Background(), &pgtest.Options{Durable: true})
})

// paired runs b.N operations of each of two kinds in alternating small blocks,
// so that other load on the machine affects both equally, and reports the
// throughput of fenced as a ratio of floor's, and the time of each.
func paired(b *testing.B, clients int, fenced, floor func(client, i int) error) {
	kinds := [2]func(client, i int) error{fenced, floor}
	const block = 24
	var took [2][]float64 // microseconds an operation, by block
	var ops [2]int
	run := func(kind int) {
		start := time.Now()
		var wg sync.WaitGroup
		for client := range clients {
			wg.Go(func() {
				for i := range block {
					if err := kinds[kind](client, ops[kind]+i); err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
		took[kind] = append(took[kind], float64(time.Since(start).Nanoseconds())/1000/float64(block*clients))
		ops[kind] += block
	}
	run(0) // statements are prepared and connections opened
	run(1)
	took[0], took[1] = nil, nil
	for round := 0; b.Loop(); round++ {
		if round%(block*clients) != 0 { // one iteration is one operation of each
			continue
		}
		first := round / (block * clients) % 2
		run(first)
		run(1 - first)
	}
	// The median, because one block during a checkpoint would outweigh the
	// rest.
	for kind := range took {
		slices.Sort(took[kind])
	}
	mine, theirs := took[0][len(took[0])/2], took[1][len(took[1])/2]
	b.ReportMetric(theirs/mine, "ratio")
	b.ReportMetric(mine, "fenced-us/op")
	b.ReportMetric(theirs, "floor-us/op")
	b.ReportMetric(0, "ns/op") // of both together, which means nothing
}

// benchmark runs a benchmark for both drivers, one client and sixteen, with
// synchronous_commit on and off.
func benchmark(b *testing.B, run func(b *testing.B, e *env, db fence, clients int)) {
	server, err := benchServer()
	if err != nil {
		b.Fatal(err)
	}
	for i := range openers {
		for _, commit := range []string{"on", "off"} {
			for _, clients := range []int{1, 16} {
				b.Run(fmt.Sprintf("%s/synchronous_commit=%s/clients=%d", openers[i].driver, commit, clients), func(b *testing.B) {
					url, drop, err := server.NewDatabase(b.Context())
					if err != nil {
						b.Fatal(err)
					}
					b.Cleanup(func() { drop() })
					e := newEnvAt(b, i, url)
					e.exec(`CREATE TABLE jobs (id int PRIMARY KEY, v bigint NOT NULL DEFAULT 0, last_fencing_token bigint NOT NULL DEFAULT 0) WITH (fillfactor = 50)`)
					e.exec("INSERT INTO jobs SELECT generate_series(0, $1::int - 1)", clients)
					run(b, e, e.serverDefault("synchronous_commit", commit), clients)
				})
			}
		}
	}
}

// BenchmarkUpdate: the fenced single statement against the same UPDATE without
// a fence, each client on a row of its own.
func BenchmarkUpdate(b *testing.B) {
	benchmark(b, func(b *testing.B, e *env, db fence, clients int) {
		table, err := sqlrow.NewTable([]string{"jobs"}, []string{"id"}, guard.Must(guard.NewTemplate("job:{id:int}")), nil)
		if err != nil {
			b.Fatal(err)
		}
		resources := make([]string, clients)
		for i := range resources {
			resources[i] = fmt.Sprint("job:", i)
		}
		paired(b, clients, func(client, i int) error {
			claim := guard.Claim{Resource: resources[client], Token: guard.Token(i + 1)}
			return table.Update(b.Context(), db, claim, Key{client}, Set{"v": i})
		}, func(client, i int) error {
			return db.unfenced(b.Context(), "UPDATE jobs SET v = $2 WHERE id = $1", client, i)
		})
	})
}

// BenchmarkInTx: a fenced transaction of one statement against the user's own
// BEGIN, UPDATE, COMMIT. All clients are one holder on one resource.
func BenchmarkInTx(b *testing.B) {
	benchmark(b, func(b *testing.B, e *env, db fence, clients int) {
		claim := claimOf("jobs", 5)
		must(b, db.Raise(b.Context(), claim))
		write := func(client, i int) func(ctx context.Context, tx testTx) error {
			return running("UPDATE jobs SET v = $2 WHERE id = $1", client, i)
		}
		paired(b, clients, func(client, i int) error { return db.fenced(b.Context(), claim, write(client, i)) },
			func(client, i int) error { return db.plain(b.Context(), write(client, i)) })
	})
}
