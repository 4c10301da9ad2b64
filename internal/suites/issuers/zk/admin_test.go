package zk_test

import (
	"testing"

	"github.com/fencepost-go/fencepost/lockclient/lockadmin/admintest"
)

// TestAdmin runs the suite of the operators' calls on a real ZooKeeper.
func TestAdmin(t *testing.T) {
	i := issuer(t, nil, startServers(t, 1).Addrs()...)
	admintest.Run(t, admintest.Engine{Admin: i, Issuer: i, Cannot: []string{"purge", "inspect"}})
}
