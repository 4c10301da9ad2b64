package main

import (
	"context"
	"errors"

	"github.com/fencepost-go/fencepost/guard"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// Metrics turns the events of the lease client and of every fence into
// OpenTelemetry instruments. One serves them all: give it to each as its
// Observer. Its attributes are the surface, the operation and the reason, never
// a resource, so that the number of series is bounded. It is safe for concurrent
// use.
type Metrics struct {
	attempted, granted, contended, reclaimed, lost, forced metric.Int64Counter
	renewalsFailed, releasesFailed, rejections, conflicts  metric.Int64Counter
	acquisition, hold                                      metric.Float64Histogram
}

var _ guard.Observer = (*Metrics)(nil)

// NewMetrics makes the instruments on a provider's meter.
func NewMetrics(provider metric.MeterProvider) (*Metrics, error) {
	meter := provider.Meter("github.com/fencepost-go/fencepost")
	m := &Metrics{}
	var errs []error
	for _, c := range []struct {
		into              *metric.Int64Counter
		name, description string
	}{
		{&m.attempted, "fencepost.acquisitions.attempted", "Acquires that have ended."},
		{&m.granted, "fencepost.acquisitions.granted", "Acquires that got the lease."},
		{&m.contended, "fencepost.acquisitions.contended", "Acquires that found the lease held."},
		{&m.reclaimed, "fencepost.leases.reclaimed", "Grants that replaced a lease that had run out."},
		{&m.lost, "fencepost.leases.lost", "Leases that ended without being released by their holder."},
		{&m.forced, "fencepost.leases.force_unlocked", "Leases that an operator cut."},
		{&m.renewalsFailed, "fencepost.renewals.failed", "Renewal attempts that failed."},
		{&m.releasesFailed, "fencepost.releases.failed", "Releases that were given up."},
		{&m.rejections, "fencepost.rejections", "What a fence refused or could not carry out."},
		{&m.conflicts, "fencepost.conflicts", "One token under two lease IDs: two holders."},
	} {
		var err error
		*c.into, err = meter.Int64Counter(c.name, metric.WithDescription(c.description))
		errs = append(errs, err)
	}
	var err error
	seconds := metric.WithExplicitBucketBoundaries(0.001, 0.01, 0.1, 1, 10, 100, 1000)
	m.acquisition, err = meter.Float64Histogram("fencepost.acquisition.duration", metric.WithUnit("s"), seconds,
		metric.WithDescription("How long an acquire took, with its wait."))
	errs = append(errs, err)
	m.hold, err = meter.Float64Histogram("fencepost.lease.held", metric.WithUnit("s"), seconds,
		metric.WithDescription("How long a lease was held."))
	return m, errors.Join(append(errs, err)...)
}

// Observe counts one event.
func (m *Metrics) Observe(ctx context.Context, e guard.Event) {
	failed := e.Reason != guard.ReasonNone
	switch e.Op {
	case guard.OpAcquire:
		m.attempted.Add(ctx, 1)
		m.acquisition.Record(ctx, e.Duration.Seconds())
		if !failed {
			m.granted.Add(ctx, 1)
		}
	case guard.OpContend:
		m.contended.Add(ctx, 1)
	case guard.OpReclaim:
		m.reclaimed.Add(ctx, 1)
	case guard.OpRenew:
		if failed {
			m.renewalsFailed.Add(ctx, 1, metric.WithAttributes(attribute.String("reason", string(e.Reason))))
		}
	case guard.OpRelease:
		if failed {
			m.releasesFailed.Add(ctx, 1, metric.WithAttributes(attribute.String("reason", string(e.Reason))))
		} else {
			m.hold.Record(ctx, e.Duration.Seconds())
		}
	case guard.OpLost:
		m.lost.Add(ctx, 1)
		m.hold.Record(ctx, e.Duration.Seconds())
	case guard.OpForceUnlock:
		if !failed {
			m.forced.Add(ctx, 1)
		}
	default: // a fence
		if failed {
			m.rejections.Add(ctx, 1, metric.WithAttributes(attribute.String("surface", string(e.Surface)),
				attribute.String("operation", string(e.Op)), attribute.String("reason", string(e.Reason))))
		}
		if e.Reason == guard.ReasonConflict {
			m.conflicts.Add(ctx, 1, metric.WithAttributes(attribute.String("surface", string(e.Surface))))
		}
	}
}
