// Package s3suite holds the tests that need more than the root module
// may depend on: real S3 stores, Amazon's SDK, HTTP clients that retry. They check
// s3test against a real store's behaviour, and s3fence's promises on real ones: the
// probe, races of writers in each mode with an oracle of their own, caches and
// transforming proxies in between (Squid, nginx, HAProxy, Varnish), the fuzz of P1 with the
// naive protocol as its control, a store that is killed in the middle of writes.
// oracle judges all modes behind a network that loses, doubles, delays and replays requests,
// and a proxy that responds with pages of its own.
//
// versitygw 1.8 and MinIO are correct. versitygw 1.7, "rclone serve s3" with
// and without its cache, and gofakes3 are not, and the probe refuses them. Whether it
// sees that versitygw 1.7 compares and writes in two steps depends on how requests
// meet: it was refused in 30 of 30 probes on idle cores, in 19 of 21 on busy ones.
//
//	go -C internal/suites test ./s3/...
//	go -C internal/suites test -tags long -timeout 60m ./s3/...     with more rounds, and on MinIO
//	go -C internal/suites test -run '^$' -bench Put ./s3
//
// The first run builds versitygw, twice, and rclone from their Go modules, which
// takes a few minutes and needs the network; the binaries are kept in the user's
// cache directory. The long form also builds MinIO, and needs more than the 10
// minutes that go test allows without -timeout.
package s3suite
