package redis_test

import (
	"testing"

	"github.com/fencepost-go/fencepost/lockclient/lockadmin/admintest"
)

// TestAdmin runs the suite of the operators' calls on a real Redis, which has no audit and so
// no force unlock.
func TestAdmin(t *testing.T) {
	s := startServer(t)
	i := s.issuer(t, s.addr)
	admintest.Run(t, admintest.Engine{Admin: i, Issuer: i, Cannot: []string{"force unlock", "audit", "advance floor", "epoch", "raise epoch", "purge"}})
}
