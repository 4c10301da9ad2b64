package main

import (
	"bytes"
	"maps"
	"testing"

	"github.com/fencepost-go/fencepost/internal/pgtest"

	"go.opentelemetry.io/otel/attribute"
	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
)

// collect returns every counter's value and every histogram's count, by name and
// attributes.
func collect(t *testing.T, reader sdk.Reader) map[string]int64 {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	got := map[string]int64{}
	name := func(m metricdata.Metrics, set attribute.Set) string {
		if set.Len() == 0 {
			return m.Name
		}
		return m.Name + " " + set.Encoded(attribute.DefaultEncoder())
	}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					got[name(m, p.Attributes)] = p.Value
				}
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					got[name(m, p.Attributes)] = int64(p.Count)
					if p.Sum <= 0 {
						t.Errorf("%s: %+v", m.Name, p)
					}
				}
			default:
				t.Errorf("%s is a %T", m.Name, data)
			}
		}
	}
	return got
}

// TestCounts: what really happened is what is counted. The control is a second
// observer that nobody was given.
func TestCounts(t *testing.T) {
	reader, unused := sdk.NewManualReader(), sdk.NewManualReader()
	metrics, err := NewMetrics(sdk.NewMeterProvider(sdk.WithReader(reader)))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := NewMetrics(sdk.NewMeterProvider(sdk.WithReader(unused))); err != nil {
		t.Fatal(err)
	}
	if err := happen(t.Context(), pgtest.Pool(t), metrics); err != nil {
		t.Fatal(err)
	}
	want := map[string]int64{
		"fencepost.acquisitions.attempted":                              2,
		"fencepost.acquisitions.granted":                                1,
		"fencepost.acquisitions.contended":                              1,
		"fencepost.acquisition.duration":                                2,
		"fencepost.renewals.failed reason=lease_lost":                   1,
		"fencepost.leases.lost":                                         1,
		"fencepost.lease.held":                                          1,
		"fencepost.leases.force_unlocked":                               1,
		"fencepost.rejections operation=admit,reason=stale,surface=sql": 1,
	}
	if got := collect(t, reader); !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if got := collect(t, unused); len(got) != 0 {
		t.Errorf("the control has counted: %v", got)
	}
}

func TestRun(t *testing.T) {
	var out bytes.Buffer
	if err := run(t.Context(), &out); err != nil || !bytes.Contains(out.Bytes(), []byte("fencepost.leases.force_unlocked")) {
		t.Errorf("%v\n%s", err, &out)
	}
}
