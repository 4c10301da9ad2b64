package lockclient

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/driver/memory"
)

// pair is two clients of one server.
type pair struct {
	a, b *Client
	wire driver.Issuer // for requests that were delayed in the network
	// pass moves the clock of the server and the clients forward.
	pass func(time.Duration)
	// cut ends the lease on "r" on the server, without its holder.
	cut func()
	// waits returns when a waiter for "r" rests.
	waits func()
}

// clientSuite has one promise of the client per case.
var clientSuite = map[string]func(ctx context.Context, p pair) error{
	"a grant is a lease": func(ctx context.Context, p pair) error {
		l, err := tryAs(ctx, p.a, "")
		if err != nil {
			return err
		}
		return errors.Join(
			that(l.Valid() && l.Err() == nil && l.Remaining() > 0 && l.Remaining() <= time.Minute, "not valid: %v, %v", l.Err(), l.Remaining()),
			that(l.Claim() == guard.Claim{Resource: "r", Token: l.Token(), LeaseID: l.ID()} && l.Token() > 0 && l.ID() != "", "claim %+v", l.Claim()))
	},
	"a lease that is held is refused with its holder's facts": func(ctx context.Context, p pair) error {
		l, err := tryAs(ctx, p.a, "")
		if err != nil {
			return err
		}
		_, err = tryAs(ctx, p.b, "")
		var held *HeldError
		if !errors.As(err, &held) || !errors.Is(err, ErrHeld) {
			return fmt.Errorf("got %v", err)
		}
		return that(held.Token == l.Token() && held.LeaseID == l.ID() && held.Owner == l.Owner() && held.Resource == "r" &&
			held.Remaining > 0 && held.Remaining <= time.Minute && held.ExpiresAt.After(l.AcquiredAt()), "%+v is not the lease %+v", held, l.Claim())
	},
	"the same lease ID gets its own token": func(ctx context.Context, p pair) error {
		l, err := tryAs(ctx, p.a, "mine")
		if err != nil {
			return err
		}
		other, err := tryAs(ctx, p.b, "mine")
		if err != nil {
			return err
		}
		return that(other.Claim() == l.Claim() && other.AcquiredAt().Equal(l.AcquiredAt()), "%+v, then %+v", l.Claim(), other.Claim())
	},
	"tokens grow across release and owner": func(ctx context.Context, p pair) error {
		var last guard.Token
		for i, c := range []*Client{p.a, p.b, p.b, p.a} {
			l, err := tryAs(ctx, c, "")
			if err != nil {
				return err
			}
			if l.Token() <= last {
				return fmt.Errorf("grant %d: token %v after %v", i, l.Token(), last)
			}
			last = l.Token()
			if err := l.Release(ctx); err != nil {
				return err
			}
		}
		return nil
	},
	"a renewal extends": func(ctx context.Context, p pair) error {
		l, err := tryAs(ctx, p.a, "")
		if err != nil {
			return err
		}
		for range 4 {
			p.pass(20 * time.Second)
			if err := l.Renew(ctx); err != nil {
				return err
			}
		}
		_, err = tryAs(ctx, p.b, "")
		return errors.Join(wants(err, ErrHeld), that(l.Valid(), "lost: %v", l.Err()),
			that(p.a.RenewalLatency().Count == 4, "measured %+v", p.a.RenewalLatency()))
	},
	"a release is idempotent and frees; late requests do nothing": func(ctx context.Context, p pair) error {
		l, err := tryAs(ctx, p.a, "")
		if err == nil {
			err = errors.Join(l.Release(ctx), l.Release(ctx))
		}
		if err != nil {
			return err
		}
		<-l.Done()
		_, next := tryAs(ctx, p.b, "")
		late := errors.Join(wants(l.Err(), ErrReleased), next, wants(l.Renew(ctx), ErrReleased), p.late(ctx, l.Claim()))
		_, err = tryAs(ctx, p.a, "")
		return errors.Join(late, wants(err, ErrHeld))
	},
	"an expired lease is lost, and taken over with a higher token": func(ctx context.Context, p pair) error {
		l, err := tryAs(ctx, p.a, "mine")
		if err != nil {
			return err
		}
		p.pass(time.Minute + 20*time.Millisecond)
		if l.Valid() {
			return errors.New("valid after its end")
		}
		<-l.Done()
		next, err := tryAs(ctx, p.b, "")
		if err != nil {
			return err
		}
		return errors.Join(wants(l.Err(), ErrLeaseLost), wants(l.Renew(ctx), ErrLeaseLost),
			that(next.Token() > l.Token(), "token %v after %v", next.Token(), l.Token()),
			that(p.b.Stats().Other.Reclaimed == 1, "a takeover is not told from a grant: %+v", p.b.Stats().Other), p.late(ctx, l.Claim()), l.Release(ctx))
	},
	"a lease ID whose lease ran out gets a new token": func(ctx context.Context, p pair) error {
		l, err := tryAs(ctx, p.a, "mine")
		if err != nil {
			return err
		}
		p.pass(time.Minute + 20*time.Millisecond)
		next, err := tryAs(ctx, p.a, "mine")
		if err != nil {
			return err
		}
		return that(next.Token() > l.Token(), "token %v after %v", next.Token(), l.Token())
	},
	"waiters are granted one after the other": func(ctx context.Context, p pair) error {
		last, err := tryAs(ctx, p.a, "")
		if err != nil {
			return err
		}
		type got struct {
			lease *Lease
			err   error
		}
		outcomes := make(chan got, 4)
		for _, c := range []*Client{p.a, p.b, p.a, p.b} {
			go func() {
				lease, err := c.Acquire(ctx, "r", &AcquireOptions{TTL: time.Minute})
				outcomes <- got{lease, err}
			}()
		}
		if p.waits(); len(outcomes) > 0 {
			return errors.New("granted while it was held")
		}
		for range 4 {
			if err := last.Release(ctx); err != nil {
				return err
			}
			o := <-outcomes
			if o.err != nil || o.lease.Token() <= last.Token() {
				return fmt.Errorf("after token %v: %+v", last.Token(), o)
			}
			last = o.lease
		}
		return nil
	},
	"a wait ends with its context and names the holder": func(ctx context.Context, p pair) error {
		l, err := tryAs(ctx, p.a, "")
		if err != nil {
			return err
		}
		mine := errors.New("mine")
		ending, cancel := context.WithCancelCause(ctx)
		go func() {
			p.waits()
			cancel(mine)
		}()
		_, err = p.b.Acquire(ending, "r", &AcquireOptions{TTL: time.Minute})
		var held *HeldError
		return errors.Join(wants(err, mine), that(errors.As(err, &held) && held.Token == l.Token(), "no holder in %v", err),
			that(l.Valid(), "the lease is over: %v", l.Err()))
	},
	"Hold carries the claim, and ends it with ErrReleased": func(ctx context.Context, p pair) error {
		mine := errors.New("mine")
		var inner context.Context
		var inside error
		err := p.a.Hold(ctx, "r", &HoldOptions{TTL: time.Minute}, func(ctx context.Context) error {
			inner = ctx
			claim, ok := guard.ClaimFrom(ctx)
			lease, held := guard.LeaseFrom(ctx)
			_, err := tryAs(ctx, p.b, "")
			inside = errors.Join(wants(err, ErrHeld),
				that(ok && held && lease.Valid() && claim == lease.Claim() && claim.Resource == "r" && claim.Token > 0, "the context carries %+v", claim))
			return mine
		})
		_, next := tryAs(ctx, p.b, "")
		return errors.Join(inside, wants(err, mine), wants(context.Cause(inner), ErrReleased), next)
	},
	"Hold ends with the loss as its cause": func(ctx context.Context, p pair) error {
		mine := errors.New("mine")
		var cause error
		err := p.a.Hold(ctx, "r", &HoldOptions{TTL: time.Minute, RenewInterval: 20 * time.Millisecond}, func(ctx context.Context) error {
			p.cut()
			<-ctx.Done()
			cause = context.Cause(ctx)
			return mine
		})
		return errors.Join(wants(cause, ErrLeaseLost), wants(err, ErrLeaseLost), wants(err, mine))
	},
	"a panic in Hold releases": func(ctx context.Context, p pair) (err error) {
		func() {
			defer func() {
				if got := recover(); got != "mine" {
					err = fmt.Errorf("recovered %v", got)
				}
			}()
			p.a.Hold(ctx, "r", &HoldOptions{TTL: time.Minute}, func(context.Context) error { panic("mine") })
		}()
		_, next := tryAs(ctx, p.b, "")
		return errors.Join(err, next)
	},
	"what is wrong is refused before anything is sent": func(ctx context.Context, p pair) error {
		_, noResource := p.a.TryAcquire(ctx, "", &AcquireOptions{TTL: time.Minute})
		_, badID := tryAs(ctx, p.a, "a\nb")
		_, noTTL := p.a.TryAcquire(ctx, "r", nil)
		_, shortTTL := p.a.Acquire(ctx, "r", &AcquireOptions{TTL: MinTTL - 1})
		all := wants(p.a.Hold(ctx, "r", &HoldOptions{TTL: time.Minute}, nil), guard.ErrInvalid)
		for _, err := range []error{noResource, badID, noTTL, shortTTL} {
			all = errors.Join(all, wants(err, guard.ErrInvalid))
		}
		_, err := tryAs(ctx, p.b, "")
		return errors.Join(all, err)
	},
	"a closed client sends nothing": func(ctx context.Context, p pair) error {
		l, err := tryAs(ctx, p.a, "")
		if err != nil {
			return err
		}
		all := errors.Join(p.a.Close(ctx), p.a.Close(ctx))
		_, err = p.a.TryAcquire(ctx, "other", &AcquireOptions{TTL: time.Minute})
		_, waited := p.a.Acquire(ctx, "other", &AcquireOptions{TTL: time.Minute})
		return errors.Join(all, wants(err, guard.ErrUnavailable), wants(waited, guard.ErrUnavailable), wants(l.Renew(ctx), guard.ErrUnavailable))
	},
}

func tryAs(ctx context.Context, c *Client, id string) (*Lease, error) {
	return c.TryAcquire(ctx, "r", &AcquireOptions{TTL: time.Minute, LeaseID: id})
}

// late sends a former holder's requests that the network delayed.
func (p pair) late(ctx context.Context, claim guard.Claim) error {
	results := make([]driver.Renewed, 1)
	p.wire.Renew(ctx, []driver.Renewal{{Claim: claim, TTL: time.Minute}}, results)
	freed, err := p.wire.Release(ctx, claim)
	return errors.Join(err, that(results[0].State == driver.Over && !freed, "the server took a late request: %+v, freed %t", results[0], freed))
}

func that(ok bool, format string, args ...any) error {
	if ok {
		return nil
	}
	return fmt.Errorf(format, args...)
}

func wants(err, target error) error {
	return that(errors.Is(err, target), "got %v, want %v", err, target)
}

// TestClientSuite runs the client's promises on PostgreSQL and in memory.
func TestClientSuite(t *testing.T) {
	pool := migrated(t)
	for name, check := range clientSuite {
		t.Run("PostgreSQL/"+name, func(t *testing.T) {
			mustExec(t, pool, "DELETE FROM fencepost.leases WHERE resource <> ''")
			mustExec(t, pool, "DELETE FROM fencepost.spent")
			p := pair{a: newTestClient(t, pool, nil), b: newTestClient(t, pool, nil)}
			p.wire = p.b.issuer
			moveA, moveB := movable(p.a), movable(p.b)
			p.pass = func(d time.Duration) { // the server's clock cannot be moved, so its leases are shortened
				mustExec(t, pool, `UPDATE fencepost.leases SET acquired_at = acquired_at - $1::bigint * interval '1 microsecond',
					expires_at = expires_at - $1::bigint * interval '1 microsecond' WHERE resource <> ''`, d.Microseconds())
				moveA(d)
				moveB(d)
			}
			p.cut = func() {
				mustExec(t, pool, "UPDATE fencepost.leases SET lease_id = NULL, token = token + 1 WHERE resource = 'r'")
			}
			p.waits = func() { eventually(t, "a waiter rests", func() bool { return rests(t, pool, "r") }) }
			if err := check(t.Context(), p); err != nil {
				t.Error(err)
			}
		})
		t.Run("memory/"+name, func(t *testing.T) {
			if err := inMemory(t, "", check); err != nil {
				t.Error(err)
			}
		})
	}
	// The controls: for every flaw of a server some case fails.
	for _, flaw := range []string{"grants what is held", "forgets the lease ID", "refuses without the facts", "one token for all",
		"renews anything", "renews nothing", "releases anybody's", "releases nothing", "tells no takeover"} {
		t.Run("flaw: "+flaw, func(t *testing.T) {
			told := 0
			for _, check := range clientSuite {
				if inMemory(t, flaw, check) != nil {
					told++
				}
			}
			if told == 0 {
				t.Error("no case tells it")
			}
		})
	}
}

func inMemory(t *testing.T, flaw string, check func(context.Context, pair) error) (err error) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		s := memory.NewServer()
		client := func() *Client {
			c := simulate(t, flawed{s.Issuer(), s, flaw}, &Options{Logger: slog.New(slog.DiscardHandler)})
			t.Cleanup(func() { c.Close(context.Background()) })
			return c
		}
		err = check(ctx, pair{
			a: client(), b: client(), wire: flawed{s.Issuer(), s, flaw}, pass: s.Move, waits: synctest.Wait,
			cut: func() { s.Steal("r", "somebody", time.Minute) },
		})
	})
	return err
}

// flawed is a server with one flaw.
type flawed struct {
	*memory.Issuer
	s    *memory.Server
	flaw string
}

func (f flawed) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	held := f.s.Holder(r.Resource)
	if held != nil && held.LeaseID == r.LeaseID {
		held = nil
	}
	switch {
	case f.flaw == "grants what is held" && held != nil:
		f.s.Expire(r.Resource)
	case f.flaw == "forgets the lease ID":
		r.LeaseID += "x"
	case f.flaw == "refuses without the facts" && held != nil:
		return driver.Grant{}, &HeldError{Remaining: held.Remaining}
	}
	g, err := f.Issuer.Acquire(ctx, r)
	if f.flaw == "one token for all" && err == nil {
		g.Token = 1
	}
	g.Reclaimed = g.Reclaimed && f.flaw != "tells no takeover"
	return g, err
}

func (f flawed) Renew(ctx context.Context, renewals []driver.Renewal, results []driver.Renewed) {
	f.Issuer.Renew(ctx, renewals, results)
	for n := range results {
		switch f.flaw {
		case "renews anything":
			results[n] = driver.Renewed{State: driver.Extended, From: f.Now()}
		case "renews nothing":
			results[n] = driver.Renewed{State: driver.Over}
		}
	}
}

func (f flawed) Release(ctx context.Context, claim guard.Claim) (bool, error) {
	switch f.flaw {
	case "releases anybody's":
		return f.s.Expire(claim.Resource), nil
	case "releases nothing":
		return true, nil
	}
	return f.Issuer.Release(ctx, claim)
}
