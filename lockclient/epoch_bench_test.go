package lockclient

import (
	"testing"
	"time"
)

// BenchmarkEpochCheck measures the statement that grants with and without its
// look at which server it is on, taking turns on one connection. The metric
// there/plain is the one's time by the other's.
func BenchmarkEpochCheck(b *testing.B) {
	pool := migrated(b)
	client := newTestClient(b, pool, nil)
	mustTry(b, client, "enter", time.Minute)
	in := client.issuer.(*postgres).Entered()
	conn, err := pool.Acquire(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Release()
	turn := func(statement, resource string, more ...any) time.Duration {
		began := time.Now()
		for range 50 {
			var token int64
			var acquired, expires time.Time
			var synced *string
			args := append([]any{resource, "id", "o", int64(60e6), "1000"}, more...)
			if err := conn.QueryRow(b.Context(), statement, args...).Scan(&token, &acquired, &expires, &synced, nil); err != nil {
				b.Fatal(err)
			}
		}
		return time.Since(began)
	}
	var there, plain time.Duration
	for b.Loop() {
		plain += turn(acquireSQL, "plain")
		there += turn(acquireThereSQL, "there", in.Started, int64(in.Leases))
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(there.Microseconds())/float64(50*b.N), "µs/acquire")
	b.ReportMetric(there.Seconds()/plain.Seconds(), "there/plain")
}
