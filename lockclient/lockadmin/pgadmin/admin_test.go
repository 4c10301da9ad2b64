package pgadmin

import (
	"testing"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient/internal/leasetest"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin/admintest"
	"github.com/fencepost-go/fencepost/lockclient/pglock"
)

var _ lockadmin.Admin = (*Operator)(nil)

// TestAdmin runs the suite of all engines on PostgreSQL, which can do everything.
func TestAdmin(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	issuer := leasetest.Patient(guard.Must(pglock.New(pool, nil)))
	t.Cleanup(func() { issuer.Close() })
	admintest.Run(t, admintest.Engine{Admin: guard.Must(New(pool, &Options{Logger: testkit.Logger(t), OpTimeout: patience})), Issuer: issuer})
}
