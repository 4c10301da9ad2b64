// Package s3integration holds the tests that need more than the root module
// may depend on: the real S3 store of package gateway, and Amazon's SDK. They
// hold s3test to what a real store does, and s3fence to its promises on one: the
// probe, the modes, the store of marks, the fuzz of P1 with the naive protocol
// as its control, a store that is killed in the middle of writes.
//
//	go test ./...
//	FENCEPOST_LONG=1 go test -timeout 60m ./...     each as long as it is meant to be
//	go test -run '^$' -bench Put
//
// The first run builds versitygw from its Go module, twice, which takes a few
// minutes and the network; the binaries are kept in the user's cache directory.
package s3integration
