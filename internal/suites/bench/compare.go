package main

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"
)

// Way is one way to do a thing.
type Way struct {
	Name string
	// Do does it once for one of the clients; i counts that client's calls. It
	// returns how long it took if that differs from the time of the call, else 0;
	// a negative result means unknown.
	Do func(ctx context.Context, client, i int) (time.Duration, error)
}

// timed makes a Do of a function whose call is what is timed.
func timed(f func(ctx context.Context, client, i int) error) func(context.Context, int, int) (time.Duration, error) {
	return func(ctx context.Context, client, i int) (time.Duration, error) { return 0, f(ctx, client, i) }
}

// Plan says how ways are compared.
type Plan struct {
	// Clients is how many goroutines run a way at one time.
	Clients int
	// Block is how long a way runs before the next one's turn, Rounds how many
	// turns each has. Of an even number, half are in one order.
	Block  time.Duration
	Rounds int
}

// Figure is what one way achieved.
type Figure struct {
	Way string
	// Rate is operations per second, the median of the rounds.
	Rate float64
	// Ratio is the rate divided by that of the floor in the same round: median
	// and quartiles.
	Ratio Spread
	// P50 and P99 are of single calls, over all rounds.
	P50, P99 time.Duration
	// Err is why the way was abandoned.
	Err error
}

// Spread is a median with its quartiles.
type Spread struct{ Q1, Median, Q3 float64 }

// again is the floor's second turn in each round. Its ratio to the first would
// be 1 on an idle machine: the distance from 1 is the error bar of all ratios of
// the comparison.
const again = "the floor again"

// Compare runs the ways in turns: A B C A, then in reverse, and so on, so that
// other load on the machine affects all alike. The first way is the floor. The
// last figure is the floor against itself. A way that fails is left out from then
// on; a failure of the floor is an error.
func Compare(ctx context.Context, plan Plan, ways ...Way) ([]Figure, error) {
	ways = append(slices.Clone(ways), ways[0])
	ways[len(ways)-1].Name = again
	runs := make([]run, len(ways))
	for k := range runs {
		runs[k] = run{way: ways[k], calls: make([]int, plan.Clients)}
		runs[k].block(ctx, plan, plan.Block/3) // connections are opened, statements prepared
		runs[k].rates, runs[k].took = nil, nil
	}
	for round := range plan.Rounds {
		for k := range runs {
			// Each round begins with another way, and every second round runs
			// backwards.
			at := (k + round/2) % len(runs)
			if round%2 == 1 {
				at = len(runs) - 1 - at
			}
			if runs[at].err == nil {
				runs[at].block(ctx, plan, plan.Block)
			}
			if err := ctx.Err(); err != nil {
				return nil, err
			}
		}
	}
	figures := make([]Figure, len(runs))
	for k := range runs {
		figures[k] = runs[k].figure(&runs[0])
	}
	return figures, runs[0].err
}

// run is a way and its measurements.
type run struct {
	way   Way
	calls []int // of each client
	rates []float64
	took  []float64 // nanoseconds
	err   error
}

// keep is how many durations are kept per block and client.
const keep = 4096

func (r *run) block(ctx context.Context, plan Plan, length time.Duration) {
	began := time.Now()
	end := began.Add(length)
	var mu sync.Mutex
	var wg sync.WaitGroup
	done := 0
	for client := range plan.Clients {
		wg.Go(func() {
			var took []float64
			n := 0
			var err error
			for now := time.Now(); now.Before(end); {
				var d time.Duration
				if d, err = r.way.Do(ctx, client, r.calls[client]); err != nil {
					break
				}
				r.calls[client]++
				after := time.Now()
				if d == 0 {
					d = after.Sub(now)
				}
				now = after
				n++
				if d > 0 && len(took) < keep {
					took = append(took, float64(d))
				}
			}
			mu.Lock()
			defer mu.Unlock()
			done += n
			r.took = append(r.took, took...)
			if err != nil && ctx.Err() == nil {
				r.err = fmt.Errorf("%s: %w", r.way.Name, err)
			}
		})
	}
	wg.Wait()
	elapsed := time.Since(began)
	r.rates = append(r.rates, float64(done)/elapsed.Seconds())
}

func (r *run) figure(floor *run) Figure {
	f := Figure{Way: r.way.Name, Err: r.err}
	if r.err != nil || floor.err != nil {
		return f
	}
	ratios := make([]float64, len(r.rates))
	for i := range ratios {
		ratios[i] = r.rates[i] / floor.rates[i]
	}
	f.Ratio, f.Rate = spreadOf(ratios), spreadOf(slices.Clone(r.rates)).Median
	slices.Sort(r.took)
	f.P50, f.P99 = time.Duration(quantile(r.took, 0.5)), time.Duration(quantile(r.took, 0.99))
	return f
}

// spreadOf sorts the values.
func spreadOf(values []float64) Spread {
	slices.Sort(values)
	return Spread{quantile(values, 0.25), quantile(values, 0.5), quantile(values, 0.75)}
}

// quantile interpolates between order statistics, so that the median of an even
// number is the mean of the middle two; gonum's stat.Quantile takes the lower.
func quantile(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	x := q * float64(len(sorted)-1)
	i := int(x)
	if i+1 == len(sorted) {
		return sorted[i]
	}
	return sorted[i] + (sorted[i+1]-sorted[i])*(x-float64(i))
}

// bar is the error bar of a comparison: how far the floor's own ratio is from
// 1, by the worse of its quartiles.
func bar(figures []Figure) float64 {
	s := figures[len(figures)-1].Ratio
	return max(math.Abs(s.Q1-1), math.Abs(s.Q3-1))
}
