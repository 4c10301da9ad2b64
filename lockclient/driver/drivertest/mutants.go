package drivertest

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
)

// Mutant makes a correct issuer into one with a fault that real ones have had.
type Mutant struct {
	// Name says what is wrong with it, CaughtBy which case reports it.
	Name, CaughtBy string
	// NeedsPurge says that it can only be detected if Harness.Purge is set.
	NeedsPurge bool
	// NeedsTimeout says that it is correct if Harness.SessionBound is set.
	NeedsTimeout bool
	// NeedsShorter says that it is correct where no TTL is much shorter than
	// Harness.TTL.
	NeedsShorter bool
	// Break changes an issuer.
	Break func(driver.Issuer) driver.Issuer
}

// of returns the harness with every issuer broken.
func (m Mutant) of(h Harness) Harness {
	issuer, network := h.Issuer, h.Network
	h.Issuer = func(t testing.TB) driver.Issuer { return m.Break(issuer(t)) }
	h.Network = func(t testing.TB) (driver.Issuer, Network) {
		i, n := network(t)
		return m.Break(i), n
	}
	return h
}

// Mutants returns the broken issuers.
func Mutants() []Mutant {
	return []Mutant{
		{Name: "a refused request's token counts as granted", CaughtBy: "a grant is refused to others, with its holder's facts",
			Break: acquiring(func(ctx context.Context, i driver.Issuer, r driver.Request) (driver.Grant, error) {
				g, err := i.Acquire(ctx, r)
				if held := (*driver.HeldError)(nil); errors.As(err, &held) {
					return driver.Grant{Token: held.Token, From: now(i)}, nil
				}
				return g, err
			})},
		{Name: "metadata is dropped", CaughtBy: "a grant is refused to others, with its holder's facts",
			Break: acquiring(func(ctx context.Context, i driver.Issuer, r driver.Request) (driver.Grant, error) {
				r.Metadata = ""
				return i.Acquire(ctx, r)
			})},
		{Name: "a grant promises more than was asked for", CaughtBy: "a grant is refused to others, with its holder's facts",
			Break: acquiring(func(ctx context.Context, i driver.Issuer, r driver.Request) (driver.Grant, error) {
				g, err := i.Acquire(ctx, r)
				g.TTL = 3 * r.TTL
				return g, err
			})},
		{Name: "tokens counted by each process", CaughtBy: "tokens grow across release, expiry and process",
			Break: func(i driver.Issuer) driver.Issuer {
				counts, mu := map[string]guard.Token{}, new(sync.Mutex)
				return acquiring(func(ctx context.Context, i driver.Issuer, r driver.Request) (driver.Grant, error) {
					g, err := i.Acquire(ctx, r)
					mu.Lock()
					defer mu.Unlock()
					if err == nil {
						counts[r.Resource]++
						g.Token = counts[r.Resource]
					}
					return g, err
				})(i)
			}},
		{Name: "the token begins again after a purge", CaughtBy: "tokens grow across a purge", NeedsPurge: true,
			Break: acquiring(func(ctx context.Context, i driver.Issuer, r driver.Request) (driver.Grant, error) {
				g, err := i.Acquire(ctx, r)
				g.Token = min(g.Token, 1)
				return g, err
			})},
		{Name: "the token stays with the resource", CaughtBy: "one of many at once is granted, and no token twice",
			Break: acquiring(func(ctx context.Context, i driver.Issuer, r driver.Request) (driver.Grant, error) {
				g, err := i.Acquire(ctx, r)
				g.Token = min(g.Token, 1)
				return g, err
			})},
		{Name: "a lease ID is the holder's, whoever presents it", CaughtBy: "the same lease ID under another owner is refused",
			Break: acquiring(func(ctx context.Context, i driver.Issuer, r driver.Request) (driver.Grant, error) {
				g, err := i.Acquire(ctx, r)
				if errors.Is(err, guard.ErrInvalid) {
					r.Owner = "owner of " + r.LeaseID
					return i.Acquire(ctx, r)
				}
				return g, err
			})},
		{Name: "whoever asks takes the lease over", CaughtBy: "one of many at once is granted, and no token twice",
			Break: acquiring(func(ctx context.Context, i driver.Issuer, r driver.Request) (driver.Grant, error) {
				g, err := i.Acquire(ctx, r)
				if held := (*driver.HeldError)(nil); errors.As(err, &held) {
					i.Release(ctx, guard.Claim{Resource: r.Resource, Token: held.Token, LeaseID: held.LeaseID})
					return i.Acquire(ctx, r)
				}
				return g, err
			})},
		{Name: "one's own lease is refused as held", CaughtBy: "the same lease ID gets its own lease again",
			Break: func(i driver.Issuer) driver.Issuer {
				granted, mu := map[string]bool{}, new(sync.Mutex)
				return acquiring(func(ctx context.Context, i driver.Issuer, r driver.Request) (driver.Grant, error) {
					mu.Lock()
					defer mu.Unlock()
					if granted[r.LeaseID] {
						return driver.Grant{}, &driver.HeldError{Resource: r.Resource, LeaseID: r.LeaseID, Remaining: r.TTL}
					}
					granted[r.LeaseID] = true
					return i.Acquire(ctx, r)
				})(i)
			}},
		{Name: "delete by name", CaughtBy: "a late release frees no successor", Break: releasing(byName)},
		{Name: "a release without a token frees whoever holds", CaughtBy: "a late release frees no successor",
			Break: releasing(func(ctx context.Context, i driver.Issuer, claim guard.Claim) (bool, error) {
				if claim.Token == guard.NoToken {
					return byName(ctx, i, claim)
				}
				return i.Release(ctx, claim)
			})},
		{Name: "a second release says freed", CaughtBy: "a release frees its own lease, and once",
			Break: releasing(func(ctx context.Context, i driver.Issuer, claim guard.Claim) (bool, error) {
				_, err := i.Release(ctx, claim)
				return err == nil, err
			})},
		{Name: "a renewal is of whatever its lease ID has", CaughtBy: "an earlier lease of the same ID is over",
			Break: renewing(func(ctx context.Context, i driver.Issuer, renewals []driver.Renewal, results []driver.Renewed) {
				for n, r := range renewals {
					renewals[n].Claim = current(ctx, i, r.Claim)
				}
				i.Renew(ctx, renewals, results)
			})},
		{Name: "a release is of whatever its lease ID has", CaughtBy: "an earlier lease of the same ID is over",
			Break: releasing(func(ctx context.Context, i driver.Issuer, claim guard.Claim) (bool, error) {
				return i.Release(ctx, current(ctx, i, claim))
			})},
		{Name: "an acquire goes on when its context has ended", CaughtBy: "an acquire whose context has ended is not sent",
			Break: acquiring(func(ctx context.Context, i driver.Issuer, r driver.Request) (driver.Grant, error) {
				if ctx.Err() == nil {
					return i.Acquire(ctx, r)
				}
				i.Acquire(context.WithoutCancel(ctx), r)
				return driver.Grant{}, guard.OutcomeUnknown("acquire", r.Claim(), ctx.Err())
			})},
		{Name: "a lease ID that was abandoned is granted", CaughtBy: "an abandoned lease ID is spent", Break: forgetting},
		{Name: "a release that overtakes does not invalidate", CaughtBy: "a release overtakes an acquire in the network",
			Break: releasing(func(ctx context.Context, i driver.Issuer, claim guard.Claim) (bool, error) {
				if claim.Token == guard.NoToken {
					claim.Token = guard.MaxToken // of no lease
				}
				return i.Release(ctx, claim)
			})},
		{Name: "a release invalidates nothing", CaughtBy: "a duplicate in the network resurrects nothing",
			Break: releasing(func(ctx context.Context, i driver.Issuer, claim guard.Claim) (bool, error) {
				if w, err := i.Watch(ctx, driver.Watch{Resource: claim.Resource}, func() {}); err == nil && w.Held != nil {
					w.Stop()
					claim.Token = w.Held.Token
				}
				return i.Release(ctx, claim)
			})},
		{Name: "a request has no timeout", CaughtBy: "a late acquire is not granted", NeedsTimeout: true,
			Break: acquiring(func(ctx context.Context, i driver.Issuer, r driver.Request) (driver.Grant, error) {
				r.Timeout = time.Hour
				return i.Acquire(ctx, r)
			})},
		{Name: "the deadline counts from the response", CaughtBy: "a deadline counts from before the request",
			Break: acquiring(func(ctx context.Context, i driver.Issuer, r driver.Request) (driver.Grant, error) {
				g, err := i.Acquire(ctx, r)
				g.From = now(i)
				return g, err
			})},
		{Name: "the deadline of a renewal counts from the response", CaughtBy: "a deadline counts from before the request",
			Break: renewing(func(ctx context.Context, i driver.Issuer, renewals []driver.Renewal, results []driver.Renewed) {
				i.Renew(ctx, renewals, results)
				for n := range results {
					results[n].From = now(i)
				}
			})},
		{Name: "extend or set", CaughtBy: "a renewal brings no expired lease back", Break: renewing(extendOrSet)},
		{Name: "a renewal resurrects a released lease", CaughtBy: "a renewal brings no released lease back", Break: renewing(extendOrSet)},
		{Name: "a renewal extends whoever holds", CaughtBy: "a renewal is of its own lease",
			Break: renewing(func(ctx context.Context, i driver.Issuer, renewals []driver.Renewal, results []driver.Renewed) {
				i.Renew(ctx, renewals, results)
				for n := range results {
					results[n] = driver.Renewed{State: driver.Extended, From: now(i)}
				}
			})},
		{Name: "a renewal that does nothing", CaughtBy: "a renewal extends",
			Break: renewing(func(_ context.Context, i driver.Issuer, _ []driver.Renewal, results []driver.Renewed) {
				for n := range results {
					results[n] = driver.Renewed{State: driver.Extended, From: now(i)}
				}
			})},
		{Name: "a renewal sets the end", CaughtBy: "no renewal shortens a lease", NeedsShorter: true,
			Break: func(i driver.Issuer) driver.Issuer {
				granted, mu := map[string]driver.Request{}, new(sync.Mutex)
				return renewer{acquirer{i, func(ctx context.Context, i driver.Issuer, r driver.Request) (driver.Grant, error) {
					mu.Lock()
					defer mu.Unlock()
					if _, again := granted[r.LeaseID]; !again {
						granted[r.LeaseID] = r
					}
					return i.Acquire(ctx, r)
				}}, func(ctx context.Context, i driver.Issuer, renewals []driver.Renewal, results []driver.Renewed) {
					i.Renew(ctx, renewals, results)
					mu.Lock()
					r, known := granted[renewals[0].Claim.LeaseID]
					mu.Unlock()
					if known && renewals[0].TTL < r.TTL { // a lease of that TTL instead
						i.Release(ctx, renewals[0].Claim)
						r.TTL = renewals[0].TTL
						i.Acquire(ctx, r)
					}
				}}
			}},
		{Name: "a batch loses its last item", CaughtBy: "each item of a batch has its own result",
			Break: renewing(func(ctx context.Context, i driver.Issuer, renewals []driver.Renewal, results []driver.Renewed) {
				i.Renew(ctx, renewals[:len(renewals)-1], results[:len(results)-1])
			})},
		{Name: "one lost lease makes its batch lost", CaughtBy: "each item of a batch has its own result",
			Break: renewing(func(ctx context.Context, i driver.Issuer, renewals []driver.Renewal, results []driver.Renewed) {
				i.Renew(ctx, renewals, results)
				over := false
				for _, r := range results {
					over = over || r.State == driver.Over
				}
				for n := range results {
					if over || len(results) == 1 {
						results[n].State = driver.Over
					}
				}
			})},
		{Name: "a renewal is matched by its token", CaughtBy: "each item of a batch has its own result",
			Break: renewing(func(ctx context.Context, i driver.Issuer, renewals []driver.Renewal, results []driver.Renewed) {
				i.Renew(ctx, renewals, results)
				for n, r := range renewals {
					for k, other := range renewals {
						if r.Claim.Resource == other.Claim.Resource && r.Claim.Token == other.Claim.Token && results[k].State == driver.Extended {
							results[n] = results[k]
						}
					}
				}
			})},
		{Name: "what is not known counts as not written", CaughtBy: "an error that says nothing was written is right",
			Break: acquiring(func(ctx context.Context, i driver.Issuer, r driver.Request) (driver.Grant, error) {
				g, err := i.Acquire(ctx, r)
				if err != nil && !errors.Is(err, driver.ErrHeld) {
					err = guard.Unavailable("acquire", r.Claim(), context.Cause(ctx))
				}
				return g, err
			})},
		{Name: "a watch sees nobody", CaughtBy: "a watch tells who has the lease", Break: func(i driver.Issuer) driver.Issuer { return blind{i} }},
	}
}

type acquirer struct {
	driver.Issuer
	acquire func(context.Context, driver.Issuer, driver.Request) (driver.Grant, error)
}

func (a acquirer) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	return a.acquire(ctx, a.Issuer, r)
}

func (a acquirer) Now() time.Duration { return now(a.Issuer) }

func acquiring(f func(context.Context, driver.Issuer, driver.Request) (driver.Grant, error)) func(driver.Issuer) driver.Issuer {
	return func(i driver.Issuer) driver.Issuer { return acquirer{i, f} }
}

type renewer struct {
	driver.Issuer
	renew func(context.Context, driver.Issuer, []driver.Renewal, []driver.Renewed)
}

func (r renewer) Renew(ctx context.Context, renewals []driver.Renewal, results []driver.Renewed) {
	r.renew(ctx, r.Issuer, renewals, results)
}

func (r renewer) Now() time.Duration { return now(r.Issuer) }

func renewing(f func(context.Context, driver.Issuer, []driver.Renewal, []driver.Renewed)) func(driver.Issuer) driver.Issuer {
	return func(i driver.Issuer) driver.Issuer { return renewer{i, f} }
}

// extendOrSet restores leases that no longer exist, under a new lease ID since
// the old one may be spent.
func extendOrSet(ctx context.Context, i driver.Issuer, renewals []driver.Renewal, results []driver.Renewed) {
	i.Renew(ctx, renewals, results)
	for n, r := range renewals {
		if results[n].State == driver.Over {
			g, err := i.Acquire(ctx, driver.Request{Resource: r.Claim.Resource, LeaseID: name("put-back"), TTL: r.TTL, Timeout: time.Minute})
			if err == nil {
				results[n] = driver.Renewed{State: driver.Extended, From: g.From}
			}
		}
	}
}

type releaser struct {
	driver.Issuer
	release func(context.Context, driver.Issuer, guard.Claim) (bool, error)
}

func (r releaser) Release(ctx context.Context, claim guard.Claim) (bool, error) {
	return r.release(ctx, r.Issuer, claim)
}

func releasing(f func(context.Context, driver.Issuer, guard.Claim) (bool, error)) func(driver.Issuer) driver.Issuer {
	return func(i driver.Issuer) driver.Issuer { return releaser{i, f} }
}

// grantable is a TTL that the engine grants.
func grantable(i driver.Issuer) time.Duration {
	if most := i.Limits().MaxTTL; most > 0 {
		return min(most, time.Minute)
	}
	return time.Minute
}

// byName frees the current lease, whoever holds it.
func byName(ctx context.Context, i driver.Issuer, claim guard.Claim) (bool, error) {
	_, err := i.Acquire(ctx, driver.Request{Resource: claim.Resource, LeaseID: name("who"), TTL: grantable(i), Timeout: time.Minute})
	if held := (*driver.HeldError)(nil); errors.As(err, &held) {
		return i.Release(ctx, guard.Claim{Resource: claim.Resource, Token: held.Token, LeaseID: held.LeaseID})
	}
	return i.Release(ctx, claim)
}

// current is the claim of the lease that runs under the claim's lease ID, if one does.
func current(ctx context.Context, i driver.Issuer, claim guard.Claim) guard.Claim {
	_, err := i.Acquire(ctx, driver.Request{Resource: claim.Resource, LeaseID: name("who"), TTL: grantable(i), Timeout: time.Minute})
	if held := (*driver.HeldError)(nil); errors.As(err, &held) && held.LeaseID == claim.LeaseID {
		claim.Token = held.Token
	}
	return claim
}

// forgetting grants a spent lease ID as it would any other.
func forgetting(i driver.Issuer) driver.Issuer {
	return acquiring(func(ctx context.Context, i driver.Issuer, r driver.Request) (driver.Grant, error) {
		g, err := i.Acquire(ctx, r)
		if errors.Is(err, driver.ErrLeaseIDSpent) {
			r.LeaseID = name("another")
			return i.Acquire(ctx, r)
		}
		return g, err
	})(i)
}

type blind struct{ driver.Issuer }

func (b blind) Watch(ctx context.Context, w driver.Watch, wake func()) (driver.Watching, error) {
	got, err := b.Issuer.Watch(ctx, w, wake)
	got.Held = nil
	return got, err
}
