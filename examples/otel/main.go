// Command otel turns the events of the lease client and a fence into
// OpenTelemetry metrics. A worker's lease is cut by an operator, its next write
// is refused, and the program prints what an exporter would send. It is a module
// of its own, so that the library needs nothing of OpenTelemetry.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/lockclient"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin"
	"github.com/fencepost-go/fencepost/sqlfence"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/attribute"
	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
)

func main() {
	if err := run(context.Background(), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer) error {
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
	reader := sdk.NewManualReader() // a real program has a periodic one, with an exporter
	metrics, err := NewMetrics(sdk.NewMeterProvider(sdk.WithReader(reader)))
	if err != nil {
		return err
	}
	if err := happen(ctx, pool, metrics); err != nil {
		return err
	}
	var all metricdata.ResourceMetrics
	if err := reader.Collect(ctx, &all); err != nil {
		return err
	}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			if sum, ok := m.Data.(metricdata.Sum[int64]); ok {
				for _, p := range sum.DataPoints {
					fmt.Fprintln(out, m.Name, p.Attributes.Encoded(attribute.DefaultEncoder()), p.Value)
				}
			}
		}
	}
	return nil
}

// happen makes events for real: granted, renewed, cut, lost, refused as stale.
func happen(ctx context.Context, pool *pgxpool.Pool, observer guard.Observer) error {
	fence, err := sqlfence.Pgx(pool, &sqlfence.Options{Observer: observer})
	if err != nil {
		return err
	}
	if err := errors.Join(lockclient.Migrate(ctx, pool), fence.Migrate(ctx)); err != nil {
		return err
	}
	client, err := lockclient.New(pool, "worker-1", &lockclient.Options{Observer: observer})
	if err != nil {
		return err
	}
	defer client.Close(ctx)
	opts := &lockclient.AcquireOptions{TTL: time.Minute}
	lease, err := client.TryAcquire(ctx, "billing-close", opts)
	if err != nil {
		return err
	}
	if err := lease.Renew(ctx); err != nil {
		return err
	}
	if _, err := client.TryAcquire(ctx, "billing-close", opts); !errors.Is(err, lockclient.ErrHeld) {
		return fmt.Errorf("held, and granted again: %w", err)
	}
	operator, err := lockadmin.New(pool, &lockadmin.Options{Observer: observer})
	if err != nil {
		return err
	}
	unlocked, err := operator.ForceUnlock(ctx, "billing-close", "Ada", "worker-1 hangs", nil)
	if err != nil {
		return err
	}
	if _, err := fence.Admit(ctx, unlocked.Burned); err != nil {
		return err
	}
	if err := lease.Renew(ctx); !errors.Is(err, lockclient.ErrForceUnlocked) {
		return fmt.Errorf("cut, and still held: %w", err)
	}
	if _, err := fence.Admit(ctx, lease.Claim()); !errors.Is(err, guard.ErrStale) {
		return fmt.Errorf("a stale claim was admitted: %w", err)
	}
	return nil
}
