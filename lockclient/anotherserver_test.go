package lockclient

import (
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/internal/pglease"
)

// TestAnotherServer: behind a pooler a connection may reach another server, or
// the same one after a failover. The statement that grants notices, and the
// client enters again before it is granted anything, alone or with others.
func TestAnotherServer(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	client := newTestClient(t, pool, nil)
	for n := range 2 {
		lease := mustTry(t, client, "r", time.Minute)
		if err := lease.Release(t.Context()); err != nil || lease.Token() != guard.Token(n+1) {
			t.Fatalf("token %v, %v", lease.Token(), err)
		}
	}
	mustExec(t, pool, "UPDATE fencepost.epoch SET system_identifier = '1'") // this is a copy now,
	in := client.issuer.(*pglease.Issuer).Entered()
	in.Started = in.Started.Add(-time.Hour) // on a server that was started later
	tokens := make(chan guard.Token)
	for _, name := range []string{"r", "s", "t", "u"} {
		go func() {
			lease, err := client.TryAcquire(t.Context(), name, &AcquireOptions{TTL: time.Minute})
			if err != nil {
				t.Error(err)
				tokens <- 0
				return
			}
			tokens <- lease.Token()
		}()
	}
	for range 4 {
		if token := <-tokens; token != 1<<pglease.EpochShift+1 {
			t.Errorf("token %v", token)
		}
	}
	// Control: a client that believes that the server is the one it entered.
	mustExec(t, pool, "UPDATE fencepost.epoch SET system_identifier = '2'")
	if token := mustTry(t, client, "v", time.Minute).Token(); token>>pglease.EpochShift != 1 {
		t.Errorf("control: token %v", token)
	}
}
