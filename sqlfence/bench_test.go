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
	must(b, err)
	for i := range openers {
		for _, commit := range []string{"on", "off"} {
			for _, clients := range []int{1, 16} {
				b.Run(fmt.Sprintf("%s/synchronous_commit=%s/clients=%d", openers[i].driver, commit, clients), func(b *testing.B) {
					url, drop, err := server.NewDatabase(b.Context())
					must(b, err)
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

// BenchmarkFenced: what fencing adds to one client and to sixteen, each on a row of
// its own: single statements, and transactions of one statement. DB.InTx is measured
// by internal/suites/bench. With synchronous_commit=off a takeover waits for the disk
// all the same, and the statement beside it does not.
func BenchmarkFenced(b *testing.B) {
	type kind = func(client, i int) error
	const update = "UPDATE jobs SET v = $2 WHERE id = $1"
	for name, pair := range map[string]func(b *testing.B, e *env, db fence, table *Table, claim func(client, i int) guard.Claim) (fenced, floor kind){
		"Update": func(b *testing.B, e *env, db fence, table *Table, claim func(client, i int) guard.Claim) (fenced, floor kind) {
			return func(client, i int) error {
					return table.Update(b.Context(), db, claim(client, i), Key{client}, Set{"v": i})
				}, func(client, i int) error {
					return db.unfenced(b.Context(), update, client, i)
				}
		},
		"Upsert": func(b *testing.B, e *env, db fence, table *Table, claim func(client, i int) guard.Claim) (fenced, floor kind) {
			return func(client, i int) error {
					return table.Upsert(b.Context(), db, claim(client, i), Key{client}, Set{"v": i})
				}, func(client, i int) error {
					return db.unfenced(b.Context(), "INSERT INTO jobs (id, v) VALUES ($1, $2) ON CONFLICT (id) DO UPDATE SET v = EXCLUDED.v", client, i)
				}
		},
		"Table.Raise": func(b *testing.B, e *env, db fence, table *Table, claim func(client, i int) guard.Claim) (fenced, floor kind) {
			return func(client, i int) error {
					return table.Raise(b.Context(), db, claim(client, i), Key{client}, Dest{"v": new(int64)})
				}, func(client, i int) error {
					_, err := db.row(b.Context(), update+" RETURNING v", []any{client, i}, new(int64))
					return err
				}
		},
		"Enter": func(b *testing.B, e *env, db fence, table *Table, _ func(client, i int) guard.Claim) (fenced, floor kind) {
			return func(client, i int) error { // a resource each, because Enter writes its mark
					return entering(db)(b.Context(), claimOf("job:"+itoa(client), 5), running(update, client, i))
				}, func(client, i int) error {
					return db.plain(b.Context(), running(update, client, i))
				}
		},
		"trigger": func(b *testing.B, e *env, db fence, table *Table, _ func(client, i int) guard.Claim) (fenced, floor kind) {
			e.exec("CREATE TABLE guarded (id int PRIMARY KEY, v bigint NOT NULL) WITH (fillfactor = 50); INSERT INTO guarded SELECT id, v FROM jobs")
			e.guardBy("guarded", "jobs")
			presenting, claim := e.open(nil), claimOf("jobs", 5)
			return func(client, i int) error {
					return presenting.fenced(b.Context(), claim, running("UPDATE guarded SET v = $2 WHERE id = $1", client, i))
				}, func(client, i int) error {
					return db.fenced(b.Context(), claim, running(update, client, i))
				}
		},
	} {
		b.Run(name, func(b *testing.B) {
			benchmark(b, func(b *testing.B, e *env, db fence, clients int) {
				resources := make([]string, clients)
				for i := range resources {
					resources[i] = "job:" + itoa(i)
				}
				fenced, floor := pair(b, e, db, e.table("jobs", []string{"id"}, &TableOptions{Rule: guard.SameOrNewer}), func(client, i int) guard.Claim {
					return guard.Claim{Resource: resources[client], Token: guard.Token(i + 1)}
				})
				paired(b, clients, fenced, floor)
			})
		})
	}
}
