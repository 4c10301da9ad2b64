package lockclient

import (
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/internal/pglease"
)

// grant acquires and releases, n times, and returns the last token.
func grant(t *testing.T, c *Client, resource string, n int) (last guard.Token) {
	t.Helper()
	for range n {
		lease := mustTry(t, c, resource, time.Minute)
		if lease.Token() <= last {
			t.Errorf("%s: token %v after %v", resource, lease.Token(), last)
		}
		last = lease.Token()
		if err := lease.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	return last
}

// TestAnotherServer: behind a pooler a connection may come to another server, or
// to the same one after a failover. The statement that grants notices, and the
// client enters again before it is granted anything.
func TestAnotherServer(t *testing.T) {
	pool := migrated(t)
	client := newTestClient(t, pool, nil)
	grant(t, client, "r", 2)
	mustExec(t, pool, "UPDATE fencepost.epoch SET system_identifier = '1'") // this is a copy now,
	in := client.issuer.(*postgres).Entered()
	in.Started = in.Started.Add(-time.Hour) // on a server that was started later
	if token := mustTry(t, client, "r", time.Minute).Token(); token != 1<<pglease.EpochShift+1 {
		t.Errorf("token %v", token)
	}
	// Control: a client that takes the server for the one that it entered.
	mustExec(t, pool, "UPDATE fencepost.epoch SET system_identifier = '2'")
	if token := mustTry(t, client, "s", time.Minute).Token(); token>>pglease.EpochShift != 1 {
		t.Errorf("control: token %v", token)
	}
}
