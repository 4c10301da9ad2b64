// Package longtest is the one switch between the short and the long form of the
// tests. The build tag "long" turns it on:
//
//	go test -tags long ./sqlfence
//
// A test whose short form proves the same with less volume asks [ByLength] how
// much to do. A test that has no short form stands in a file with the constraint
// "//go:build long", and its name begins with TestLong, so that the gate runs
// only those with -run '^TestLong'.
package longtest

// ByLength returns how much a test does, in its short and in its long form.
func ByLength[T any](short, long T) T {
	if Long {
		return long
	}
	return short
}
