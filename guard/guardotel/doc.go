// Package guardotel turns the events of the guards and of the lease client into
// OpenTelemetry metrics and spans. One [Observer] serves them all: give it to
// each as its Observer.
//
//	telemetry, metrics, err := guardotel.Prometheus(&guardotel.Options{Prefixes: []string{"billing-close:"}})
//	mux.Handle("GET /metrics", metrics)
//	client, err := lockclient.New(issuer, "worker-1", &lockclient.Options{Observer: telemetry})
//	db, err := sqlfence.Pgx(pool, &sqlfence.Options{Observer: telemetry})
//
// # Instruments
//
// In Prometheus dots are underscores, counters end in _total, and durations in
// _seconds.
//
//	fencepost.acquisitions.attempted  counter    acquires that have ended
//	fencepost.acquisitions.granted    counter    acquires that got the lease
//	fencepost.acquisitions.contended  counter    acquires that found the lease held
//	fencepost.acquisition.duration    histogram  seconds an acquire took, with its wait
//	fencepost.renewals                counter    renewals that were confirmed
//	fencepost.renewals.failed         counter    attempts that failed, by reason
//	fencepost.renewal.duration        histogram  seconds a renewal took, confirmed or not; see lockclient.RecommendTTL
//	fencepost.releases.failed         counter    abandoned releases, by reason
//	fencepost.leases.lost             counter    leases that ended before their holder released them
//	fencepost.leases.reclaimed        counter    grants that replaced a lease that had run out
//	fencepost.leases.force_unlocked   counter    leases that an operator force-unlocked
//	fencepost.lease.held              histogram  seconds a lease was held
//	fencepost.lease.oldest            gauge      seconds the oldest lease of this process has been held
//	fencepost.lease.ttl               gauge      [Options].TTL in seconds
//	fencepost.admissions              counter    what a fence admitted, by surface and operation
//	fencepost.rejections              counter    claims that a fence refused, by surface, operation and reason
//	fencepost.failures                counter    what a fence could not judge or carry out, by the same
//	fencepost.losses                  counter    what was not begun because the lease was over, by surface and operation
//	fencepost.conflicts               counter    one token under two leases, by surface
//	fencepost.token.highest           gauge      the highest token that was granted or admitted
//
// A rejection or failure in report-only mode, where the request proceeds, has report_only=true.
// The other attributes are surface, operation, reason and resource.prefix, each with
// values from a fixed list: a resource is never a label, so the number of series
// does not grow with the number of resources.
//
// # Spans
//
// With [Options].Tracer, "fencepost.acquire", "fencepost.renew",
// "fencepost.hold" and, for a fenced write, "fencepost.write" or
// "fencepost.transaction", each with fencepost.outcome ("ok" or the reason) and
// fencepost.token. They are made when the operation has ended, with its start
// time, as children of the span in its context. A refusal is an error.
//
// # Alerts and a dashboard
//
// The directory ops has alert rules for Prometheus (alerts.yml; alerts_ttl.yml for jobs that
// should end within a lease), their tests (alerts_test.yml, for promtool) and a dashboard for
// Grafana (dashboard.json).
//
// # Where to read on
//
// observer.go has the instruments and spans, prometheus.go the handler for programs that
// have no meter provider.
//
// # Compatibility
//
// As in package guard, names may change until version 1. The changelog lists
// changed instrument names.
package guardotel
