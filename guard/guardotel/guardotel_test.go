package guardotel

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin/pgadmin"
	"github.com/fencepost-go/fencepost/lockclient/pglock"
	"github.com/fencepost-go/fencepost/sqlfence"
	"github.com/fencepost-go/fencepost/sqlfence/sqladmin"
)

// happen produces real events: granted, renewed, contended, cut, lost, refused
// as stale.
func happen(ctx context.Context, t *testing.T, pool *pgxpool.Pool, observer guard.Observer) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	fence := guard.Must(sqlfence.Pgx(pool, &sqlfence.Options{Observer: observer}))
	must(errors.Join(pglock.Migrate(ctx, pool), sqladmin.Pgx(pool).Migrate(ctx)))
	client := guard.Must(lockclient.New(guard.Must(pglock.New(pool, nil)), "worker-1", &lockclient.Options{Observer: observer, Logger: testkit.Logger(t)}))
	defer client.Close(ctx)
	opts := &lockclient.AcquireOptions{TTL: time.Hour}
	lease, err := client.TryAcquire(ctx, "close:2026-04", opts)
	must(err)
	must(lease.Renew(ctx))
	if _, err := client.TryAcquire(ctx, "close:2026-04", opts); !errors.Is(err, lockclient.ErrHeld) {
		t.Fatalf("held, and granted again: %v", err)
	}
	operator := guard.Must(pgadmin.New(pool, &pgadmin.Options{Observer: observer}))
	unlocked, err := operator.ForceUnlock(ctx, "close:2026-04", "Ada", "worker-1 hangs", nil)
	must(err)
	must(fence.Raise(ctx, unlocked.Invalidated))
	if err := lease.Renew(ctx); !errors.Is(err, lockclient.ErrForceUnlocked) {
		t.Fatalf("cut, and still held: %v", err)
	}
	if err := fence.InTx(ctx, lease.Claim(), func(context.Context, pgx.Tx) error { return nil }); !errors.Is(err, guard.ErrStale) {
		t.Fatalf("a stale claim was admitted: %v", err)
	}
	second, err := client.TryAcquire(ctx, "report", opts)
	must(err)
	must(second.Release(ctx))
}

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
		return strings.TrimSpace(m.Name + " " + set.Encoded(attribute.DefaultEncoder()))
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
				}
			case metricdata.Gauge[float64]:
				for _, p := range data.DataPoints {
					got[name(m, p.Attributes)] = int64(p.Value)
				}
			case metricdata.Gauge[int64]:
				for _, p := range data.DataPoints {
					got[name(m, p.Attributes)] = p.Value
				}
			}
		}
	}
	return got
}

// TestCounts: what really happened is counted and has a span. The control is a
// second observer that was given to nobody.
func TestCounts(t *testing.T) {
	reader, unused := sdk.NewManualReader(), sdk.NewManualReader()
	spans := tracetest.NewSpanRecorder()
	observer, err := New(&Options{
		Meter: sdk.NewMeterProvider(sdk.WithReader(reader)), Tracer: sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)),
		Prefixes: []string{"c", "close:"}, TTL: time.Minute,
	})
	if err != nil {
		t.Fatal(err)
	}
	guard.Must(New(&Options{Meter: sdk.NewMeterProvider(sdk.WithReader(unused))}))
	happen(t.Context(), t, pgtest.Pool(t), observer)
	got := collect(t, reader)
	// The invalidated token, 2, is the highest: it was admitted.
	want := map[string]int64{
		"fencepost.acquisitions.attempted resource.prefix=close:":                                    2,
		"fencepost.acquisitions.attempted resource.prefix=other":                                     1,
		"fencepost.acquisitions.granted resource.prefix=close:":                                      1,
		"fencepost.acquisitions.granted resource.prefix=other":                                       1,
		"fencepost.acquisitions.contended resource.prefix=close:":                                    1,
		"fencepost.acquisition.duration resource.prefix=close:":                                      2,
		"fencepost.acquisition.duration resource.prefix=other":                                       1,
		"fencepost.renewals resource.prefix=close:":                                                  1,
		"fencepost.renewal.duration resource.prefix=close:":                                          2,
		"fencepost.renewals.failed reason=lease_lost,resource.prefix=close:":                         1,
		"fencepost.leases.lost resource.prefix=close:":                                               1,
		"fencepost.lease.held resource.prefix=close:":                                                1,
		"fencepost.lease.held resource.prefix=other":                                                 1,
		"fencepost.lease.oldest resource.prefix=c":                                                   0,
		"fencepost.lease.oldest resource.prefix=close:":                                              0,
		"fencepost.lease.ttl":                                                                        60,
		"fencepost.leases.force_unlocked resource.prefix=close:":                                     1,
		"fencepost.admissions operation=raise,resource.prefix=close:,surface=sql":                    1,
		"fencepost.rejections operation=transaction,reason=stale,resource.prefix=close:,surface=sql": 1,
		"fencepost.token.highest":                                                                    2,
	}
	if !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if got := collect(t, unused); !maps.Equal(got, map[string]int64{"fencepost.lease.oldest": 0, "fencepost.lease.ttl": 30, "fencepost.token.highest": 0}) {
		t.Errorf("the control has counted: %v", got)
	}
	var told []string
	for _, span := range spans.Ended() {
		outcome := ""
		for _, a := range span.Attributes() {
			if a.Key == "fencepost.outcome" {
				outcome = a.Value.AsString()
			}
			if strings.Contains(a.Value.AsString(), "2026-04") {
				t.Errorf("%s has an attribute with the resource: %v", span.Name(), a)
			}
		}
		if failed := span.Status().Code == codes.Error; failed != (outcome != "ok") || span.EndTime().Before(span.StartTime()) {
			t.Errorf("%s: %s, %v, %v to %v", span.Name(), outcome, span.Status(), span.StartTime(), span.EndTime())
		}
		told = append(told, span.Name()+" "+outcome)
	}
	slices.Sort(told)
	if want := []string{"fencepost.acquire ok", "fencepost.acquire ok", "fencepost.acquire other", "fencepost.hold lease_lost", "fencepost.hold ok", "fencepost.renew lease_lost", "fencepost.renew ok", "fencepost.transaction stale"}; !slices.Equal(told, want) {
		t.Errorf("spans %q, want %q", told, want)
	}
}

// A fenced write is a child span of its request's span, with its outcome.
func TestWriteSpans(t *testing.T) {
	spans := tracetest.NewSpanRecorder()
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
	observer := guard.Must(New(&Options{Tracer: tracer}))
	ctx, request := tracer.Tracer("test").Start(t.Context(), "request")
	claim := guard.Claim{Resource: "r", Token: 7, LeaseID: "a"}
	observer.Observe(ctx, guard.Event{Op: guard.OpWrite, Surface: "sql", Claim: claim, Duration: time.Second})
	observer.Observe(ctx, guard.Event{Op: guard.OpTransaction, Surface: "http", Claim: claim, Reason: guard.ReasonStale, Duration: time.Second})
	observer.Observe(ctx, guard.Event{Op: guard.OpCheck, Surface: "http", Claim: claim})
	request.End()
	var told []string
	for _, span := range spans.Ended() {
		if span.Name() == "request" {
			continue
		}
		if span.Parent().SpanID() != request.SpanContext().SpanID() || span.EndTime().Sub(span.StartTime()) != time.Second {
			t.Errorf("%s: below %v, %v long", span.Name(), span.Parent(), span.EndTime().Sub(span.StartTime()))
		}
		told = append(told, span.Name()+" "+span.Status().Description)
	}
	if want := []string{"fencepost.write ", "fencepost.transaction stale"}; !slices.Equal(told, want) {
		t.Errorf("%q", told)
	}
}

// everything gives each instrument a value.
func everything(observer guard.Observer) {
	claim := guard.Claim{Resource: "close:1", Token: 7, LeaseID: "a"}
	for _, op := range []guard.Op{guard.OpAcquire, guard.OpContend, guard.OpReclaim, guard.OpRenew, guard.OpRelease, guard.OpLost, guard.OpForceUnlock, guard.OpWrite} {
		for _, reason := range []guard.Reason{guard.ReasonNone, guard.ReasonConflict, guard.ReasonUnavailable, guard.ReasonLeaseLost} {
			observer.Observe(context.Background(), guard.Event{Op: op, Surface: "lock", Claim: claim, Reason: reason})
		}
	}
}

func scrape(t *testing.T, opts *Options) string {
	t.Helper()
	observer, handler, err := Prometheus(opts)
	if err != nil {
		t.Fatal(err)
	}
	everything(observer)
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	return w.Body.String()
}

var metricName = regexp.MustCompile(`\bfencepost_[a-z_]+\b`)

// The metrics that the alerts and the dashboard use are served by /metrics, and
// the documentation lists each.
func TestNamesAreShown(t *testing.T) {
	shown := scrape(t, &Options{Prefixes: []string{"close:"}})
	exists := func(name string) bool {
		return strings.Contains(shown, "\n"+name+"{") || strings.Contains(shown, "\n"+name+" ")
	}
	for _, file := range []string{"ops/alerts.yml", "ops/alerts_ttl.yml", "ops/alerts_test.yml", "ops/dashboard.json"} {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		names := metricName.FindAllString(string(b), -1)
		for _, name := range names {
			if !exists(name) {
				t.Errorf("%s asks for %s, which is not shown", file, name)
			}
		}
		if len(names) < 5 && file != "ops/alerts_ttl.yml" || len(names) == 0 {
			t.Errorf("%s asks for %q only", file, names)
		}
		if strings.HasSuffix(file, ".json") && !json.Valid(b) {
			t.Errorf("%s is no JSON", file)
		}
	}
	if exists("fencepost_no_such_metric") {
		t.Error("the control is shown")
	}
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`(?m)^# TYPE (\S+) (\S+)`).FindAllStringSubmatch(shown, -1) {
		name := strings.TrimSuffix(strings.TrimSuffix(m[1], "_total"), "_seconds")
		if !regexp.MustCompile(strings.ReplaceAll(name, "_", "[._]") + ` +` + m[2]).Match(doc) {
			t.Errorf("doc.go says nothing of the %s %s", m[2], m[1])
		}
	}
	for _, label := range []string{`resource_prefix="close:"`, `surface="lock"`, `reason="conflict"`, `operation="write"`} {
		if !strings.Contains(shown, label) {
			t.Errorf("no label %s in\n%s", label, shown)
		}
	}
	if strings.Contains(shown, "close:1") {
		t.Error("the resource is a label")
	}
}

// TestReportOnly: a refusal in report-only mode is counted apart from one that refused.
func TestReportOnly(t *testing.T) {
	reader := sdk.NewManualReader()
	observer := guard.Must(New(&Options{Meter: sdk.NewMeterProvider(sdk.WithReader(reader))}))
	claim := guard.Claim{Resource: "r", Token: 1}
	for _, e := range []guard.Event{
		{Op: guard.OpAdmit, Surface: "http", Claim: claim},
		{Op: guard.OpAdmit, Surface: "http", Claim: claim, Reason: guard.ReasonStale},
		{Op: guard.OpAdmit, Surface: "http", Claim: claim, Reason: guard.ReasonStale, ReportOnly: true},
		{Op: guard.OpAdmit, Surface: "http", Claim: claim, ReportOnly: true},
		// Three names: what was refused, what could not be judged, and what was lost. A
		// handler that responds for itself was admitted, and a raise that waits is none.
		{Op: guard.OpWrite, Surface: "sql", Claim: claim, Reason: guard.ReasonUnavailable, Err: guard.ErrUnavailable},
		{Op: guard.OpWrite, Surface: "sql", Claim: claim, Reason: guard.ReasonOther, Err: guard.ErrSetup},
		{Op: guard.OpWrite, Surface: "sql", Claim: claim, Reason: guard.ReasonLeaseLost, Err: guard.ErrLeaseLost},
		{Op: guard.OpTransaction, Surface: "http", Claim: claim, Reason: guard.ReasonOther},
		{Op: guard.OpContend, Surface: "sql", Claim: claim, Reason: guard.ReasonOther, Err: guard.ErrSetup},
	} {
		observer.Observe(t.Context(), e)
	}
	got := collect(t, reader)
	for name, want := range map[string]int64{
		"fencepost.admissions operation=admit,surface=http":                               2,
		"fencepost.rejections operation=admit,reason=stale,surface=http":                  1,
		"fencepost.rejections operation=admit,reason=stale,report_only=true,surface=http": 1,
		"fencepost.failures operation=write,reason=unavailable,surface=sql":               1,
		"fencepost.failures operation=write,reason=other,surface=sql":                     1,
		"fencepost.losses operation=write,surface=sql":                                    1,
		"fencepost.admissions operation=transaction,surface=http":                         1,
		"fencepost.acquisitions.contended":                                                0,
	} {
		if got[name] != want {
			t.Errorf("%s: %d, want %d", name, got[name], want)
		}
	}
}

// Each alert has a test that shows it firing; promtool runs them.
func TestAlertsFire(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Fatal("promtool is needed; .ci/setup servers installs it")
	}
	for _, args := range [][]string{{"check", "rules", "alerts.yml", "alerts_ttl.yml"}, {"test", "rules", "alerts_test.yml"}} {
		c := exec.CommandContext(t.Context(), promtool, args...)
		c.Dir = "ops"
		if out, err := c.CombinedOutput(); err != nil {
			t.Errorf("promtool %v: %v\n%s", args, err, out)
		}
	}
	rules, err := os.ReadFile("ops/alerts.yml")
	if err != nil {
		t.Fatal(err)
	}
	optional, err := os.ReadFile("ops/alerts_ttl.yml")
	if err != nil {
		t.Fatal(err)
	}
	tests, err := os.ReadFile("ops/alerts_test.yml")
	if err != nil {
		t.Fatal(err)
	}
	alerts := regexp.MustCompile(`- alert: (\w+)`).FindAllStringSubmatch(string(rules)+string(optional), -1)
	if len(alerts) != 8 {
		t.Fatalf("%d alerts", len(alerts))
	}
	for _, alert := range alerts {
		if !regexp.MustCompile(`alertname: ` + alert[1] + `\n +exp_alerts:\n +- exp_labels`).Match(tests) {
			t.Errorf("no test shows %s to fire", alert[1])
		}
	}
	// The control: with other limits the tests fail.
	dir := t.TempDir()
	broken := strings.Replace(string(rules), "oldest_seconds > 3600", "oldest_seconds > 36000", 1)
	if broken == string(rules) {
		t.Fatal("the control changes nothing")
	}
	if err := errors.Join(os.WriteFile(dir+"/alerts.yml", []byte(broken), 0o600), os.WriteFile(dir+"/alerts_ttl.yml", optional, 0o600),
		os.WriteFile(dir+"/alerts_test.yml", tests, 0o600)); err != nil {
		t.Fatal(err)
	}
	c := exec.CommandContext(t.Context(), promtool, "test", "rules", "alerts_test.yml")
	c.Dir = dir
	if out, err := c.CombinedOutput(); err == nil {
		t.Errorf("an alert that cannot fire passes:\n%s", out)
	}
}

func TestMistakes(t *testing.T) {
	_, _, withMeter := Prometheus(&Options{Meter: noMeter})
	_, prefix := New(&Options{Prefixes: []string{""}})
	_, ttl := New(&Options{TTL: -1})
	for i, err := range []error{withMeter, prefix, ttl} {
		if !errors.Is(err, guard.ErrInvalid) {
			t.Errorf("%d: %v", i, err)
		}
	}
	observer, err := New(nil)
	if err != nil {
		t.Fatal(err)
	}
	everything(observer) // measures nothing and must not fail
}

// A held lease is dropped when it is released, and a token that was offered and
// refused does not count as granted.
func TestGauges(t *testing.T) {
	reader := sdk.NewManualReader()
	observer := guard.Must(New(&Options{Meter: sdk.NewMeterProvider(sdk.WithReader(reader))}))
	claim := guard.Claim{Resource: "r", Token: 7, LeaseID: "a"}
	observer.Observe(t.Context(), guard.Event{Op: guard.OpAcquire, Surface: "lockhttp", Claim: claim})
	if len(observer.holding) != 0 {
		t.Error("a server holds its client's lease")
	}
	observer.Observe(t.Context(), guard.Event{Op: guard.OpAcquire, Surface: "lock", Claim: claim})
	observer.mu.Lock()
	observer.holding["a"] = holding{"", time.Now().Add(-time.Hour)}
	observer.mu.Unlock()
	if got := collect(t, reader)["fencepost.lease.oldest"]; got != 3600 {
		t.Errorf("the oldest is %d s old", got)
	}
	observer.Observe(t.Context(), guard.Event{Op: guard.OpRelease, Surface: "lock", Claim: claim, Reason: guard.ReasonUnavailable})
	made := guard.Claim{Resource: "r", Token: guard.MaxToken}
	observer.Observe(t.Context(), guard.Event{Op: guard.OpAdmit, Surface: "http", Claim: made, Mark: guard.Mark{Token: 8}, Reason: guard.ReasonInvalid})
	got := collect(t, reader)
	if got["fencepost.lease.oldest"] != 0 || got["fencepost.token.highest"] != 8 {
		t.Errorf("%v", got)
	}
}
