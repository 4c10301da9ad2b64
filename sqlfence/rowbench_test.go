package sqlfence

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost-go/fencepost/guard"
)

// claimsOf returns the claims of some clients, with future tokens.
func claimsOf(clients int) func(client, i int) guard.Claim {
	resources := make([]string, clients)
	for i := range resources {
		resources[i] = fmt.Sprint("job:", i)
	}
	return func(client, i int) guard.Claim {
		return guard.Claim{Resource: resources[client], Token: guard.Token(i + 1)}
	}
}

// BenchmarkUpdateHot: all clients are one holder on one row, against the same
// UPDATE without a fence.
func BenchmarkUpdateHot(b *testing.B) {
	benchmark(b, func(b *testing.B, e *env, db fence, clients int) {
		table, claim := e.table("jobs", []string{"id"}, &TableOptions{Rule: guard.SameOrNewer}), claimOf("job:0", 5)
		paired(b, clients, func(_, i int) error {
			return table.Update(b.Context(), db, claim, Key{0}, Set{"v": i})
		}, func(_, i int) error {
			return db.unfenced(b.Context(), "UPDATE jobs SET v = $2 WHERE id = $1", 0, i)
		})
	})
}

// BenchmarkStale: a refused write, which makes two queries but writes nothing,
// against an UPDATE without a fence.
func BenchmarkStale(b *testing.B) {
	benchmark(b, func(b *testing.B, e *env, db fence, clients int) {
		e.exec("UPDATE jobs SET last_fencing_token = 9")
		table, claim := e.table("jobs", []string{"id"}, nil), claimOf("job", 5)
		paired(b, clients, func(client, i int) error {
			if err := table.Update(b.Context(), db, claim, Key{client}, Set{"v": i}); !errors.Is(err, guard.ErrStale) {
				return fmt.Errorf("the refused write: %v", err)
			}
			return nil
		}, func(client, i int) error {
			return db.unfenced(b.Context(), "UPDATE jobs SET v = $2 WHERE id = $1", client, i)
		})
	})
}

// BenchmarkTakeover: against an UPDATE of another column ... RETURNING. With
// synchronous_commit=off the takeover waits for the disk all the same, and
// the UPDATE does not.
func BenchmarkTakeover(b *testing.B) {
	benchmark(b, func(b *testing.B, e *env, db fence, clients int) {
		e.exec("ALTER TABLE jobs ADD n bigint")
		table, claim := e.table("jobs", []string{"id"}, &TableOptions{Rule: guard.SameOrNewer}), claimsOf(clients)
		paired(b, clients, func(client, i int) error {
			var v int64
			return table.Takeover(b.Context(), db, claim(client, i), Key{client}, Dest{"v": &v})
		}, func(client, i int) error {
			var v int64
			_, err := db.row(b.Context(), "UPDATE jobs SET n = $2 WHERE id = $1 RETURNING v", []any{client, i}, &v)
			return err
		})
	})
}

// BenchmarkUpsert: existing rows, against the same without a fence.
func BenchmarkUpsert(b *testing.B) {
	benchmark(b, func(b *testing.B, e *env, db fence, clients int) {
		table, claim := e.table("jobs", []string{"id"}, nil), claimsOf(clients)
		paired(b, clients, func(client, i int) error {
			return table.Upsert(b.Context(), db, claim(client, i), Key{client}, Set{"v": i})
		}, func(client, i int) error {
			return db.unfenced(b.Context(), "INSERT INTO jobs (id, v) VALUES ($1, $2) ON CONFLICT (id) DO UPDATE SET v = EXCLUDED.v", client, i)
		})
	})
}

// BenchmarkUpdateMany: 100 rows, each client its own, against one UPDATE of
// the same rows from a VALUES list without a fence ("values"), and, on pgx,
// against a batch of 100 UPDATEs in one round trip ("batch").
func BenchmarkUpdateMany(b *testing.B) {
	const size = 100
	var one strings.Builder
	one.WriteString("UPDATE jobs SET v = i.v FROM (VALUES ($1::int, $2::bigint)")
	for i := 1; i < size; i++ {
		fmt.Fprintf(&one, ", ($%d, $%d)", 2*i+1, 2*i+2)
	}
	one.WriteString(") AS i (id, v) WHERE jobs.id = i.id")
	values := func(b *testing.B, db fence, client, i int) error {
		args := make([]any, 0, 2*size)
		for k := range size {
			args = append(args, client*size+k, i)
		}
		return db.unfenced(b.Context(), one.String(), args...)
	}
	batch := func(b *testing.B, db fence, client, i int) error {
		queue := &pgx.Batch{}
		for k := range size {
			queue.Queue("UPDATE jobs SET v = $2 WHERE id = $1", client*size+k, i)
		}
		return db.(pgxFence).pool.SendBatch(context.Background(), queue).Close()
	}
	for name, floor := range map[string]func(b *testing.B, db fence, client, i int) error{"values": values, "batch": batch} {
		b.Run(name, func(b *testing.B) {
			benchmark(b, func(b *testing.B, e *env, db fence, clients int) {
				if _, ok := db.(pgxFence); !ok && name == "batch" {
					b.ReportMetric(0, "ns/op") // database/sql has no batches
					return
				}
				e.exec("INSERT INTO jobs SELECT generate_series($1::int, $2::int - 1)", clients, clients*size)
				table, claim := e.table("jobs", []string{"id"}, nil), claimsOf(clients)
				paired(b, clients, func(client, i int) error {
					writes := make([]RowUpdate, size)
					for k := range writes {
						writes[k] = RowUpdate{claim(client, i), Key{client*size + k}, Set{"v": i}}
					}
					_, err := table.UpdateMany(b.Context(), db, writes)
					return err
				}, func(client, i int) error { return floor(b, db, client, i) })
			})
		})
	}
}
