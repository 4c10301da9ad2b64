package lockclient

import (
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/internal/pglease"
)

// Stats is what a client has counted since it was made.
type Stats struct {
	// Prefixes are the counts of Options.StatPrefixes, in that order. A
	// resource is counted by the longest prefix that it begins with.
	Prefixes []PrefixStats `json:"prefixes"`
	// Other is everything that begins with none of them.
	Other PrefixStats `json:"other"`
}

// PrefixStats are the counts of the resources that begin with one prefix.
type PrefixStats struct {
	// Prefix is as configured; empty for [Stats].Other.
	Prefix string `json:"prefix"`
	// Attempted is how many acquires have ended, Granted those that got the
	// lease, Contended those that found it held, once per call, whether they
	// got it later or not.
	Attempted int64 `json:"attempted"`
	Granted   int64 `json:"granted"`
	Contended int64 `json:"contended"`
	// Reclaimed is how many grants replaced a lease that had run out without
	// being released.
	Reclaimed int64 `json:"reclaimed"`
	// Renewed is how many renewals succeeded, RenewalsFailed how many attempts
	// failed; a failed one is repeated and need not lose the lease.
	Renewed        int64 `json:"renewed"`
	RenewalsFailed int64 `json:"renewalsFailed"`
	// Released is how many leases were released, ReleasesFailed how many
	// releases were abandoned, which leaves a lease to its TTL.
	Released       int64 `json:"released"`
	ReleasesFailed int64 `json:"releasesFailed"`
	// Lost is how many leases ended without being released by their holder.
	Lost int64 `json:"lost"`
	// ForceUnlocked is how many leases were lost because an operator ended
	// them; Lost counts them too.
	ForceUnlocked int64 `json:"forceUnlocked"`
	// Waited is how long all acquires took together, Held how long the leases
	// that have ended had been held.
	Waited time.Duration `json:"waitedNanoseconds"`
	Held   time.Duration `json:"heldNanoseconds"`
}

// Stats returns the counts so far. They cover only this client; the counters
// are read one by one while the client works.
func (c *Client) Stats() Stats {
	s := c.events.stats
	out := Stats{Prefixes: make([]PrefixStats, len(s.prefixes)), Other: s.other.read("")}
	for i, p := range s.prefixes {
		out.Prefixes[i] = s.by[i].read(c.namespace.Name(p))
	}
	return out
}

const maxStatPrefixes = 64

// stats counts by prefix, in bounded memory.
type stats struct {
	prefixes []string // of whole names
	by       []counts
	longest  []int // indices of prefixes, the longest first
	other    counts
}

func newStats(prefixes []string) *stats {
	s := &stats{prefixes: prefixes, by: make([]counts, len(prefixes)), longest: make([]int, len(prefixes))}
	for i := range prefixes {
		s.longest[i] = i
	}
	slices.SortStableFunc(s.longest, func(a, b int) int { return len(prefixes[b]) - len(prefixes[a]) })
	return s
}

// of returns the counts of a resource.
func (s *stats) of(resource string) *counts {
	for _, i := range s.longest {
		if strings.HasPrefix(resource, s.prefixes[i]) {
			return &s.by[i]
		}
	}
	return &s.other
}

type counts struct {
	attempted, granted, contended, reclaimed, renewed, renewalsFailed atomic.Int64
	released, releasesFailed, lost, forceUnlocked, waited, held       atomic.Int64
}

func (c *counts) read(prefix string) PrefixStats {
	return PrefixStats{
		Prefix: prefix, Attempted: c.attempted.Load(), Granted: c.granted.Load(), Contended: c.contended.Load(),
		Reclaimed: c.reclaimed.Load(), Renewed: c.renewed.Load(), RenewalsFailed: c.renewalsFailed.Load(),
		Released: c.released.Load(), ReleasesFailed: c.releasesFailed.Load(), Lost: c.lost.Load(),
		ForceUnlocked: c.forceUnlocked.Load(), Waited: time.Duration(c.waited.Load()), Held: time.Duration(c.held.Load()),
	}
}

// statPrefixesIn checks prefixes and puts them into the namespace.
func statPrefixesIn(n pglease.Namespace, prefixes []string) ([]string, error) {
	if len(prefixes) > maxStatPrefixes {
		return nil, guard.Invalid("Options.StatPrefixes", strconv.Itoa(len(prefixes)), "must have at most "+strconv.Itoa(maxStatPrefixes)+" elements")
	}
	whole := make([]string, len(prefixes))
	for i, p := range prefixes {
		index := "[" + strconv.Itoa(i) + "]"
		if p == "" {
			return nil, guard.Invalid("Options.StatPrefixes"+index, p, "must not be empty: Stats.Other counts the rest")
		}
		if err := pglease.Plain("Options.StatPrefixes"+index, p, guard.MaxResourceLen); err != nil {
			return nil, err
		}
		if whole[i] = string(n) + p; slices.Contains(whole[:i], whole[i]) {
			return nil, guard.Invalid("Options.StatPrefixes"+index, p, "is there twice")
		}
	}
	return whole, nil
}
