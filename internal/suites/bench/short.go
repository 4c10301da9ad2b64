package main

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/sqlfence"
)

// short is one of the gate's comparisons: a few that need a second or two, and
// whose ratios depend little on the machine, because nothing waits for a disk.
type short struct {
	name string
	// slack is the part of the stored ratio that may be lost whatever the error
	// bar: how much the ratio varies between machines and under load.
	slack float64
	run   func(ctx context.Context, e *env, rounds int) ([]Figure, error)
}

var shorts = []short{
	{"Table.Update by UPDATE", 0.3, shortUpdate},
	{"DB.InTx by its own transaction", 0.3, shortInTx},
	{"Check by a check by hand", 0.4, shortCheck},
	{"acquire and release by two UPDATEs", 0.5, shortPair},
}

// stored is what a short comparison is compared with.
type stored struct {
	Name  string  `json:"name"`
	Ratio float64 `json:"ratio"`
	Bar   float64 `json:"bar"`
}

// medians returns the ratio by the median durations of single calls, and that of
// the floor to itself, which is the error bar: other load on the machine affects
// them less than rates.
func medians(figures []Figure) (ratio, bar float64) {
	floor, last := float64(figures[0].P50), figures[len(figures)-1]
	return floor / float64(figures[1].P50), math.Abs(floor/float64(last.P50) - 1)
}

// worse says why figures are worse than the stored ones by more than the error
// bars, old and new; nil if they are not, or if the machine is too busy to tell.
func worse(was stored, slack float64, figures []Figure) error {
	now, bar := medians(figures)
	noise := max(2*(was.Bar+bar), slack) * was.Ratio
	if least := was.Ratio - noise; now < least {
		return fmt.Errorf("%s: %.2f, was %.2f; with error bars of %.2f then and %.2f now not below %.2f", was.Name, now, was.Ratio, was.Bar, bar, least)
	}
	return nil
}

func shortUpdate(ctx context.Context, e *env, rounds int) ([]Figure, error) {
	x, err := e.scene(ctx, false, 0, guard.OncePerToken)
	if err != nil {
		return nil, err
	}
	token := guard.NoToken
	return Compare(ctx, Plan{Clients: 1, Block: 15 * time.Millisecond, Rounds: rounds},
		Way{Name: "UPDATE", Do: timed(func(ctx context.Context, _, i int) error {
			_, err := x.pool.Exec(ctx, update, 0, i)
			return err
		})},
		Way{Name: "Table.Update", Do: timed(func(ctx context.Context, _, i int) error {
			token++
			return x.jobs.Update(ctx, x.db, guard.Claim{Resource: "job:0", Token: token}, sqlfence.Key{0}, sqlfence.Set{"v": i})
		})})
}

func shortInTx(ctx context.Context, e *env, rounds int) ([]Figure, error) {
	x, err := e.scene(ctx, false, 0, guard.SameOrNewer)
	if err != nil {
		return nil, err
	}
	claim := guard.Claim{Resource: "jobs", Token: 5}
	if err := x.db.Raise(ctx, claim); err != nil {
		return nil, err
	}
	write := func(ctx context.Context, tx pgx.Tx, i int) error {
		_, err := tx.Exec(ctx, update, 0, i)
		return err
	}
	return Compare(ctx, Plan{Clients: 1, Block: 15 * time.Millisecond, Rounds: rounds},
		Way{Name: "BEGIN, UPDATE, COMMIT", Do: timed(func(ctx context.Context, _, i int) error {
			return inTx(ctx, x.pool, func(tx pgx.Tx) error { return write(ctx, tx, i) })
		})},
		Way{Name: "DB.InTx", Do: timed(func(ctx context.Context, _, i int) error {
			return x.db.InTx(ctx, claim, func(ctx context.Context, tx pgx.Tx) error { return write(ctx, tx, i) })
		})})
}

func shortCheck(ctx context.Context, e *env, rounds int) ([]Figure, error) {
	ways, err := checks(ctx, 1)
	if err != nil {
		return nil, err
	}
	return Compare(ctx, Plan{Clients: 1, Block: 5 * time.Millisecond, Rounds: rounds}, ways["by hand"], ways["Check"])
}

func shortPair(ctx context.Context, e *env, rounds int) ([]Figure, error) {
	svc, err := startPostgres(ctx, e, false)
	if err != nil {
		return nil, err
	}
	var ways []Way
	for _, dial := range []func(context.Context, string, string, time.Duration, int) (locker, error){dialUpdates, dialPostgres} {
		l, err := dial(ctx, svc.address, "bench", time.Minute, 4)
		if err != nil {
			return nil, err
		}
		e.later(l.close)
		ways = append(ways, Way{Name: fmt.Sprint(len(ways)), Do: timed(func(ctx context.Context, client, _ int) error {
			h, err := l.lock(ctx, fmt.Sprint("key ", client))
			if err != nil {
				return err
			}
			return h.unlock(ctx)
		})})
	}
	return Compare(ctx, Plan{Clients: 4, Block: 25 * time.Millisecond, Rounds: rounds}, ways...)
}
