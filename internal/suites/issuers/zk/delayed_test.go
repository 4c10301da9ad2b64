package zk_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"net"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/suites/issuers/servers"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/zklock"
)

// gate delays one request.
type gate struct {
	mu         sync.Mutex
	text       []byte // is in the request; nil for none
	held, open chan struct{}
}

// close delays the next request that contains text, until the gate is opened.
func (g *gate) close(text string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.text, g.held, g.open = []byte(text), make(chan struct{}), make(chan struct{})
}

type gated struct {
	net.Conn
	g *gate
}

func (c gated) Write(p []byte) (int, error) {
	c.g.mu.Lock()
	hit, held, open := c.g.text != nil && bytes.Contains(p, c.g.text), c.g.held, c.g.open
	if hit {
		c.g.text = nil
	}
	c.g.mu.Unlock()
	if hit {
		close(held)
		<-open
	}
	return c.Conn.Write(p)
}

// delayed returns an issuer, its gate, and another issuer.
func delayed(t testing.TB, z *servers.ZooKeeper) (late *zklock.Issuer, g *gate, other *zklock.Issuer) {
	t.Helper()
	g = &gate{}
	late = issuer(t, &zklock.Options{Dialer: func(network, address string, timeout time.Duration) (net.Conn, error) {
		conn, err := net.DialTimeout(network, address, timeout)
		return gated{conn, g}, err
	}}, z.Addrs()...)
	free(t, late, acquire(t, late, "warm", rand.Text())) // so that what is delayed is sent in a session
	return late, g, issuer(t, nil, z.Addrs()...)
}

// brief is a lease that runs out soon.
func brief(t testing.TB, i driver.Issuer, resource, id string) guard.Claim {
	t.Helper()
	r := ask(resource, id)
	r.TTL = time.Second
	g, err := i.Acquire(t.Context(), r)
	testkit.Must(t, err)
	return guard.Claim{Resource: resource, Token: g.Token, LeaseID: id}
}

// ended waits until nobody has the lease.
func ended(t testing.TB, i driver.Issuer, resource string) {
	t.Helper()
	testkit.Eventually(t, "the end of the lease", func() bool {
		w, err := i.Watch(t.Context(), driver.Watch{Resource: resource}, func() {})
		testkit.Must(t, err)
		w.Stop()
		return w.Held == nil
	})
}

// TestP7DelayedRequestOfAnEarlierGrant: a request is decided while a lease runs or is over,
// and arrives after another grant under the same lease ID, whose nodes have the same versions.
// The later grant stays, with its token.
func TestP7DelayedRequestOfAnEarlierGrant(t *testing.T) {
	z := startServers(t, 1)
	grantAgain := func(t *testing.T, other driver.Issuer, resource string) guard.Claim {
		free(t, other, acquire(t, other, resource, "c"))
		return acquire(t, other, resource, "a")
	}
	for name, test := range map[string]struct {
		text   string // is in the request that is delayed
		ended  bool   // the lease is over when the request is sent
		resend func(t *testing.T, late driver.Issuer, old guard.Claim) (wrong bool)
	}{
		"take-over": {`"id":"b"`, true, func(t *testing.T, late driver.Issuer, old guard.Claim) bool {
			r := ask(old.Resource, "b")
			r.Waiting = true // it looks first, and then takes over
			_, err := late.Acquire(t.Context(), r)
			return !errors.Is(err, driver.ErrHeld)
		}},
		"renewal": {`"by":`, false, func(t *testing.T, late driver.Issuer, old guard.Claim) bool {
			return renew(t, late, old).State != driver.Over
		}},
		"release": {"/grant-", false, func(t *testing.T, late driver.Issuer, old guard.Claim) bool {
			freed, err := late.Release(t.Context(), old)
			return freed || err != nil
		}},
	} {
		t.Run(name, func(t *testing.T) {
			late, g, other := delayed(t, z)
			old := brief(t, other, name, "a")
			if test.ended {
				ended(t, other, name)
			}
			g.close(test.text)
			wrong := make(chan bool)
			go func() { wrong <- test.resend(t, late, old) }()
			<-g.held
			ended(t, other, name)
			held := grantAgain(t, other, name)
			close(g.open)
			if <-wrong {
				t.Errorf("the delayed request took effect on token %v, or says so", held.Token)
			}
			if got := renew(t, other, held); got.State != driver.Extended {
				t.Errorf("the later grant: %+v", got)
			}
			if again := acquire(t, other, name, "a"); again.Token != held.Token {
				t.Errorf("the later grant's token was %v and is %v", held.Token, again.Token)
			}
		})
	}
}

// TestP8DelayedRenewalRevivesNothing: a renewal, or a repeated acquire, arrives after its
// lease's end. What was said of the lease meanwhile stays true: nobody has it, and no token
// at or below what Advance reached is granted.
func TestP8DelayedRenewalRevivesNothing(t *testing.T) {
	z := startServers(t, 1)
	for name, test := range map[string]struct {
		advance bool
		send    func(late driver.Issuer, old guard.Claim) (relied guard.Token)
	}{
		"renewal": {false, func(late driver.Issuer, old guard.Claim) guard.Token {
			if renew(t, late, old).State == driver.Extended {
				return old.Token
			}
			return guard.NoToken
		}},
		"repeated acquire beneath an advance": {true, func(late driver.Issuer, old guard.Claim) guard.Token {
			g, _ := late.Acquire(t.Context(), ask(old.Resource, old.LeaseID))
			return g.Token
		}},
	} {
		t.Run(name, func(t *testing.T) {
			late, g, other := delayed(t, z)
			old := brief(t, late, name, "a")
			reached := old.Token
			g.close(`"by":`)
			relied := make(chan guard.Token)
			go func() { relied <- test.send(late, old) }()
			<-g.held
			ended(t, other, name)
			if test.advance {
				var err error
				if reached, err = other.Advance(t.Context(), name, old.Token+1<<50); err != nil {
					t.Fatal(err)
				}
				// Whatever clock the next leader has, nothing can bring it back.
				if there, _, err := client(t, z.Addrs()...).Exists("/fencepost/r-" + url.PathEscape(name) + "/lock"); there || err != nil {
					t.Errorf("the ended lease is there after Advance: %v, %v", there, err)
				}
			}
			close(g.open)
			if token := <-relied; token != guard.NoToken && token <= reached {
				t.Errorf("token %v is relied on after %v was reached and the lease was over", token, reached)
			} else if token == guard.NoToken {
				acquire(t, other, name, "b")
			}
		})
	}
}

// TestP8DelayedReleaseSpends: a release without a token sees no lease, and is delayed until
// one was granted under its lease ID. It frees that one.
func TestP8DelayedReleaseSpends(t *testing.T) {
	z := startServers(t, 1)
	for resource, taken := range map[string]bool{"free": false, "expired": true} {
		late, g, other := delayed(t, z)
		if taken {
			brief(t, other, resource, "before")
			ended(t, other, resource)
		} else {
			free(t, other, acquire(t, other, resource, "before"))
		}
		g.close("/id-a")
		freed := make(chan bool)
		go func() {
			ok, err := late.Release(t.Context(), guard.Claim{Resource: resource, LeaseID: "a"})
			freed <- ok && err == nil
		}()
		<-g.held
		acquire(t, other, resource, "a")
		close(g.open)
		if !<-freed {
			t.Error("the release freed nothing")
		}
		if _, err := other.Acquire(t.Context(), ask(resource, "a")); !errors.Is(err, driver.ErrLeaseIDSpent) {
			t.Errorf("an acquire under the spent lease ID: %v", err)
		}
		free(t, other, acquire(t, other, resource, "after"))
	}
}

// TestReleaseBesideARenewal: a release looks at the lease, which is extended before the
// release arrives, after the end that it saw. It says that it freed the lease.
func TestReleaseBesideARenewal(t *testing.T) {
	z := startServers(t, 1)
	late, g, other := delayed(t, z)
	claim := brief(t, other, "r", "a")
	g.close("/grant-")
	freed := make(chan bool)
	go func() {
		ok, err := late.Release(t.Context(), claim)
		freed <- ok && err == nil
	}()
	<-g.held
	if got := renew(t, other, claim); got.State != driver.Extended {
		t.Fatalf("renewed: %+v", got)
	}
	time.Sleep(2500 * time.Millisecond) // past the end that the release saw
	close(g.open)
	if !<-freed {
		t.Error("a lease that ran was released, and the release says that it freed nothing")
	}
}

// TestP3RaiseEpochThatFails: the base stays known, so that nothing is granted below it.
func TestP3RaiseEpochThatFails(t *testing.T) {
	z := startServers(t, 1)
	i := issuer(t, nil, z.Addrs()...)
	first := acquire(t, i, "r", "a")
	free(t, i, first)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := i.RaiseEpoch(ctx); err == nil {
		t.Error("control: RaiseEpoch succeeds with a context that has ended")
	}
	if second := acquire(t, i, "r", "b"); second.Token <= first.Token {
		t.Errorf("token %v after %v", second.Token, first.Token)
	}
}

// TestP3AcquireDuringRaiseEpoch: a grant while RaiseEpoch is on the way is above the
// grants before, and one after it above what it raised.
func TestP3AcquireDuringRaiseEpoch(t *testing.T) {
	z := startServers(t, 1)
	late, g, other := delayed(t, z)
	first := acquire(t, late, "first", "a")
	for _, raising := range []*zklock.Issuer{late, other} {
		g.close(`"id":"during"`)
		granted := make(chan guard.Token)
		go func() {
			grant, _ := late.Acquire(t.Context(), ask("during", "during"))
			granted <- grant.Token
		}()
		<-g.held
		raised := make(chan error)
		go func() {
			_, err := raising.RaiseEpoch(t.Context())
			raised <- err
		}()
		if raising == other { // else it waits in the same connection
			testkit.Must(t, <-raised)
			raised = nil
		}
		close(g.open)
		during := <-granted
		if raised != nil {
			testkit.Must(t, <-raised)
		}
		if during <= first.Token {
			t.Errorf("token %v after %v", during, first.Token)
		}
		free(t, other, guard.Claim{Resource: "during", Token: during, LeaseID: "during"})
		after := acquire(t, late, "after", "a")
		if after.Token <= during {
			t.Errorf("token %v after %v and RaiseEpoch", after.Token, during)
		}
		free(t, late, after)
		first = after
	}
}
