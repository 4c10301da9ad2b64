// Package locktest runs lockclient's client on a lease server in memory, so that
// code which takes a *lockclient.Client can be tested without PostgreSQL.
//
// # What it guarantees
//
// The client is the real one, with its waiting, renewing and retrying; the server
// grants, refuses, renews, releases and lets expire as PostgreSQL does. One suite
// of conformance tests runs on both. Tokens grow per resource and by one.
//
// # What it does not
//
// It keeps nothing after the test ends, and it has no operators: lockadmin
// works on PostgreSQL. It proves nothing about a fence: use guard.NewMemory, or
// the fence's own tests, for that.
//
// # Use
//
//	func TestCloseLosesItsLease(t *testing.T) {
//		client, server := locktest.New(t, nil)
//		err := client.Hold(t.Context(), "close:2026-04", &lockclient.AcquireOptions{TTL: time.Minute},
//			func(ctx context.Context) error {
//				server.Steal("close:2026-04", "somebody else", time.Minute)
//				server.Advance(25 * time.Second) // the next renewal is due, and finds out
//				<-ctx.Done()
//				return context.Cause(ctx)
//			})
//		if !errors.Is(err, lockclient.ErrLeaseLost) {
//			t.Error(err)
//		}
//	}
//
// # Time
//
// There is one clock, the server's and the clients'. It runs as time.Now does,
// so in a bubble of testing/synctest it is the bubble's, and a sleep there takes
// no time and lets renewals happen in between. [Server.Advance] moves it forward
// at once, as if the machine had been suspended for that long: leases whose
// deadline is skipped are lost.
//
// # Compatibility
//
// Until version 1 exported names may change between minor versions.
package locktest

import (
	"context"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient"
	"github.com/fencepost-go/fencepost/lockclient/driver/memory"
)

// TB is what [New] needs of a test; *testing.T and *testing.B implement it.
type TB interface {
	Helper()
	Fatal(args ...any)
	Cleanup(func())
}

// Server is a lease server in memory. It is safe for concurrent use.
type Server struct {
	server *memory.Server
}

// New returns a client of a new server, owned by "locktest". opts are as in
// [lockclient.New] and may be nil. The client is closed when the test ends.
func New(t TB, opts *lockclient.Options) (*lockclient.Client, *Server) {
	t.Helper()
	s := &Server{memory.NewServer()}
	return s.Client(t, "locktest", opts), s
}

// Client returns another client of the server, as another process would be.
func (s *Server) Client(t TB, owner string, opts *lockclient.Options) *lockclient.Client {
	t.Helper()
	c, err := lockclient.New(s.server.Issuer(), owner, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(context.Background()) })
	return c
}

// Now returns the server's time.
func (s *Server) Now() time.Time { return s.server.Now() }

// Advance moves the clock forward by d, for the server and its clients. Leases
// whose deadline has passed are not valid when it returns. Timers do not notice, as
// after a suspend: contexts end, and renewals that are due begin, within a second,
// waiters look within two. A negative d is ignored.
func (s *Server) Advance(d time.Duration) { s.server.Move(max(0, d)) }

// Expire ends the lease on resource on the server, which makes it free for
// others; false if nobody has it. The holder learns of it at its next renewal.
func (s *Server) Expire(resource string) bool { return s.server.Expire(resource) }

// Steal grants the lease on resource to somebody else for ttl, whoever has it,
// and returns the claim that a fence should let through from now on. The former
// holder learns of it at its next renewal.
func (s *Server) Steal(resource, owner string, ttl time.Duration) guard.Claim {
	return s.server.Steal(resource, owner, ttl)
}

// FailAcquires refuses the next n acquires: nothing is written, and the caller
// gets guard.ErrUnavailable.
func (s *Server) FailAcquires(n int) { s.fail(memory.Acquire, memory.Refuse, n) }

// FailRenewals refuses the next n renewals. The client repeats them until the
// deadline, so one failure does not lose the lease.
func (s *Server) FailRenewals(n int) { s.fail(memory.Renew, memory.Refuse, n) }

func (s *Server) fail(op memory.Op, fault memory.Fault, n int) {
	for range n {
		s.server.Fail(op, fault)
	}
}

// Holder returns the claim and the owner of whoever has the lease by the
// server's clock; ok is false if nobody has it.
func (s *Server) Holder(resource string) (claim guard.Claim, owner string, ok bool) {
	h := s.server.Holder(resource)
	if h == nil {
		return guard.Claim{}, "", false
	}
	return guard.Claim{Resource: resource, Token: h.Token, LeaseID: h.LeaseID}, h.Owner, true
}

// Last returns the last token granted on resource; guard.NoToken if none was.
func (s *Server) Last(resource string) guard.Token { return s.server.Last(resource) }
