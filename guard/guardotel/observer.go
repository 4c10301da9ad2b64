package guardotel

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/fencepost-go/fencepost/guard"
)

// DefaultTTL is the default of [Options].TTL.
const DefaultTTL = 30 * time.Second

// scope is the name of the meter and the tracer.
const scope = "github.com/fencepost-go/fencepost"

// Options configures [New] and [Prometheus]. The zero value of every field is
// its default.
type Options struct {
	// Meter provides the instruments; nil means no metrics. [Prometheus] has
	// its own.
	Meter metric.MeterProvider
	// Tracer provides the spans; nil means no spans.
	Tracer trace.TracerProvider
	// Prefixes are prefixes of resource names. The longest that matches becomes
	// the attribute resource.prefix; for all other resources it is "other". If
	// Prefixes is empty, the attribute is left out.
	Prefixes []string
	// TTL is the TTL that this process requests for its leases, the longest if
	// there are several, for fencepost.lease.ttl. 0 means [DefaultTTL].
	TTL time.Duration
}

// Observer is a [guard.Observer] that records metrics and spans. Make one with
// [New] or [Prometheus]; the zero value is not usable. It is safe for
// concurrent use.
type Observer struct {
	prefixes []string // longest first
	tracer   trace.Tracer
	ttl      time.Duration

	attempted, granted, contended, reclaimed, lost, forced metric.Int64Counter
	renewals, renewalsFailed, releasesFailed               metric.Int64Counter
	admissions, rejections, failures, losses, conflicts    metric.Int64Counter
	acquisition, renewal, held                             metric.Float64Histogram

	mu      sync.Mutex
	holding map[string]holding // by lease ID; what this process holds
	highest guard.Token
}

type holding struct {
	prefix string
	since  time.Time
}

var _ guard.Observer = (*Observer)(nil)

// New returns an [Observer] with its instruments. opts may be nil, but then
// nothing is measured. Errors are those of the meter, and a *guard.InvalidError
// for bad options.
func New(opts *Options) (*Observer, error) {
	o := &Observer{ttl: DefaultTTL, holding: map[string]holding{}}
	if opts == nil {
		opts = &Options{}
	}
	if opts.TTL < 0 {
		return nil, guard.Invalid("Options.TTL", opts.TTL.String(), "must not be negative")
	}
	if opts.TTL > 0 {
		o.ttl = opts.TTL
	}
	for _, prefix := range opts.Prefixes {
		if err := guard.ValidateResource(prefix); err != nil {
			return nil, guard.Invalid("Options.Prefixes", prefix, "is not a valid resource name prefix")
		}
	}
	o.prefixes = slices.Clone(opts.Prefixes)
	slices.SortFunc(o.prefixes, func(a, b string) int { return len(b) - len(a) })
	if opts.Tracer != nil {
		o.tracer = opts.Tracer.Tracer(scope)
	}
	provider := opts.Meter
	if provider == nil {
		provider = noMeter
	}
	return o, o.instruments(provider.Meter(scope))
}

func (o *Observer) instruments(meter metric.Meter) error {
	var errs []error
	for _, c := range []struct {
		into              *metric.Int64Counter
		name, description string
	}{
		{&o.attempted, "fencepost.acquisitions.attempted", "Acquires that have ended."},
		{&o.granted, "fencepost.acquisitions.granted", "Acquires that got the lease."},
		{&o.contended, "fencepost.acquisitions.contended", "Acquires that found the lease held."},
		{&o.renewals, "fencepost.renewals", "Renewals that were confirmed."},
		{&o.renewalsFailed, "fencepost.renewals.failed", "Renewal attempts that failed."},
		{&o.releasesFailed, "fencepost.releases.failed", "Abandoned releases."},
		{&o.lost, "fencepost.leases.lost", "Leases that ended before their holder released them."},
		{&o.reclaimed, "fencepost.leases.reclaimed", "Grants that replaced a lease that had run out."},
		{&o.forced, "fencepost.leases.force_unlocked", "Leases that an operator force-unlocked."},
		{&o.admissions, "fencepost.admissions", "What a fence admitted."},
		{&o.rejections, "fencepost.rejections", "Claims that a fence refused."},
		{&o.failures, "fencepost.failures", "What a fence could not judge or carry out."},
		{&o.losses, "fencepost.losses", "What was not begun because the lease was over by the holder's clock."},
		{&o.conflicts, "fencepost.conflicts", "One token under two leases: two holders."},
	} {
		var err error
		*c.into, err = meter.Int64Counter(c.name, metric.WithDescription(c.description))
		errs = append(errs, err)
	}
	histogram := func(name, description string, bounds ...float64) metric.Float64Histogram {
		h, err := meter.Float64Histogram(name, metric.WithUnit("s"), metric.WithDescription(description),
			metric.WithExplicitBucketBoundaries(bounds...))
		errs = append(errs, err)
		return h
	}
	gauge := func(name, description string) metric.Float64ObservableGauge {
		g, err := meter.Float64ObservableGauge(name, metric.WithUnit("s"), metric.WithDescription(description))
		errs = append(errs, err)
		return g
	}
	decades := []float64{0.001, 0.01, 0.1, 1, 10, 100, 1000, 10000}
	o.acquisition = histogram("fencepost.acquisition.duration", "How long an acquire took, with its wait.", decades...)
	o.renewal = histogram("fencepost.renewal.duration", "How long a renewal took, confirmed or not.", // finer: a TTL is chosen by it
		0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
	o.held = histogram("fencepost.lease.held", "How long a lease was held.", decades...)
	oldest := gauge("fencepost.lease.oldest", "How long the oldest lease of this process has been held.")
	ttl := gauge("fencepost.lease.ttl", "For how long the leases of this process are asked for.")
	highest, err := meter.Int64ObservableGauge("fencepost.token.highest",
		metric.WithDescription("The highest fencing token that was granted or admitted."))
	errs = append(errs, err)
	if err := errors.Join(errs...); err != nil {
		return err
	}
	_, err = meter.RegisterCallback(func(_ context.Context, to metric.Observer) error {
		ages, token := o.now()
		for prefix, age := range ages {
			to.ObserveFloat64(oldest, age.Seconds(), metric.WithAttributes(prefixed(prefix)...))
		}
		to.ObserveFloat64(ttl, o.ttl.Seconds())
		to.ObserveInt64(highest, int64(token))
		return nil
	}, oldest, ttl, highest)
	return err
}

// now returns the age of the oldest lease by prefix, and the highest token. If
// no lease is held the age is zero, so that the series does not end.
func (o *Observer) now() (map[string]time.Duration, guard.Token) {
	o.mu.Lock()
	defer o.mu.Unlock()
	ages := map[string]time.Duration{}
	if len(o.prefixes) == 0 {
		ages[""] = 0
	}
	for _, prefix := range o.prefixes {
		ages[prefix] = 0
	}
	for _, h := range o.holding {
		ages[h.prefix] = max(ages[h.prefix], time.Since(h.since))
	}
	return ages, o.highest
}

// other is the resource.prefix of the resources that have none of the configured
// prefixes.
const other = "other"

func (o *Observer) prefix(resource string) string {
	if len(o.prefixes) == 0 {
		return ""
	}
	for _, prefix := range o.prefixes {
		if strings.HasPrefix(resource, prefix) {
			return prefix
		}
	}
	return other
}

// prefixed returns the attributes with resource.prefix, unless there is none.
func prefixed(prefix string, attributes ...attribute.KeyValue) []attribute.KeyValue {
	if prefix != "" {
		attributes = append(attributes, attribute.String("resource.prefix", prefix))
	}
	return attributes
}

// Observe implements [guard.Observer].
func (o *Observer) Observe(ctx context.Context, e guard.Event) {
	failed := e.Reason != guard.ReasonNone
	prefix := o.prefix(e.Claim.Resource)
	count := func(counter metric.Int64Counter, attributes ...attribute.KeyValue) {
		counter.Add(ctx, 1, metric.WithAttributes(prefixed(prefix, attributes...)...))
	}
	measure := func(histogram metric.Float64Histogram) {
		histogram.Record(ctx, e.Duration.Seconds(), metric.WithAttributes(prefixed(prefix)...))
	}
	reason := attribute.String("reason", string(e.Reason))
	surface := attribute.String("surface", string(e.Surface))
	o.remember(e, prefix, failed)
	switch e.Op {
	case guard.OpAcquire:
		count(o.attempted)
		measure(o.acquisition)
		if !failed {
			count(o.granted)
		}
	case guard.OpContend:
		if e.Surface == guard.SurfaceLock { // else a raise that waits, which is reported when it has ended
			count(o.contended)
		}
	case guard.OpReclaim:
		count(o.reclaimed)
	case guard.OpRenew:
		measure(o.renewal)
		if failed {
			count(o.renewalsFailed, reason)
		} else {
			count(o.renewals)
		}
	case guard.OpRelease:
		if failed {
			count(o.releasesFailed, reason)
		} else {
			measure(o.held)
		}
	case guard.OpLost:
		count(o.lost)
		measure(o.held)
	case guard.OpForceUnlock:
		if !failed {
			count(o.forced)
		}
	default: // a fence
		attributes := []attribute.KeyValue{surface, attribute.String("operation", string(e.Op)), reason}
		if e.ReportOnly && failed {
			attributes = append(attributes, attribute.Bool("report_only", true))
		}
		switch outcome := e.Reason.Outcome(); {
		case outcome == guard.Admitted, e.Reason == guard.ReasonOther && e.Err == nil: // its handler responded for itself
			count(o.admissions, attributes[:2]...)
		case outcome == guard.Rejected:
			count(o.rejections, attributes...)
		case outcome == guard.LostLease:
			count(o.losses, attributes[:2]...)
		default:
			count(o.failures, attributes...)
		}
		if e.Reason == guard.ReasonConflict {
			count(o.conflicts, surface)
		}
	}
	o.span(ctx, e, failed)
}

// remember keeps what the gauges show. Held leases are known only from the lease
// client: a lock server is not notified when a client's lease expires.
func (o *Observer) remember(e guard.Event, prefix string, failed bool) {
	token := e.Mark.Token
	if !failed { // a token that is only offered may be anything
		token = max(token, e.Claim.Token)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.highest = max(o.highest, token)
	if e.Surface != guard.SurfaceLock {
		return
	}
	switch e.Op {
	case guard.OpAcquire:
		if !failed && e.Claim.LeaseID != "" {
			o.holding[e.Claim.LeaseID] = holding{prefix, time.Now()}
		}
	case guard.OpRelease, guard.OpLost: // abandoned, whatever the server says
		delete(o.holding, e.Claim.LeaseID)
	}
}

// span makes the span of an operation that has ended.
func (o *Observer) span(ctx context.Context, e guard.Event, failed bool) {
	if o.tracer == nil {
		return
	}
	name := "fencepost." + string(e.Op)
	switch e.Op {
	case guard.OpAcquire, guard.OpRenew, guard.OpWrite, guard.OpTransaction:
	case guard.OpRelease, guard.OpLost:
		name = "fencepost.hold"
	default:
		return
	}
	outcome := "ok"
	switch {
	case e.Op == guard.OpLost:
		outcome, failed = string(guard.ReasonLeaseLost), true
	case failed:
		outcome = string(e.Reason)
	}
	end := time.Now()
	attributes := prefixed(o.prefix(e.Claim.Resource),
		attribute.String("fencepost.outcome", outcome),
		attribute.String("fencepost.surface", string(e.Surface)),
		attribute.String("fencepost.token", e.Claim.Token.String()))
	_, span := o.tracer.Start(ctx, name, trace.WithTimestamp(end.Add(-e.Duration)), trace.WithAttributes(attributes...))
	if failed {
		span.SetStatus(codes.Error, outcome)
	}
	span.End(trace.WithTimestamp(end))
}
