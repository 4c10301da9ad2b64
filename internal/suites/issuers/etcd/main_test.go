package etcd_test

import (
	"flag"
	"os"
	"testing"

	"github.com/fencepost-go/fencepost/internal/suites/issuers/etcdnode"
)

// TestMain lets more cases run in parallel than there are cores: most of a case
// is waiting.
func TestMain(m *testing.M) {
	etcdnode.Main()
	flag.Parse()
	flag.Set("test.parallel", "16")
	os.Exit(m.Run())
}
