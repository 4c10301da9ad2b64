// Command expvar turns the events of the lease client and a fence into expvar
// counters and histograms, with the standard library alone, and lets a few
// things happen: a lease that is renewed and released, one that is refused, one
// that runs out and is granted again, one that an operator cuts, and a stale
// write that the fence refuses. It prints what /debug/vars would serve.
package main

import (
	"context"
	"expvar"
	"fmt"
	"io"
	"os"

	"github.com/fencepost-go/fencepost/internal/pgtest"

	"github.com/jackc/pgx/v5/pgxpool"
)

func main() {
	metrics := &Metrics{}
	expvar.Publish("fencepost", metrics.Map()) // served at /debug/vars by the default mux
	if err := run(context.Background(), metrics, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, metrics *Metrics, out io.Writer) error {
	url, cleanup, err := pgtest.Provide(ctx)
	if err != nil {
		return err
	}
	defer cleanup()
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := happen(ctx, pool, metrics); err != nil {
		return err
	}
	_, err = fmt.Fprintln(out, metrics.Map())
	return err
}
