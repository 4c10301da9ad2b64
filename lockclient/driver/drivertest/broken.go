package drivertest

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
)

// fault makes a correct issuer into one with a fault that real ones have had.
type fault struct {
	name     string // says what is wrong with it
	caughtBy string // the case that must report it
	needs    need   // without which the fault is none
	broken   func(i driver.Issuer) wrapper
}

type need uint8

const (
	nothing     need = iota
	purges           // Harness.Purge is set
	timeouts         // Harness.SessionBound is not
	shorterTTLs      // the engine has TTLs much shorter than Harness.TTL
)

// in returns the harness with every issuer broken.
func (f fault) in(h Harness) Harness {
	issuer, network := h.Issuer, h.Network
	h.Issuer = func(t testing.TB) driver.Issuer { return f.of(issuer(t)) }
	h.Network = func(t testing.TB) (driver.Issuer, Network) {
		i, n := network(t)
		return f.of(i), n
	}
	return h
}

func (f fault) of(i driver.Issuer) driver.Issuer {
	w := f.broken(i)
	w.Issuer = i
	return w
}

// wrapper is an issuer of which some calls are replaced.
type wrapper struct {
	driver.Issuer
	acquire func(context.Context, driver.Request) (driver.Grant, error)
	renew   func(context.Context, []driver.Renewal, []driver.Renewed)
	release func(context.Context, guard.Claim) (bool, error)
	blind   bool
}

func (w wrapper) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if w.acquire != nil {
		return w.acquire(ctx, r)
	}
	return w.Issuer.Acquire(ctx, r)
}

func (w wrapper) Renew(ctx context.Context, renewals []driver.Renewal, results []driver.Renewed) {
	if w.renew != nil {
		w.renew(ctx, renewals, results)
	} else {
		w.Issuer.Renew(ctx, renewals, results)
	}
}

func (w wrapper) Release(ctx context.Context, claim guard.Claim) (bool, error) {
	if w.release != nil {
		return w.release(ctx, claim)
	}
	return w.Issuer.Release(ctx, claim)
}

func (w wrapper) Watch(ctx context.Context, what driver.Watch, wake func()) (driver.Watching, error) {
	got, err := w.Issuer.Watch(ctx, what, wake)
	if w.blind {
		got.Held = nil
	}
	return got, err
}

func (w wrapper) Now() time.Duration { return now(w.Issuer) }

// Each of these makes wrappers of which one step is changed: the request of an acquire, its
// response, the results of a renewal, the claim of a release.

func requests(change func(r *driver.Request)) func(driver.Issuer) wrapper {
	return func(i driver.Issuer) wrapper {
		return wrapper{acquire: func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			change(&r)
			return i.Acquire(ctx, r)
		}}
	}
}

func grants(change func(ctx context.Context, i driver.Issuer, r driver.Request, g driver.Grant, err error) (driver.Grant, error)) func(driver.Issuer) wrapper {
	return func(i driver.Issuer) wrapper {
		return wrapper{acquire: func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			g, err := i.Acquire(ctx, r)
			return change(ctx, i, r, g, err)
		}}
	}
}

func renewals(change func(ctx context.Context, i driver.Issuer, renewals []driver.Renewal, results []driver.Renewed)) func(driver.Issuer) wrapper {
	return func(i driver.Issuer) wrapper {
		return wrapper{renew: func(ctx context.Context, renewals []driver.Renewal, results []driver.Renewed) {
			i.Renew(ctx, renewals, results)
			change(ctx, i, renewals, results)
		}}
	}
}

func releases(change func(ctx context.Context, i driver.Issuer, claim guard.Claim) guard.Claim) func(driver.Issuer) wrapper {
	return func(i driver.Issuer) wrapper {
		return wrapper{release: func(ctx context.Context, claim guard.Claim) (bool, error) {
			return i.Release(ctx, change(ctx, i, claim))
		}}
	}
}

// faults are the broken issuers.
var faults = []fault{
	{"a refused request's token counts as granted", "a grant is refused to others, with its holder's facts", nothing,
		grants(func(_ context.Context, i driver.Issuer, _ driver.Request, g driver.Grant, err error) (driver.Grant, error) {
			if held := (*driver.HeldError)(nil); errors.As(err, &held) {
				return driver.Grant{Token: held.Token, From: now(i)}, nil
			}
			return g, err
		})},
	{"metadata is dropped", "a grant is refused to others, with its holder's facts", nothing,
		requests(func(r *driver.Request) { r.Metadata = "" })},
	{"a grant promises more than was asked for", "a grant is refused to others, with its holder's facts", nothing,
		grants(func(_ context.Context, _ driver.Issuer, r driver.Request, g driver.Grant, err error) (driver.Grant, error) {
			g.TTL = 3 * r.TTL
			return g, err
		})},
	{"tokens counted by each process", "tokens grow across release, expiry and process", nothing,
		func(i driver.Issuer) wrapper {
			counts, mu := map[string]guard.Token{}, new(sync.Mutex)
			return grants(func(_ context.Context, _ driver.Issuer, r driver.Request, g driver.Grant, err error) (driver.Grant, error) {
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					counts[r.Resource]++
					g.Token = counts[r.Resource]
				}
				return g, err
			})(i)
		}},
	{"the token begins again after a purge", "tokens grow across a purge", purges, oneToken},
	{"the token stays with the resource", "one of many at once is granted, and no token twice", nothing, oneToken},
	{"a lease ID is the holder's, whoever presents it", "the same lease ID under another owner is refused", nothing,
		grants(func(ctx context.Context, i driver.Issuer, r driver.Request, g driver.Grant, err error) (driver.Grant, error) {
			if errors.Is(err, guard.ErrInvalid) {
				r.Owner = "owner of " + r.LeaseID
				return i.Acquire(ctx, r)
			}
			return g, err
		})},
	{"whoever asks takes the lease over", "one of many at once is granted, and no token twice", nothing,
		grants(func(ctx context.Context, i driver.Issuer, r driver.Request, g driver.Grant, err error) (driver.Grant, error) {
			if held := (*driver.HeldError)(nil); errors.As(err, &held) {
				i.Release(ctx, guard.Claim{Resource: r.Resource, Token: held.Token, LeaseID: held.LeaseID})
				return i.Acquire(ctx, r)
			}
			return g, err
		})},
	{"one's own lease is refused as held", "the same lease ID gets its own lease again", nothing,
		func(i driver.Issuer) wrapper {
			var granted sync.Map
			return wrapper{acquire: func(ctx context.Context, r driver.Request) (driver.Grant, error) {
				if _, again := granted.LoadOrStore(r.LeaseID, true); again {
					return driver.Grant{}, &driver.HeldError{Resource: r.Resource, LeaseID: r.LeaseID, Remaining: r.TTL}
				}
				return i.Acquire(ctx, r)
			}}
		}},
	{"an acquire goes on when its context has ended", "an acquire whose context has ended is not sent", nothing,
		func(i driver.Issuer) wrapper {
			return wrapper{acquire: func(ctx context.Context, r driver.Request) (driver.Grant, error) {
				if ctx.Err() == nil {
					return i.Acquire(ctx, r)
				}
				i.Acquire(context.WithoutCancel(ctx), r)
				return driver.Grant{}, guard.OutcomeUnknown("acquire", r.Claim(), ctx.Err())
			}}
		}},
	{"a lease ID that was abandoned is granted", "an abandoned lease ID is spent", nothing,
		grants(func(ctx context.Context, i driver.Issuer, r driver.Request, g driver.Grant, err error) (driver.Grant, error) {
			if errors.Is(err, driver.ErrLeaseIDSpent) {
				r.LeaseID = name("another")
				return i.Acquire(ctx, r)
			}
			return g, err
		})},
	{"a request has no timeout", "a late acquire is not granted", timeouts,
		requests(func(r *driver.Request) { r.Timeout = time.Hour })},
	{"the deadline counts from the response", "a deadline counts from before the request", nothing,
		grants(func(_ context.Context, i driver.Issuer, _ driver.Request, g driver.Grant, err error) (driver.Grant, error) {
			g.From = now(i)
			return g, err
		})},
	{"what is not known counts as not written", "an error that says nothing was written is right", nothing,
		grants(func(ctx context.Context, _ driver.Issuer, r driver.Request, g driver.Grant, err error) (driver.Grant, error) {
			if err != nil && !errors.Is(err, driver.ErrHeld) {
				err = guard.Unavailable("acquire", r.Claim(), context.Cause(ctx))
			}
			return g, err
		})},

	{"delete by name", "a late release frees no successor", nothing, releases(running)},
	{"a release without a token frees whoever holds", "a late release frees no successor", nothing,
		releases(func(ctx context.Context, i driver.Issuer, claim guard.Claim) guard.Claim {
			if claim.Token == guard.NoToken {
				return running(ctx, i, claim)
			}
			return claim
		})},
	{"a second release says freed", "a release frees its own lease, and once", nothing,
		func(i driver.Issuer) wrapper {
			return wrapper{release: func(ctx context.Context, claim guard.Claim) (bool, error) {
				_, err := i.Release(ctx, claim)
				return err == nil, err
			}}
		}},
	{"a release is of whatever its lease ID has", "an earlier lease of the same ID is over", nothing, releases(runningUnderID)},
	{"a release that overtakes does not invalidate", "a release overtakes an acquire in the network", nothing,
		releases(func(_ context.Context, _ driver.Issuer, claim guard.Claim) guard.Claim {
			if claim.Token == guard.NoToken {
				claim.Token = guard.MaxToken // of no lease
			}
			return claim
		})},
	{"a release invalidates nothing", "a duplicate in the network resurrects nothing", nothing,
		releases(func(ctx context.Context, i driver.Issuer, claim guard.Claim) guard.Claim {
			if w, err := i.Watch(ctx, driver.Watch{Resource: claim.Resource}, func() {}); err == nil && w.Held != nil {
				w.Stop()
				claim.Token = w.Held.Token
			}
			return claim
		})},

	{"a renewal is of whatever its lease ID has", "an earlier lease of the same ID is over", nothing,
		func(i driver.Issuer) wrapper {
			return wrapper{renew: func(ctx context.Context, renewals []driver.Renewal, results []driver.Renewed) {
				for n, r := range renewals {
					renewals[n].Claim = runningUnderID(ctx, i, r.Claim)
				}
				i.Renew(ctx, renewals, results)
			}}
		}},
	{"the deadline of a renewal counts from the response", "a deadline counts from before the request", nothing,
		renewals(func(_ context.Context, i driver.Issuer, _ []driver.Renewal, results []driver.Renewed) {
			for n := range results {
				results[n].From = now(i)
			}
		})},
	{"extend or set", "a renewal brings no expired lease back", nothing, renewals(putBack)},
	{"a renewal resurrects a released lease", "a renewal brings no released lease back", nothing, renewals(putBack)},
	{"a renewal extends whoever holds", "a renewal is of its own lease", nothing, renewals(allExtended)},
	{"a renewal that does nothing", "a renewal extends", nothing,
		func(i driver.Issuer) wrapper {
			return wrapper{renew: func(ctx context.Context, renewals []driver.Renewal, results []driver.Renewed) {
				allExtended(ctx, i, renewals, results)
			}}
		}},
	{"a renewal sets the end", "no renewal shortens a lease", shorterTTLs,
		func(i driver.Issuer) wrapper {
			var granted sync.Map
			w := renewals(func(ctx context.Context, i driver.Issuer, renewals []driver.Renewal, _ []driver.Renewed) {
				first, known := granted.Load(renewals[0].Claim.LeaseID)
				if r, _ := first.(driver.Request); known && renewals[0].TTL < r.TTL { // a lease of that TTL instead
					i.Release(ctx, renewals[0].Claim)
					r.TTL = renewals[0].TTL
					i.Acquire(ctx, r)
				}
			})(i)
			w.acquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
				granted.LoadOrStore(r.LeaseID, r)
				return i.Acquire(ctx, r)
			}
			return w
		}},
	{"a batch loses its last item", "each item of a batch has its own result", nothing,
		renewals(func(_ context.Context, _ driver.Issuer, _ []driver.Renewal, results []driver.Renewed) {
			results[len(results)-1] = driver.Renewed{}
		})},
	{"one lost lease makes its batch lost", "each item of a batch has its own result", nothing,
		renewals(func(_ context.Context, _ driver.Issuer, _ []driver.Renewal, results []driver.Renewed) {
			over := slices.ContainsFunc(results, func(r driver.Renewed) bool { return r.State == driver.Over })
			for n := range results {
				if over || len(results) == 1 {
					results[n].State = driver.Over
				}
			}
		})},
	{"a renewal is matched by its token", "each item of a batch has its own result", nothing,
		renewals(func(_ context.Context, _ driver.Issuer, renewals []driver.Renewal, results []driver.Renewed) {
			for n, r := range renewals {
				for k, other := range renewals {
					if r.Claim.Resource == other.Claim.Resource && r.Claim.Token == other.Claim.Token && results[k].State == driver.Extended {
						results[n] = results[k]
					}
				}
			}
		})},
	{"a watch sees nobody", "a watch tells who has the lease", nothing, func(driver.Issuer) wrapper { return wrapper{blind: true} }},
}

// oneToken grants each resource under token 1.
func oneToken(i driver.Issuer) wrapper {
	return grants(func(_ context.Context, _ driver.Issuer, _ driver.Request, g driver.Grant, err error) (driver.Grant, error) {
		g.Token = min(g.Token, 1)
		return g, err
	})(i)
}

// putBack restores leases that no longer exist, under a new lease ID since
// the old one may be spent.
func putBack(ctx context.Context, i driver.Issuer, renewals []driver.Renewal, results []driver.Renewed) {
	for n, r := range renewals {
		if results[n].State == driver.Over {
			g, err := i.Acquire(ctx, driver.Request{Resource: r.Claim.Resource, LeaseID: name("put-back"), TTL: r.TTL, Timeout: time.Minute})
			if err == nil {
				results[n] = driver.Renewed{State: driver.Extended, From: g.From}
			}
		}
	}
}

func allExtended(_ context.Context, i driver.Issuer, _ []driver.Renewal, results []driver.Renewed) {
	for n := range results {
		results[n] = driver.Renewed{State: driver.Extended, From: now(i)}
	}
}

// running returns the claim of the lease that runs, whoever holds it.
func running(ctx context.Context, i driver.Issuer, claim guard.Claim) guard.Claim {
	ttl := time.Minute
	if most := i.Limits().MaxTTL; most > 0 {
		ttl = min(most, ttl) // which the engine grants
	}
	_, err := i.Acquire(ctx, driver.Request{Resource: claim.Resource, LeaseID: name("who"), TTL: ttl, Timeout: time.Minute})
	if held := (*driver.HeldError)(nil); errors.As(err, &held) {
		return guard.Claim{Resource: claim.Resource, Token: held.Token, LeaseID: held.LeaseID}
	}
	return claim
}

// runningUnderID returns the claim of the lease that runs under the claim's lease ID, if one does.
func runningUnderID(ctx context.Context, i driver.Issuer, claim guard.Claim) guard.Claim {
	if c := running(ctx, i, claim); c.LeaseID == claim.LeaseID {
		return c
	}
	return claim
}
