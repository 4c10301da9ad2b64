package redis_test

import (
	"testing"

	"github.com/fencepost-go/fencepost/lockclient/lockadmin/admintest"
)

// TestAdmin runs the suite of the operators' calls on a real Redis.
func TestAdmin(t *testing.T) {
	s := startServer(t)
	i := s.issuer(t, s.addr)
	admintest.Run(t, admintest.Engine{Admin: i, Issuer: i, Cannot: []string{"advance floor", "epoch", "raise epoch", "purge"}})
}
