package lockclient

import (
	"flag"
	"testing"

	"github.com/fencepost-go/fencepost/internal/pgtest"
)

var update = flag.Bool("update", false, "write testdata/schema.txt in place of comparing with it")

// TestSchema: what Migrate makes is what testdata/schema.txt says.
func TestSchema(t *testing.T) {
	t.Parallel()
	pgtest.CheckSchema(t, migrated(t), "fencepost", "testdata/schema.txt", *update)
}
