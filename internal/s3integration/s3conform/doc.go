// Package s3conform is a suite of what this module counts on in an S3 store:
// conditional writes that hold under concurrency, ETags, metadata, ranges,
// listings, keys of all kinds, checksums, multipart uploads, errors.
//
// The same cases run against the in-process server of package s3test and
// against real stores, so that tests on the former say something about the
// latter:
//
//	s3conform.Run(t, s3conform.Target{Endpoint: url, AccessKeyID: "...", SecretAccessKey: "..."})
//
// The suite speaks HTTP by itself, and signs its requests, so that no SDK hides
// what a store does. It makes a bucket of its own and removes it afterwards.
//
// [Check] runs the cases without a [testing.T] and returns the failures, to show
// that a store that is known to be broken does not pass.
package s3conform
