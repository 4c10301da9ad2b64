// Package conform is the suite that lockclient's client passes on PostgreSQL and
// on the server of locktest alike. Each case checks one promise.
package conform

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient"
)

// Harness is a server with two clients.
type Harness struct {
	A, B *lockclient.Client
	// Cut ends the lease on a resource on the server without its holder's doing.
	Cut func(resource string)
	// Pass moves the clock of the server and the clients forward: a machine
	// that is slow would take longer than a short TTL. No renewal needs to happen
	// meanwhile.
	Pass func(time.Duration)
	// Wire sends a release, or a renewal, as a request that was held up in the
	// network, and reports whether the server took it.
	Wire func(op string, claim guard.Claim) bool
	// Awaited reports whether a waiter rests who is to be told of the release.
	Awaited func(resource string) bool
}

// Case is one promise.
type Case struct {
	Name  string
	Check func(ctx context.Context, h Harness) error
}

const ttl = time.Minute

// Cases returns the suite.
func Cases() []Case {
	return []Case{
		{"a grant is a lease", grant},
		{"a lease that is held is refused with its holder's facts", refuse},
		{"the same lease ID gets its own token", same},
		{"tokens grow across release and owner", grow},
		{"a renewal extends", renew},
		{"a release is idempotent and frees", release},
		{"a late release frees no successor", lateRelease},
		{"a late renewal brings nothing back", lateRenewal},
		{"an expired lease is lost, and taken over with a higher token", expire},
		{"a lease ID whose lease ran out gets a new token", again},
		{"a waiter is granted after the release", waitRelease},
		{"a wait ends with its context and names the holder", waitEnds},
		{"Hold carries the claim, and ends it with ErrReleased", hold},
		{"Hold ends with the loss as its cause", holdLost},
		{"a panic in Hold releases", holdPanics},
		{"what is wrong is refused at the door", invalid},
		{"a grant after an expiry is told from one after a release", reclaim},
		{"a closed client sends nothing", closed},
	}
}

func try(ctx context.Context, c *lockclient.Client, r, id string) (*lockclient.Lease, error) {
	return c.TryAcquire(ctx, r, &lockclient.AcquireOptions{TTL: ttl, LeaseID: id})
}

func want(err, target error) error {
	if !errors.Is(err, target) {
		return fmt.Errorf("got %v, want %v", err, target)
	}
	return nil
}

func that(ok bool, format string, args ...any) error {
	if ok {
		return nil
	}
	return fmt.Errorf(format, args...)
}

func grant(ctx context.Context, h Harness) error {
	l, err := try(ctx, h.A, "r", "")
	if err != nil {
		return err
	}
	return errors.Join(
		that(l.Valid() && l.Err() == nil && l.Remaining() > 0 && l.Remaining() <= ttl, "not valid: %v, %v", l.Err(), l.Remaining()),
		that(l.Claim() == guard.Claim{Resource: "r", Token: l.Token(), LeaseID: l.ID()} && l.Token() > 0 && l.ID() != "", "claim %+v", l.Claim()))
}

func refuse(ctx context.Context, h Harness) error {
	l, err := try(ctx, h.A, "r", "")
	if err != nil {
		return err
	}
	_, err = try(ctx, h.B, "r", "")
	var held *lockclient.HeldError
	if !errors.As(err, &held) || !errors.Is(err, lockclient.ErrHeld) {
		return fmt.Errorf("got %v", err)
	}
	return that(held.Token == l.Token() && held.LeaseID == l.ID() && held.Owner == l.Owner() && held.Resource == "r" &&
		held.Remaining > 0 && held.Remaining <= ttl && held.ExpiresAt.After(l.AcquiredAt()), "%+v is not the lease %+v", held, l.Claim())
}

func same(ctx context.Context, h Harness) error {
	l, err := try(ctx, h.A, "r", "mine")
	if err != nil {
		return err
	}
	other, err := try(ctx, h.B, "r", "mine")
	if err != nil {
		return err
	}
	return that(other.Claim() == l.Claim() && other.AcquiredAt().Equal(l.AcquiredAt()), "%+v, then %+v", l.Claim(), other.Claim())
}

func grow(ctx context.Context, h Harness) error {
	var last guard.Token
	for i, c := range []*lockclient.Client{h.A, h.B, h.B, h.A} {
		l, err := try(ctx, c, "r", "")
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
}

func renew(ctx context.Context, h Harness) error {
	l, err := h.A.TryAcquire(ctx, "r", &lockclient.AcquireOptions{TTL: short})
	if err != nil {
		return err
	}
	for range 4 {
		h.Pass(short / 3)
		if err := l.Renew(ctx); err != nil {
			return err
		}
	}
	_, err = try(ctx, h.B, "r", "")
	return errors.Join(want(err, lockclient.ErrHeld), that(l.Valid(), "lost: %v", l.Err()),
		that(l.RenewalLatency().Count == 4, "measured %+v", l.RenewalLatency()))
}

func release(ctx context.Context, h Harness) error {
	l, err := try(ctx, h.A, "r", "")
	if err != nil {
		return err
	}
	for range 2 {
		if err := l.Release(ctx); err != nil {
			return err
		}
	}
	<-l.Done()
	err = l.Err()
	_, next := try(ctx, h.B, "r", "")
	return errors.Join(want(err, lockclient.ErrReleased), next, want(l.Renew(ctx), lockclient.ErrReleased))
}

func lateRelease(ctx context.Context, h Harness) error {
	l, err := try(ctx, h.A, "r", "")
	if err != nil {
		return err
	}
	if err := l.Release(ctx); err != nil {
		return err
	}
	if _, err := try(ctx, h.B, "r", ""); err != nil {
		return err
	}
	if h.Wire("release", l.Claim()) {
		return errors.New("it freed something")
	}
	_, err = try(ctx, h.A, "r", "")
	return want(err, lockclient.ErrHeld)
}

func lateRenewal(ctx context.Context, h Harness) error {
	l, err := try(ctx, h.A, "r", "")
	if err != nil {
		return err
	}
	if err := l.Release(ctx); err != nil {
		return err
	}
	if h.Wire("renew", l.Claim()) {
		return errors.New("it was renewed")
	}
	_, err = try(ctx, h.B, "r", "")
	return err
}
