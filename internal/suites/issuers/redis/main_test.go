package redis_test

import (
	"flag"
	"os"
	"testing"
)

// TestMain lets more cases run in parallel than there are cores: most of a case
// is waiting.
func TestMain(m *testing.M) {
	flag.Parse()
	flag.Set("test.parallel", "16")
	os.Exit(m.Run())
}
