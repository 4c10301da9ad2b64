//go:build unix

// Package gateway runs versitygw, an S3 store on a file system, for tests.
//
//	g := gateway.Start(t, gateway.Correct)
//	// point an S3 client at g.URL, path-style, with g.AccessKeyID and g.SecretAccessKey
//
// The binary is built once with "go install", from the module at the version
// that is asked for, and kept below the user's cache directory. The process
// listens on 127.0.0.1, keeps its data in a temporary directory, and is gone,
// directory included, when the test ends, or when the test's process does,
// however that ends.
//
// The directory is on a file system with extended attributes, as the store
// needs them: in TMPDIR, /var/tmp or the user's cache directory, whichever
// works first.
package gateway
