package locktest

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient"
	"github.com/fencepost-go/fencepost/lockclient/internal/bridge"
	"github.com/fencepost-go/fencepost/lockclient/internal/conform"
	"github.com/fencepost-go/fencepost/lockclient/internal/memory"
)

func harness(t *testing.T, s *memory.Server, i bridge.Issuer) conform.Harness {
	client := func(owner string) *lockclient.Client {
		c, moved, err := bridge.New(i, owner, (*lockclient.Options)(nil), s.Clock)
		if err != nil {
			t.Fatal(err)
		}
		s.OnMove(moved)
		t.Cleanup(c.(*lockclient.Client).Close)
		return c.(*lockclient.Client)
	}
	return conform.Harness{
		A: client("a"), B: client("b"), Pass: s.Move, Awaited: s.Awaited,
		Cut: func(resource string) { s.Steal(resource, "somebody", time.Minute) },
		Wire: func(op string, claim guard.Claim) (taken bool) {
			if op == "release" {
				taken, _ = i.Release(t.Context(), claim)
			} else {
				_, taken, _ = i.Renew(t.Context(), claim, time.Minute)
			}
			return taken
		},
	}
}

// TestConformance runs in memory what lockclient runs on PostgreSQL.
func TestConformance(t *testing.T) {
	for _, c := range conform.Cases() {
		t.Run(c.Name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := memory.New()
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				if err := c.Check(ctx, harness(t, s, s)); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// mutant is a server with one flaw.
type mutant struct {
	*memory.Server
	flaw string
}

func (m mutant) Acquire(ctx context.Context, r bridge.Request) (bridge.Answer, error) {
	switch held := m.Holder(r.Resource, r.LeaseID); {
	case m.flaw == "grants what is held" && held != nil:
		m.Expire(r.Resource)
	case m.flaw == "forgets the lease ID":
		r.LeaseID += "x"
	case m.flaw == "refuses without the facts" && held != nil:
		return bridge.Answer{Held: &bridge.Held{Remaining: held.Remaining}}, nil
	}
	a, err := m.Server.Acquire(ctx, r)
	if m.flaw == "one token for all" && a.Granted {
		a.Token = 1
	}
	return a, err
}

func (m mutant) Renew(ctx context.Context, claim guard.Claim, ttl time.Duration) (time.Duration, bool, error) {
	sent, held, err := m.Server.Renew(ctx, claim, ttl)
	switch m.flaw {
	case "renews anything":
		held = true
	case "renews nothing":
		held = false
	}
	return sent, held, err
}

func (m mutant) Release(ctx context.Context, claim guard.Claim) (bool, error) {
	switch m.flaw {
	case "releases anybody's":
		return m.Expire(claim.Resource), nil
	case "releases nothing":
		return true, nil
	}
	return m.Server.Release(ctx, claim)
}

func (m mutant) Subscribe(resource string, ring func()) func() {
	if m.flaw == "tells nobody" {
		return func() {}
	}
	return m.Server.Subscribe(resource, ring)
}

// TestMutants: the suite tells every flaw.
func TestMutants(t *testing.T) {
	for _, flaw := range []string{"", "grants what is held", "forgets the lease ID", "refuses without the facts", "one token for all",
		"renews anything", "renews nothing", "releases anybody's", "releases nothing"} {
		t.Run("flaw: "+flaw, func(t *testing.T) {
			told := 0
			for _, c := range conform.Cases() {
				synctest.Test(t, func(t *testing.T) {
					s := memory.New()
					ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
					defer cancel()
					if err := c.Check(ctx, harness(t, s, mutant{s, flaw})); err != nil {
						told++
					}
				})
			}
			if (told > 0) != (flaw != "") {
				t.Errorf("%d cases fail", told)
			}
		})
	}
}

// TestServer: what the server offers beside the suite.
func TestServer(t *testing.T) {
	opts := &lockclient.HoldOptions{TTL: time.Minute}
	t.Run("advance", func(t *testing.T) {
		client, server := New(t, nil)
		before := server.Now()
		lease, err := client.TryAcquire(t.Context(), "r", &lockclient.AcquireOptions{TTL: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		server.Advance(59 * time.Minute)
		if !lease.Valid() || server.Now().Sub(before) < 59*time.Minute {
			t.Error("over too early")
		}
		server.Advance(time.Minute)
		if len(lease.Done()) > 0 || lease.Valid() {
			t.Error("not over")
		}
		<-lease.Done()
	})
	t.Run("advance wakes a waiter", func(t *testing.T) {
		client, server := New(t, nil)
		other := server.Client(t, "other", nil)
		first, err := client.TryAcquire(t.Context(), "r", &lockclient.AcquireOptions{TTL: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(20*time.Millisecond, func() { server.Advance(time.Hour) })
		next, err := other.Acquire(t.Context(), "r", &lockclient.AcquireOptions{TTL: time.Hour})
		if err != nil || next.Token() != 2 || first.Valid() || server.Last("r") != 2 {
			t.Errorf("got %v", err)
		}
	})
	t.Run("steal", func(t *testing.T) {
		client, server := New(t, nil)
		err := client.Hold(t.Context(), "r", opts, func(ctx context.Context) error {
			claim := server.Steal("r", "thief", time.Hour)
			if now, owner, ok := server.Holder("r"); !ok || now != claim || owner != "thief" || claim.Token != 2 {
				t.Errorf("the holder is %+v %s", now, owner)
			}
			server.Advance(25 * time.Second)
			<-ctx.Done()
			return context.Cause(ctx)
		})
		if !errors.Is(err, lockclient.ErrLeaseLost) {
			t.Error(err)
		}
	})
	t.Run("expire", func(t *testing.T) {
		client, server := New(t, nil)
		lease, _ := client.TryAcquire(t.Context(), "r", &lockclient.AcquireOptions{TTL: time.Hour})
		if !server.Expire("r") || server.Expire("r") || !lease.Valid() {
			t.Error("not ended on the server alone")
		}
		if err := lease.Renew(t.Context()); !errors.Is(err, lockclient.ErrLeaseLost) {
			t.Error(err)
		}
	})
	t.Run("faults", func(t *testing.T) {
		client, server := New(t, nil)
		server.FailAcquires(1)
		acquire := &lockclient.AcquireOptions{TTL: time.Hour}
		if _, err := client.TryAcquire(t.Context(), "r", acquire); !errors.Is(err, guard.ErrUnavailable) {
			t.Error(err)
		}
		server.LoseAnswers(2)
		lease, err := client.TryAcquire(t.Context(), "r", acquire)
		if err != nil || lease.Token() != 1 {
			t.Fatal(err)
		}
		server.FailRenewals(1)
		if err := errors.Join(lease.Renew(t.Context()), lease.Renew(t.Context())); err != nil {
			t.Error("lost answers, then a failure:", err)
		}
		server.FailReleases(1)
	})
}

// TestRenewsInBubble: in a bubble of testing/synctest time passes by sleeping,
// and Hold renews meanwhile.
func TestRenewsInBubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := New(t, nil)
		err := client.Hold(t.Context(), "r", &lockclient.HoldOptions{TTL: time.Minute}, func(ctx context.Context) error {
			time.Sleep(time.Hour)
			server.FailRenewals(3)
			time.Sleep(time.Hour)
			return context.Cause(ctx)
		})
		if err != nil || client.RenewalLatency().Count < 300 {
			t.Error(err)
		}
	})
}
