package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/sqlfence"
)

var perCall = []string{"a second", "p50 µs", "p99 µs"}

// cost compares each surface, fenced, with the same work unfenced.
var cost = []experiment{
	{name: "statement", title: "A single fenced statement", columns: perCall, run: costStatement, plot: plotRatios,
		about: "`Table.Update` against the same prepared UPDATE without a fence. With distinct rows each client writes its own row, each write under a higher token; with one hot row all write the same, as one holder does."},
	{name: "transaction", title: "A fenced transaction", columns: perCall, run: costTransaction, plot: plotRatios,
		about: "`DB.InTx` with one UPDATE against the user's own BEGIN, UPDATE, COMMIT. All clients are one holder on one resource, each with its own row."},
	{name: "trigger", title: "Triggers", columns: perCall, run: costTrigger, plot: plotRatios,
		about: "A fenced transaction that updates 1 or 1,000 rows of a table under triggers, against the same on a table without."},
	{name: "http", title: "HTTP", columns: perCall, run: costHTTP, plot: plotRatios,
		about: "A chi route with a guard against the bare route. \"In process\" calls the router without a connection; \"by hand\" is the least that compares: two header fields, one parse, a map under a lock. InTx is a handler with one UPDATE behind `Middleware.InTx` against the same handler with its own transaction."},
	{name: "s3", title: "S3 objects", columns: perCall, run: costS3, plot: plotRatios,
		about: "A fenced PUT against a bare PUT of the same body, on versitygw 1.8.0, a process with a file system. The sealed modes hold the body in memory; gzip compresses it first, and half of the body here is random. Plain is declared as `BodiesNeverRepeat`, since this store's ETags are hashes."},
}

// scene is a database with one table of jobs.
type scene struct {
	pool *pgxpool.Pool
	db   *sqlfence.DB[pgx.Tx]
	jobs *sqlfence.Table
}

const (
	update = "UPDATE jobs SET v = $2 WHERE id = $1"
	rows   = 100 // one for each client
)

func (e *env) scene(ctx context.Context, durable bool, roundTrip time.Duration, rule guard.Rule) (*scene, error) {
	url, err := e.database(ctx, durable)
	if err != nil {
		return nil, err
	}
	x := &scene{}
	if x.pool, err = e.pool(ctx, url, 16, roundTrip); err != nil {
		return nil, err
	}
	if x.db, err = sqlfence.Pgx(x.pool, nil); err != nil {
		return nil, err
	}
	if err := x.db.Migrate(ctx); err != nil {
		return nil, err
	}
	x.jobs, err = sqlfence.NewTable([]string{"jobs"}, []string{"id"}, guard.Must(guard.NewTemplate("job:{id:int}")), &sqlfence.TableOptions{Rule: rule})
	if err != nil {
		return nil, err
	}
	return x, execute(ctx, x.pool,
		"CREATE TABLE jobs (id int PRIMARY KEY, v bigint NOT NULL DEFAULT 0, last_fencing_token bigint NOT NULL DEFAULT 0) WITH (fillfactor = 50)",
		fmt.Sprintf("INSERT INTO jobs SELECT generate_series(0, %d)", rows-1), "VACUUM ANALYZE jobs")
}

// setting is one combination of server and network.
type setting struct {
	durable   bool
	roundTrip time.Duration
	clients   int
}

func (c setting) String() string {
	commit := commits(c.durable)
	if c.roundTrip > 0 {
		commit += fmt.Sprintf(", network of %d ms", c.roundTrip.Milliseconds())
	}
	return commit + ", " + count(c.clients, "client")
}

// each runs a comparison in every setting, with a database for each of the
// servers and networks; in a short run in one setting.
func (e *env) each(ctx context.Context, clients []int, rule guard.Rule, f func(x *scene, c setting) error) error {
	for _, durable := range []bool{true, false} {
		for _, roundTrip := range []time.Duration{0, time.Millisecond} {
			if e.short && (durable || roundTrip > 0) {
				continue
			}
			err := e.part(func() error {
				x, err := e.scene(ctx, durable, roundTrip, rule)
				if err != nil {
					return err
				}
				for _, n := range clients {
					if e.short && n != 16 {
						continue
					}
					if err := f(x, setting{durable, roundTrip, n}); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// timed makes a Do of a function whose call is what is timed.
func timed(f func(ctx context.Context, client, i int) error) func(context.Context, int, int) (time.Duration, error) {
	return func(ctx context.Context, client, i int) (time.Duration, error) { return 0, f(ctx, client, i) }
}

// costPlan is how the comparisons of this suite run.
func (e *env) costPlan(clients int) Plan {
	return Plan{Clients: clients, Block: 60 * time.Millisecond, Rounds: e.rounds(12)}
}

func costStatement(ctx context.Context, e *env, s *Section) error {
	for _, hot := range []bool{false, true} {
		rule, what := guard.OncePerToken, "distinct rows"
		if hot {
			rule, what = guard.SameOrNewer, "one hot row"
		}
		err := e.each(ctx, []int{1, 16, 64}, rule, func(x *scene, c setting) error {
			resources := make([]string, c.clients)
			base := make([]guard.Token, c.clients) // above what the earlier settings have written
			for i := range resources {
				resources[i] = fmt.Sprint("job:", i)
				if err := x.pool.QueryRow(ctx, "SELECT last_fencing_token + 1 FROM jobs WHERE id = $1", i).Scan(&base[i]); err != nil {
					return err
				}
			}
			row := func(client int) int {
				if hot {
					return 0
				}
				return client
			}
			figures, err := Compare(ctx, e.costPlan(c.clients),
				Way{Name: "UPDATE", Do: timed(func(ctx context.Context, client, i int) error {
					_, err := x.pool.Exec(ctx, update, row(client), i)
					return err
				})},
				Way{Name: "Table.Update", Do: timed(func(ctx context.Context, client, i int) error {
					claim := guard.Claim{Resource: resources[row(client)], Token: base[row(client)]}
					if !hot {
						claim.Token += guard.Token(i)
					}
					return x.jobs.Update(ctx, x.db, claim, sqlfence.Key{row(client)}, sqlfence.Set{"v": i})
				})})
			if err != nil {
				return err
			}
			s.add(what+", "+c.String(), figures)
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// inTx is the user's own transaction of one UPDATE.
func inTx(ctx context.Context, pool *pgxpool.Pool, work func(tx pgx.Tx) error) error {
	return pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite}, work)
}

func costTransaction(ctx context.Context, e *env, s *Section) error {
	claim := guard.Claim{Resource: "jobs", Token: 5}
	return e.each(ctx, []int{1, 16, 64}, guard.SameOrNewer, func(x *scene, c setting) error {
		if err := x.db.Raise(ctx, claim); err != nil {
			return err
		}
		figures, err := Compare(ctx, e.costPlan(c.clients),
			Way{Name: "BEGIN, UPDATE, COMMIT", Do: timed(func(ctx context.Context, client, i int) error {
				return inTx(ctx, x.pool, func(tx pgx.Tx) error {
					_, err := tx.Exec(ctx, update, client, i)
					return err
				})
			})},
			Way{Name: "DB.InTx", Do: timed(func(ctx context.Context, client, i int) error {
				return x.db.InTx(ctx, claim, func(ctx context.Context, tx pgx.Tx) error {
					_, err := tx.Exec(ctx, update, client, i)
					return err
				})
			})})
		if err == nil {
			s.add(c.String(), figures)
		}
		return err
	})
}

func costTrigger(ctx context.Context, e *env, s *Section) error {
	for _, durable := range []bool{true, false} {
		x, err := e.scene(ctx, durable, 0, guard.SameOrNewer)
		if err != nil {
			return err
		}
		db, err := sqlfence.Pgx(x.pool, &sqlfence.Options{PresentClaims: true})
		if err != nil {
			return err
		}
		claim := guard.Claim{Resource: "tenant_123:jobs", Token: 5}
		if err := db.Raise(ctx, claim); err != nil {
			return err
		}
		for _, n := range []int{1, 1000} {
			plain, guarded := fmt.Sprint("plain", n), fmt.Sprint("guarded", n)
			for _, table := range []string{plain, guarded} {
				err := execute(ctx, x.pool, "CREATE TABLE "+table+" (id int PRIMARY KEY, tenant text NOT NULL, v bigint NOT NULL) WITH (fillfactor = 50)",
					fmt.Sprintf("INSERT INTO %s SELECT g, 'tenant_123', 0 FROM generate_series(1, %d) g", table, n))
				if err != nil {
					return err
				}
			}
			err := db.Admin().InstallTrigger(ctx, sqlfence.Trigger{Table: []string{guarded}, Resource: guard.Must(guard.NewTemplate("{tenant}:jobs")), Columns: map[string]string{"tenant": "tenant"}})
			if err != nil {
				return err
			}
			all := func(table string) func(ctx context.Context, client, i int) (time.Duration, error) {
				text := "UPDATE " + table + " SET v = $1"
				return timed(func(ctx context.Context, _, i int) error {
					return db.InTx(ctx, claim, func(ctx context.Context, tx pgx.Tx) error {
						_, err := tx.Exec(ctx, text, i)
						return err
					})
				})
			}
			figures, err := Compare(ctx, e.costPlan(1), Way{Name: "without triggers", Do: all(plain)}, Way{Name: "with triggers", Do: all(guarded)})
			if err != nil {
				return err
			}
			s.add(fmt.Sprintf("%s, %d rows", setting{durable: durable, clients: 1}, n), figures)
		}
	}
	return nil
}
