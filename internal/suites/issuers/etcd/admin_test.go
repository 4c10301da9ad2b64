package etcd_test

import (
	"testing"

	"github.com/fencepost-go/fencepost/lockclient/lockadmin/admintest"
)

// TestAdmin runs the suite of the operators' calls on a real etcd.
func TestAdmin(t *testing.T) {
	addr, _ := startNode(t, t.TempDir())
	i := issuer(t, addr)
	admintest.Run(t, admintest.Engine{Admin: i, Issuer: i, Cannot: []string{"purge", "inspect"}})
}
