package guardotel

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	exporter "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	sdk "go.opentelemetry.io/otel/sdk/metric"

	"github.com/fencepost-go/fencepost/guard"
)

var noMeter metric.MeterProvider = noop.NewMeterProvider()

// Prometheus is [New] for programs that have no meter provider: it returns the
// observer and a handler that serves its metrics, and no others, to Prometheus.
// opts may be nil; opts.Meter must be nil.
func Prometheus(opts *Options) (*Observer, http.Handler, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	if o.Meter != nil {
		return nil, nil, guard.Invalid("Options.Meter", "", "must be nil for Prometheus, which makes its own")
	}
	registry := prometheus.NewRegistry()
	reader, err := exporter.New(exporter.WithRegisterer(registry), exporter.WithoutScopeInfo(), exporter.WithoutTargetInfo())
	if err != nil {
		return nil, nil, err
	}
	o.Meter = sdk.NewMeterProvider(sdk.WithReader(reader))
	observer, err := New(&o)
	return observer, promhttp.HandlerFor(registry, promhttp.HandlerOpts{}), err
}
