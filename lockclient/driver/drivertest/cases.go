package drivertest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
)

// Cases returns the suite. The cases are independent of each other.
func Cases() []Case {
	return []Case{
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
}

func limits(_ context.Context, t testing.TB, h Harness) error {
	l := h.Issuer(t).Limits()
	return errors.Join(
		that(l.Batch >= 0 && l.Poll >= 0 && l.TTLStep >= 0 && l.MinTTL >= 0 && l.ResourceBytes >= 0 && l.MetadataBytes >= 0, "negative: %+v", l),
		that(l.MaxTTL == 0 || l.MaxTTL >= l.MinTTL, "MaxTTL %v is below MinTTL %v", l.MaxTTL, l.MinTTL),
		that(h.TTL >= l.MinTTL && (l.MaxTTL == 0 || h.TTL <= l.MaxTTL) && (l.TTLStep == 0 || h.TTL%l.TTLStep == 0), "Harness.TTL %v is not within %+v", h.TTL, l))
}

func refused(ctx context.Context, t testing.TB, h Harness) error {
	a, b, r := h.Issuer(t), h.Issuer(t), name("refused")
	claim, err := h.acquire(ctx, a, r, name("id"))
	if err != nil {
		return err
	}
	for _, i := range []driver.Issuer{a, b} {
		g, err := i.Acquire(ctx, h.ask(r, name("id")))
		var held *driver.HeldError
		if !errors.As(err, &held) || !errors.Is(err, driver.ErrHeld) {
			return fmt.Errorf("got %+v, %v", g, err)
		}
		if g.Token != guard.NoToken || held.Resource != r || held.Token != claim.Token || held.LeaseID != claim.LeaseID ||
			held.Owner != "owner of "+claim.LeaseID || (held.Metadata == metadata) != (b.Limits().MetadataBytes > 0) || held.Remaining <= 0 || held.Remaining > h.TTL+time.Second {
			return fmt.Errorf("%+v with grant %+v is not the lease %+v", held, g, claim)
		}
	}
	return h.held(ctx, b, claim)
}

func grow(ctx context.Context, t testing.TB, h Harness) error {
	a, b, r := h.Issuer(t), h.Issuer(t), name("grow")
	last := guard.NoToken
	for n, i := range []driver.Issuer{a, b, b, a, b} {
		claim, err := h.acquire(ctx, i, r, name("id"))
		if err != nil {
			return err
		}
		if claim.Token <= last {
			return fmt.Errorf("grant %d: token %v after %v", n, claim.Token, last)
		}
		last = claim.Token
		if n == 3 {
			h.Pass(h.TTL + h.TTL/4)
		} else if _, err := i.Release(ctx, claim); err != nil {
			return err
		}
	}
	return nil
}

func purged(ctx context.Context, t testing.TB, h Harness) error {
	if h.Purge == nil {
		return nil
	}
	i, r := h.Issuer(t), name("purged")
	last := guard.NoToken
	for n := range 4 {
		claim, err := h.acquire(ctx, i, r, name("id"))
		if err != nil {
			return err
		}
		if claim.Token <= last {
			return fmt.Errorf("grant %d, after %d purges: token %v after %v", n, n, claim.Token, last)
		}
		last = claim.Token
		if _, err := i.Release(ctx, claim); err != nil {
			return err
		}
		h.Purge(t)
	}
	return nil
}

func race(ctx context.Context, t testing.TB, h Harness) error {
	issuers := []driver.Issuer{h.Issuer(t), h.Issuer(t)}
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
				g, err := issuers[n%2].Acquire(ctx, h.ask(r, id))
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
		if all != nil || len(won) != 1 || seen[won[0].Token] {
			return errors.Join(all, fmt.Errorf("round %d: granted were %+v, before that %v", round, won, seen))
		}
		seen[won[0].Token] = true
		if freed, err := issuers[round%2].Release(ctx, won[0]); err != nil || !freed {
			return fmt.Errorf("a release by another process: %v, %w", freed, err)
		}
	}
	return nil
}

func again(ctx context.Context, t testing.TB, h Harness) error {
	a, b, r, id := h.Issuer(t), h.Issuer(t), name("again"), name("id")
	first, err := a.Acquire(ctx, h.ask(r, id))
	if err != nil {
		return err
	}
	for _, i := range []driver.Issuer{a, b} {
		g, err := i.Acquire(ctx, h.ask(r, id))
		if err != nil {
			return err
		}
		if g.Token != first.Token || !g.AcquiredAt.Equal(first.AcquiredAt) {
			return fmt.Errorf("%+v, then %+v", first, g)
		}
	}
	return h.held(ctx, b, guard.Claim{Resource: r, Token: first.Token, LeaseID: id})
}

func inUse(ctx context.Context, t testing.TB, h Harness) error {
	a, b, r, id := h.Issuer(t), h.Issuer(t), name("in-use"), name("id")
	claim, err := h.acquire(ctx, a, r, id)
	if err != nil {
		return err
	}
	for _, i := range []driver.Issuer{a, b} {
		for _, waiting := range []bool{false, true} {
			ask := h.ask(r, id)
			ask.Owner, ask.Waiting = "another", waiting
			if g, err := i.Acquire(ctx, ask); !errors.Is(err, guard.ErrInvalid) || !strings.Contains(err.Error(), "owner of "+id) {
				return fmt.Errorf("got %+v, %v, want ErrInvalid that names the holder", g, err)
			}
		}
	}
	if got := h.renew(ctx, a, claim)[0]; got.State != driver.Extended {
		return fmt.Errorf("the holder's renewal: %+v", got)
	}
	return h.held(ctx, b, claim)
}

func names(ctx context.Context, t testing.TB, h Harness) error {
	i, base := h.Issuer(t), name("names")
	long := i.Limits().ResourceBytes
	if long == 0 {
		long = guard.MaxResourceLen
	}
	for _, suffix := range []string{":a", ":A", "/a", ":a ", ":%61", ":a:b", ":a%3Ab", ":\u00e4", ":a\u0308", "", fmt.Sprintf("%0*d", long-len(base), 1), fmt.Sprintf("%0*d", long-len(base), 2)} {
		if _, err := h.acquire(ctx, i, base+suffix, name("id")); err != nil {
			return fmt.Errorf("with the suffix %q: %w", suffix, err)
		}
	}
	return nil
}

func extends(ctx context.Context, t testing.TB, h Harness) error {
	a, b := h.Issuer(t), h.Issuer(t)
	claim, err := h.acquire(ctx, a, name("extends"), name("id"))
	if err != nil {
		return err
	}
	for range 2 {
		h.Pass(h.TTL * 6 / 10)
		got := h.renew(ctx, a, claim)[0]
		if got.State != driver.Extended || got.From == 0 || got.Err != nil || got.TTL < 0 || got.TTL > h.TTL {
			return fmt.Errorf("renewed: %+v", got)
		}
	}
	return h.held(ctx, b, claim)
}

func longest(ctx context.Context, t testing.TB, h Harness) error {
	a, b := h.Issuer(t), h.Issuer(t)
	short := h.shorter(a)
	if short == 0 {
		return nil
	}
	claim, err := h.acquire(ctx, a, name("longest"), name("id"))
	if err != nil {
		return err
	}
	results := make([]driver.Renewed, 1)
	a.Renew(ctx, []driver.Renewal{{Claim: claim, TTL: short}}, results)
	if got := results[0]; got.State != driver.Extended || got.TTL > h.TTL {
		return fmt.Errorf("renewed: %+v", got)
	}
	again := h.ask(claim.Resource, claim.LeaseID)
	again.TTL = short
	if _, err := a.Acquire(ctx, again); err != nil {
		return err
	}
	h.Pass(short + short/4)
	return h.held(ctx, b, claim)
}

// batch repeats what took so long by the clock on the wall that leases may have run
// out, which says nothing of an issuer.
func batch(ctx context.Context, t testing.TB, h Harness) error {
	for try := 0; ; try++ {
		err := batchOnce(ctx, t, h)
		if !errors.Is(err, errSlow) || try == 4 {
			return err
		}
		h.TTL *= 2
	}
}

var errSlow = errors.New("the machine was too slow to renew in time")

func batchOnce(ctx context.Context, t testing.TB, h Harness) error {
	i := h.Issuer(t)
	size := min(max(i.Limits().Batch, 1), 20)
	began := time.Now()
	claims := make([]guard.Claim, size)
	for n := range claims {
		claim, err := h.acquire(ctx, i, name("batch"), name("id"))
		if err != nil {
			return err
		}
		if n%3 == 1 {
			if _, err := i.Release(ctx, claim); err != nil {
				return err
			}
		}
		claims[n] = claim
	}
	for n := 4; n+1 < size; n += 6 { // of one resource and token, before and after the holder's
		claims[n-3], claims[n] = claims[n-4], claims[n+1]
		claims[n-3].LeaseID, claims[n].LeaseID = name("guessed"), name("guessed")
	}
	h.Pass(h.TTL * 6 / 10)
	renewing := time.Now()
	results := h.renew(ctx, i, claims...)
	if time.Since(began) > h.TTL*9/10 {
		return errSlow
	}
	for n, got := range results {
		expected := driver.Extended
		if n%3 == 1 {
			expected = driver.Over
		}
		if got.State != expected || got.Err != nil {
			return fmt.Errorf("item %d of %d: %+v", n, size, got)
		}
	}
	h.Pass(h.TTL * 6 / 10)
	for n, claim := range claims {
		if n%3 == 1 {
			continue
		}
		if err := h.held(ctx, i, claim); err != nil {
			if time.Since(renewing) > h.TTL*9/10 {
				return errSlow
			}
			return fmt.Errorf("item %d of %d: %w", n, size, err)
		}
	}
	return nil
}

func renewReleased(ctx context.Context, t testing.TB, h Harness) error {
	i, b := h.Issuer(t), h.Issuer(t)
	claim, err := h.acquire(ctx, i, name("released"), name("id"))
	if err != nil {
		return err
	}
	if _, err := i.Release(ctx, claim); err != nil {
		return err
	}
	got := h.renew(ctx, i, claim)[0]
	return errors.Join(that(got.State == driver.Over, "renewed: %+v", got), h.free(ctx, b, claim.Resource))
}

func renewExpired(ctx context.Context, t testing.TB, h Harness) error {
	i, b := h.Issuer(t), h.Issuer(t)
	claim, err := h.acquire(ctx, i, name("expired"), name("id"))
	if err != nil {
		return err
	}
	h.Pass(h.TTL + h.TTL/4)
	got := h.renew(ctx, i, claim)[0]
	if err := that(got.State == driver.Over, "renewed: %+v", got); err != nil {
		return err
	}
	next, err := h.acquire(ctx, b, claim.Resource, name("id"))
	if err != nil {
		return err
	}
	got = h.renew(ctx, i, claim)[0]
	return errors.Join(that(got.State == driver.Over, "renewed after its successor's grant: %+v", got), h.held(ctx, i, next))
}

func renewOther(ctx context.Context, t testing.TB, h Harness) error {
	i := h.Issuer(t)
	claim, err := h.acquire(ctx, i, name("other"), name("id"))
	if err != nil {
		return err
	}
	wrongID, wrongToken := claim, claim
	wrongID.LeaseID = name("id")
	wrongToken.Token++
	var all error
	for _, c := range []guard.Claim{wrongID, wrongToken} {
		got := h.renew(ctx, i, c)[0]
		all = errors.Join(all, that(got.State == driver.Over, "%+v renewed the lease of %+v: %+v", c, claim, got))
	}
	return errors.Join(all, h.held(ctx, i, claim))
}

func release(ctx context.Context, t testing.TB, h Harness) error {
	a, b := h.Issuer(t), h.Issuer(t)
	claim, err := h.acquire(ctx, a, name("release"), name("id"))
	if err != nil {
		return err
	}
	wrong := claim
	wrong.LeaseID = name("id")
	none, err := b.Release(ctx, wrong)
	if none || err != nil {
		return fmt.Errorf("a release under another lease ID: %v, %w", none, err)
	}
	if err := h.held(ctx, b, claim); err != nil {
		return err
	}
	for n, expected := range []bool{true, false} {
		if freed, err := a.Release(ctx, claim); freed != expected || err != nil {
			return fmt.Errorf("release %d: %v, %w", n+1, freed, err)
		}
	}
	never, err := a.Release(ctx, guard.Claim{Resource: name("never"), Token: 1, LeaseID: name("id")})
	return errors.Join(that(!never && err == nil, "a release of what never was: %v, %v", never, err), h.free(ctx, b, claim.Resource))
}

func lateRelease(ctx context.Context, t testing.TB, h Harness) error {
	a, b, r := h.Issuer(t), h.Issuer(t), name("late-release")
	old, err := h.acquire(ctx, a, r, name("id"))
	if err != nil {
		return err
	}
	if _, err := a.Release(ctx, old); err != nil {
		return err
	}
	next, err := h.acquire(ctx, b, r, name("id"))
	if err != nil {
		return err
	}
	noToken := old
	noToken.Token = guard.NoToken
	for _, claim := range []guard.Claim{old, noToken, {Resource: r, LeaseID: name("id")}} {
		if freed, err := a.Release(ctx, claim); freed || err != nil {
			return fmt.Errorf("the release of %+v: %v, %w", claim, freed, err)
		}
	}
	return h.held(ctx, a, next)
}

func abandoned(ctx context.Context, t testing.TB, h Harness) error {
	a, b, r := h.Issuer(t), h.Issuer(t), name("abandoned")
	granted, never := name("id"), name("id")
	if _, err := h.acquire(ctx, a, r, granted); err != nil {
		return err
	}
	for id, expected := range map[string]bool{granted: true, never: false} {
		if freed, err := a.Release(ctx, guard.Claim{Resource: r, LeaseID: id}); freed != expected || err != nil {
			return fmt.Errorf("release of %s without a token: %v, %w", id, freed, err)
		}
		for _, i := range []driver.Issuer{a, b} {
			g, err := i.Acquire(ctx, h.ask(r, id))
			if !errors.Is(err, driver.ErrLeaseIDSpent) {
				return fmt.Errorf("acquire under the spent %s: %+v, %v", id, g, err)
			}
		}
	}
	// A successor has come and gone: the ID must still be spent.
	if err := h.free(ctx, b, r); err != nil {
		return err
	}
	_, err := b.Acquire(ctx, h.ask(r, granted))
	return want(err, driver.ErrLeaseIDSpent)
}

// stuck sends an acquire that is held in the network and abandoned by its
// client; gaveUp is the client's error.
func (h Harness) stuck(ctx context.Context, i driver.Issuer, n Network, r driver.Request) (gaveUp, err error) {
	// The connection and the resource exist, so only the acquire is held.
	warm, err := h.acquire(ctx, i, r.Resource, name("id"))
	if err == nil {
		_, err = i.Release(ctx, warm)
	}
	if err != nil {
		return nil, fmt.Errorf("before the network was held: %w", err)
	}
	n.Hold()
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() {
		_, err := i.Acquire(ctx, r)
		done <- err
	}()
	for !n.Holding() {
		select {
		case err := <-done:
			cancel()
			return nil, fmt.Errorf("the network did not hold the acquire: %w", err)
		case <-time.After(time.Millisecond):
		}
	}
	cancel()
	if gaveUp = <-done; gaveUp == nil {
		return nil, errors.New("a response to the held acquire came")
	}
	return gaveUp, nil
}

func overtaken(ctx context.Context, t testing.TB, h Harness) error {
	a := h.Issuer(t)
	i, network := h.Network(t)
	r := h.ask(name("overtaken"), name("id"))
	if _, err := h.stuck(ctx, i, network, r); err != nil {
		return err
	}
	if freed, err := a.Release(ctx, r.Claim()); freed || err != nil {
		return fmt.Errorf("the overtaking release: %v, %w", freed, err)
	}
	network.Deliver()
	return h.free(ctx, a, r.Resource)
}

func duplicate(ctx context.Context, t testing.TB, h Harness) error {
	a := h.Issuer(t)
	i, network := h.Network(t)
	r := h.ask(name("duplicate"), name("id"))
	if _, err := h.stuck(ctx, i, network, r); err != nil {
		return err
	}
	if _, err := h.acquire(ctx, a, r.Resource, r.LeaseID); err != nil { // the repeat
		return err
	}
	if freed, err := a.Release(ctx, r.Claim()); !freed || err != nil {
		return fmt.Errorf("the release: %v, %w", freed, err)
	}
	network.Deliver()
	return h.free(ctx, a, r.Resource)
}

func late(ctx context.Context, t testing.TB, h Harness) error {
	a := h.Issuer(t)
	i, network := h.Network(t)
	r := h.ask(name("late"), name("id"))
	for r.Timeout = 200 * time.Millisecond; ; r.Timeout *= 2 {
		_, err := h.stuck(ctx, i, network, r)
		if err == nil {
			break
		}
		network.Deliver()
		if !errors.Is(err, context.DeadlineExceeded) || r.Timeout > 5*time.Second { // else the machine was too slow to send it
			return err
		}
		r.Resource, r.LeaseID = name("late"), name("id")
	}
	time.Sleep(r.Timeout + r.Timeout/4 + h.Slack) // the issuer's clock, which Pass may not move
	network.Deliver()
	return h.free(ctx, a, r.Resource)
}

func dated(ctx context.Context, t testing.TB, h Harness) error {
	i, network := h.Network(t)
	r := h.ask(name("dated"), name("id"))
	claim, err := h.acquire(ctx, i, name("dated"), name("id"))
	if err != nil {
		return err
	}
	// The connections exist, so only the requests are held.
	if got := h.renew(ctx, i, claim)[0]; got.State != driver.Extended {
		return fmt.Errorf("renewed: %+v", got)
	}
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
	var renewed driver.Renewed
	granted := delivered(func() { grant, err = i.Acquire(ctx, r) })
	if err != nil {
		return err
	}
	extended := delivered(func() { renewed = h.renew(ctx, i, claim)[0] })
	return errors.Join(
		that(grant.From <= granted, "a grant counts from %v, the engine saw the request after %v", grant.From, granted),
		that(renewed.State == driver.Extended, "renewed: %+v", renewed),
		that(renewed.From <= extended, "a renewal counts from %v, the engine saw the request after %v", renewed.From, extended))
}

func honest(ctx context.Context, t testing.TB, h Harness) error {
	a := h.Issuer(t)
	i, network := h.Network(t)
	r := h.ask(name("honest"), name("id"))
	gaveUp, err := h.stuck(ctx, i, network, r)
	if err != nil {
		return err
	}
	network.Deliver()
	switch {
	case errors.Is(gaveUp, guard.ErrOutcomeUnknown):
		return nil
	case errors.Is(gaveUp, guard.ErrUnavailable):
		return h.free(ctx, a, r.Resource)
	}
	return fmt.Errorf("an acquire whose context ended: %w", gaveUp)
}
