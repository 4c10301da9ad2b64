// Package s3integration holds the tests that need more than the root module
// may depend on: the real S3 store of package gateway, and Amazon's SDK.
//
//	go test ./...
//
// The first run builds versitygw from its Go module, twice, which takes a few
// minutes and the network; the binaries are kept in the user's cache directory.
package s3integration
