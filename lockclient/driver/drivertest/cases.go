package drivertest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
)

// cases is the suite. The cases are independent of each other.
var cases = []testCase{
	{"the limits make sense", "", limits},
	{"a grant is refused to others, with its holder's facts", "", refused},
	{"tokens grow across release, expiry and process", "P3", grow},
	{"tokens grow across a purge", "P3", purged},
	{"one of many at once is granted, and no token twice", "P4", race},
	{"the same lease ID gets its own lease again", "P4", again},
	{"the same lease ID under another owner is refused", "P4", inUse},
	{"names that differ are different resources", "P4", names},
	{"a renewal extends", "", extends},
	{"no renewal shortens a lease", "P7", longest},
	{"each item of a batch has its own result", "", batch},
	{"a renewal brings no released lease back", "P8", renewReleased},
	{"a renewal brings no expired lease back", "P8", renewExpired},
	{"a renewal is of its own lease", "P4", renewOther},
	{"a release frees its own lease, and once", "", release},
	{"a late release frees no successor", "P4", lateRelease},
	{"an earlier lease of the same ID is over", "P4", earlier},
	{"an acquire whose context has ended is not sent", "P8", unsent},
	{"an abandoned lease ID is spent", "P8", abandoned},
	{"a release overtakes an acquire in the network", "P8", overtaken},
	{"a duplicate in the network resurrects nothing", "P8", duplicate},
	{"a late acquire is not granted", "P8", late},
	{"a deadline counts from before the request", "P7", dated},
	{"an error that says nothing was written is right", "P5", honest},
	{"a watch tells who has the lease", "", watch},
}

func limits(x *run) {
	l := x.issuer().Limits()
	x.must(l.Batch >= 0 && l.Poll >= 0 && l.TTLStep >= 0 && l.MinTTL >= 0 && l.ResourceBytes >= 0 && l.MetadataBytes >= 0, "negative: %+v", l)
	x.must(l.MaxTTL == 0 || l.MaxTTL >= l.MinTTL, "MaxTTL %v is below MinTTL %v", l.MaxTTL, l.MinTTL)
	x.must(x.TTL >= l.MinTTL && (l.MaxTTL == 0 || x.TTL <= l.MaxTTL) && (l.TTLStep == 0 || x.TTL%l.TTLStep == 0), "Harness.TTL %v is not within %+v", x.TTL, l)
}

func refused(x *run) {
	a, b := x.issuer(), x.issuer()
	claim := x.acquireNew(a, "refused")
	for _, i := range []driver.Issuer{a, b} {
		g, err := i.Acquire(x.ctx, x.ask(claim.Resource, name("id")))
		var held *driver.HeldError
		x.must(errors.As(err, &held) && errors.Is(err, driver.ErrHeld), "got %+v, %v", g, err)
		x.must(g.Token == guard.NoToken && held.Resource == claim.Resource && held.Token == claim.Token && held.LeaseID == claim.LeaseID &&
			held.Owner == "owner of "+claim.LeaseID && (held.Metadata == metadata) == (b.Limits().MetadataBytes > 0) &&
			held.Remaining > 0 && held.Remaining <= x.TTL+time.Second, "%+v with grant %+v is not the lease %+v", held, g, claim)
	}
	x.held(b, claim)
}

func grow(x *run) {
	a, b, r := x.issuer(), x.issuer(), name("grow")
	last := guard.NoToken
	for n, i := range []driver.Issuer{a, b, b, a, b} {
		claim := x.acquire(i, r, name("id"))
		x.must(claim.Token > last, "grant %d: token %v after %v", n, claim.Token, last)
		last = claim.Token
		if n == 3 {
			x.Pass(x.TTL + x.TTL/4)
		} else {
			x.release(i, claim, true)
		}
	}
}

func purged(x *run) {
	if x.Purge == nil {
		return
	}
	i, r := x.issuer(), name("purged")
	last := guard.NoToken
	for n := range 4 {
		claim := x.acquire(i, r, name("id"))
		x.must(claim.Token > last, "grant %d, after %d purges: token %v after %v", n, n, claim.Token, last)
		last = claim.Token
		x.release(i, claim, true)
		x.Purge(x.t)
	}
}

func race(x *run) {
	issuers := []driver.Issuer{x.issuer(), x.issuer()}
	r := name("race")
	seen := map[guard.Token]bool{}
	for round := range 5 {
		var mu sync.Mutex
		var won []guard.Claim
		var all error
		var wg sync.WaitGroup
		for n := range 8 {
			wg.Go(func() {
				id := name("id")
				g, err := issuers[n%2].Acquire(x.ctx, x.ask(r, id))
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err == nil:
					won = append(won, guard.Claim{Resource: r, Token: g.Token, LeaseID: id})
				case !errors.Is(err, driver.ErrHeld):
					all = errors.Join(all, err)
				}
			})
		}
		wg.Wait()
		x.must(all == nil && len(won) == 1 && !seen[won[0].Token], "round %d: granted were %+v, before that %v; errors: %v", round, won, seen, all)
		seen[won[0].Token] = true
		x.release(issuers[round%2], won[0], true) // by another process, half of the time
	}
}

func again(x *run) {
	a, b, r, id := x.issuer(), x.issuer(), name("again"), name("id")
	first, err := a.Acquire(x.ctx, x.ask(r, id))
	x.must(err == nil, "%w", err)
	for _, i := range []driver.Issuer{a, b} {
		g, err := i.Acquire(x.ctx, x.ask(r, id))
		x.must(err == nil, "again: %w", err)
		x.must(g.Token == first.Token && g.AcquiredAt.Equal(first.AcquiredAt), "%+v, then %+v", first, g)
	}
	x.held(b, guard.Claim{Resource: r, Token: first.Token, LeaseID: id})
}

func inUse(x *run) {
	a, b := x.issuer(), x.issuer()
	claim := x.acquireNew(a, "in-use")
	for _, i := range []driver.Issuer{a, b} {
		for _, waiting := range []bool{false, true} {
			ask := x.ask(claim.Resource, claim.LeaseID)
			ask.Owner, ask.Waiting = "another", waiting
			g, err := i.Acquire(x.ctx, ask)
			x.must(errors.Is(err, guard.ErrInvalid) && strings.Contains(err.Error(), "owner of "+claim.LeaseID), "got %+v, %v, want ErrInvalid that names the holder", g, err)
		}
	}
	x.renewed(a, claim, driver.Extended)
	x.held(b, claim)
}

func names(x *run) {
	i, base := x.issuer(), name("names")
	long := i.Limits().ResourceBytes
	if long == 0 {
		long = guard.MaxResourceLen
	}
	for _, suffix := range []string{":a", ":A", "/a", ":a ", ":%61", ":a:b", ":a%3Ab", ":\u00e4", ":a\u0308", "", fmt.Sprintf("%0*d", long-len(base), 1), fmt.Sprintf("%0*d", long-len(base), 2)} {
		x.acquire(i, base+suffix, name("id"))
	}
}

func extends(x *run) {
	a, b := x.issuer(), x.issuer()
	claim := x.acquireNew(a, "extends")
	for range 2 {
		x.Pass(x.TTL * 6 / 10)
		x.renewed(a, claim, driver.Extended)
	}
	x.held(b, claim)
}

func longest(x *run) {
	a, b := x.issuer(), x.issuer()
	short := x.shorter(a)
	if short == 0 {
		return
	}
	claim := x.acquireNew(a, "longest")
	results := make([]driver.Renewed, 1)
	a.Renew(x.ctx, []driver.Renewal{{Claim: claim, TTL: short}}, results)
	x.must(results[0].State == driver.Extended && results[0].TTL <= x.TTL, "renewed: %+v", results[0])
	again := x.ask(claim.Resource, claim.LeaseID)
	again.TTL = short
	_, err := a.Acquire(x.ctx, again)
	x.must(err == nil, "again: %w", err)
	x.Pass(short + short/4)
	x.held(b, claim)
}

// batch repeats what took so long by the clock on the wall that leases may have run
// out, which says nothing of an issuer.
func batch(x *run) {
	for range 5 {
		if inTime := batchOnce(x); inTime {
			return
		}
		x.TTL *= 2
	}
	x.must(false, "the machine was too slow to renew in time")
}

func batchOnce(x *run) (inTime bool) {
	i := x.issuer()
	size := min(max(i.Limits().Batch, 1), 20)
	began := time.Now()
	claims := make([]guard.Claim, size)
	for n := range claims {
		claims[n] = x.acquireNew(i, "batch")
		if n%3 == 1 {
			x.release(i, claims[n], true)
		}
	}
	for n := 4; n+1 < size; n += 6 { // of one resource and token, before and after the holder's
		claims[n-3], claims[n] = claims[n-4], claims[n+1]
		claims[n-3].LeaseID, claims[n].LeaseID = name("guessed"), name("guessed")
	}
	x.Pass(x.TTL * 6 / 10)
	renewing := time.Now()
	results := x.renew(i, claims...)
	if time.Since(began) > x.TTL*9/10 {
		return false
	}
	for n, got := range results {
		expected := driver.Extended
		if n%3 == 1 {
			expected = driver.Over
		}
		x.must(got.State == expected && got.Err == nil, "item %d of %d: %+v", n, size, got)
	}
	x.Pass(x.TTL * 6 / 10)
	for n, claim := range claims {
		if n%3 == 1 {
			continue
		}
		err := x.holds(i, claim)
		if err != nil && time.Since(renewing) > x.TTL*9/10 {
			return false
		}
		x.must(err == nil, "item %d of %d: %w", n, size, err)
	}
	return true
}

func renewReleased(x *run) {
	i, b := x.issuer(), x.issuer()
	claim := x.acquireNew(i, "released")
	x.release(i, claim, true)
	x.renewed(i, claim, driver.Over)
	x.free(b, claim.Resource)
}

func renewExpired(x *run) {
	i, b := x.issuer(), x.issuer()
	claim := x.acquireNew(i, "expired")
	x.Pass(x.TTL + x.TTL/4)
	x.renewed(i, claim, driver.Over)
	next := x.acquire(b, claim.Resource, name("id"))
	x.renewed(i, claim, driver.Over) // after its successor's grant, too
	x.held(i, next)
}

func renewOther(x *run) {
	i := x.issuer()
	claim := x.acquireNew(i, "other")
	wrongID, wrongToken := claim, claim
	wrongID.LeaseID = name("id")
	wrongToken.Token++
	x.renewed(i, wrongID, driver.Over)
	x.renewed(i, wrongToken, driver.Over)
	x.held(i, claim)
}

func release(x *run) {
	a, b := x.issuer(), x.issuer()
	claim := x.acquireNew(a, "release")
	wrong := claim
	wrong.LeaseID = name("id")
	x.release(b, wrong, false)
	x.held(b, claim)
	x.release(a, claim, true)
	x.release(a, claim, false)
	x.release(a, guard.Claim{Resource: name("never"), Token: 1, LeaseID: name("id")}, false)
	x.free(b, claim.Resource)
}

func lateRelease(x *run) {
	a, b := x.issuer(), x.issuer()
	old := x.acquireNew(a, "late-release")
	x.release(a, old, true)
	next := x.acquire(b, old.Resource, name("id"))
	noToken := old
	noToken.Token = guard.NoToken
	for _, claim := range []guard.Claim{old, noToken, {Resource: old.Resource, LeaseID: name("id")}} {
		x.release(a, claim, false)
	}
	x.held(a, next)
}

// earlier is for a lease that ended, and one that was released.
func earlier(x *run) {
	a, b := x.issuer(), x.issuer()
	for _, expires := range []bool{false, true} {
		old := x.acquireNew(a, "earlier")
		if expires {
			x.Pass(x.TTL + x.TTL/4)
		} else {
			x.release(a, old, true)
		}
		next := x.acquire(b, old.Resource, old.LeaseID)
		x.must(next.Token > old.Token, "token %v after %v", next.Token, old.Token)
		x.renewed(a, old, driver.Over)
		x.release(a, old, false)
		x.held(a, next)
	}
}

func unsent(x *run) {
	a := x.issuer()
	warm := x.acquireNew(a, "unsent") // there is a connection
	resource := name("unsent")
	x.free(a, resource) // what the engine keeps of it is there
	ended, cancel := context.WithCancel(x.ctx)
	cancel()
	for range 20 { // an issuer that looks at whatever is ready sends some
		g, err := a.Acquire(ended, x.ask(resource, name("id")))
		x.must(errors.Is(err, guard.ErrUnavailable) || errors.Is(err, guard.ErrOutcomeUnknown), "with a context that has ended: %+v, %v", g, err)
		x.renewed(a, warm, driver.Extended) // goes after it in the same connection
		x.free(a, resource)
	}
}

func abandoned(x *run) {
	a, b, r := x.issuer(), x.issuer(), name("abandoned")
	granted, never := name("id"), name("id")
	x.acquire(a, r, granted)
	spent := func(i driver.Issuer, id string) {
		g, err := i.Acquire(x.ctx, x.ask(r, id))
		x.must(errors.Is(err, driver.ErrLeaseIDSpent), "acquire under the spent %s: %+v, %v", id, g, err)
	}
	for id, freed := range map[string]bool{granted: true, never: false} {
		x.release(a, guard.Claim{Resource: r, LeaseID: id}, freed)
		spent(a, id)
		spent(b, id)
	}
	x.free(b, r) // a successor has come and gone: the ID must still be spent
	spent(b, granted)
}

// stick sends an acquire that is held in the network and abandoned by its client; gaveUp is
// the client's error, and unsent says that the network held nothing.
func (x *run) stick(i driver.Issuer, n Network, r driver.Request) (gaveUp, unsent error) {
	// The connection and the resource exist, so only the acquire is held.
	x.release(i, x.acquire(i, r.Resource, name("id")), true)
	n.Hold()
	ctx, cancel := context.WithCancel(x.ctx)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		_, err := i.Acquire(ctx, r)
		done <- err
	}()
	for !n.Holding() {
		select {
		case err := <-done:
			return nil, fmt.Errorf("the network did not hold the acquire: %w", err)
		case <-time.After(time.Millisecond):
		}
	}
	cancel()
	gaveUp = <-done
	x.must(gaveUp != nil, "a response to the held acquire came")
	return gaveUp, nil
}

func (x *run) stuck(i driver.Issuer, n Network, r driver.Request) (gaveUp error) {
	gaveUp, unsent := x.stick(i, n, r)
	x.must(unsent == nil, "%w", unsent)
	return gaveUp
}

func overtaken(x *run) {
	a := x.issuer()
	i, network := x.Network(x.t)
	r := x.ask(name("overtaken"), name("id"))
	x.stuck(i, network, r)
	x.release(a, r.Claim(), false)
	network.Deliver()
	x.free(a, r.Resource)
}

func duplicate(x *run) {
	a := x.issuer()
	i, network := x.Network(x.t)
	r := x.ask(name("duplicate"), name("id"))
	x.stuck(i, network, r)
	x.acquire(a, r.Resource, r.LeaseID) // the repeat
	x.release(a, r.Claim(), true)
	network.Deliver()
	x.free(a, r.Resource)
}

func late(x *run) {
	a := x.issuer()
	i, network := x.Network(x.t)
	r := x.ask(name("late"), name("id"))
	for r.Timeout = 200 * time.Millisecond; ; r.Timeout *= 2 {
		_, unsent := x.stick(i, network, r)
		if unsent == nil {
			break
		}
		network.Deliver()
		x.must(errors.Is(unsent, context.DeadlineExceeded) && r.Timeout <= 5*time.Second, "%w", unsent) // else the machine was too slow to send it
		r.Resource, r.LeaseID = name("late"), name("id")
	}
	time.Sleep(r.Timeout + r.Timeout/4 + x.Slack) // the issuer's clock, which Pass may not move
	network.Deliver()
	x.free(a, r.Resource)
}

func dated(x *run) {
	i, network := x.Network(x.t)
	r := x.ask(name("dated"), name("id"))
	claim := x.acquireNew(i, "dated")
	x.renewed(i, claim, driver.Extended) // the connections exist, so only the requests are held
	// delivered holds what send sends, lets it through, and returns a moment
	// before the engine can have seen it.
	delivered := func(send func()) (before time.Duration) {
		network.Hold()
		done := make(chan struct{})
		go func() { defer close(done); send() }()
		for !network.Holding() {
			select {
			case <-done: // it was not held, and failed or will be reported
				return now(i)
			case <-time.After(time.Millisecond):
			}
		}
		before = now(i)
		network.Deliver()
		<-done
		return before
	}
	var grant driver.Grant
	var err error
	var renewed driver.Renewed
	granted := delivered(func() { grant, err = i.Acquire(x.ctx, r) })
	x.must(err == nil, "%w", err)
	extended := delivered(func() { renewed = x.renew(i, claim)[0] })
	x.must(grant.From <= granted, "a grant counts from %v, the engine saw the request after %v", grant.From, granted)
	x.must(renewed.State == driver.Extended, "renewed: %+v", renewed)
	x.must(renewed.From <= extended, "a renewal counts from %v, the engine saw the request after %v", renewed.From, extended)
}

func honest(x *run) {
	a := x.issuer()
	i, network := x.Network(x.t)
	r := x.ask(name("honest"), name("id"))
	gaveUp := x.stuck(i, network, r)
	network.Deliver()
	if errors.Is(gaveUp, guard.ErrOutcomeUnknown) {
		return
	}
	x.must(errors.Is(gaveUp, guard.ErrUnavailable), "an acquire whose context ended: %w", gaveUp)
	x.free(a, r.Resource)
}

func watch(x *run) {
	a, b := x.issuer(), x.issuer()
	claim := x.acquireNew(a, "watch")
	for _, id := range []string{"", name("id")} {
		w, err := b.Watch(x.ctx, driver.Watch{Resource: claim.Resource, LeaseID: id}, func() {})
		if errors.Is(err, driver.ErrNoWatch) {
			return
		}
		x.must(err == nil, "%w", err)
		x.must(w.Held != nil && w.Held.Token == claim.Token && w.Held.LeaseID == claim.LeaseID && w.Held.Remaining > 0, "a watch under %q says %+v, held is %+v", id, w.Held, claim)
		w.Stop()
		w.Stop()
	}
	x.held(b, claim)
}
