//go:build long

package longtest

// Long says that tests run in their long form.
const Long = true
