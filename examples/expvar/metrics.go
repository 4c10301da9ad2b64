package main

import (
	"context"
	"encoding/json"
	"expvar"
	"sync/atomic"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

// Metrics turns the events of the lease client and of every fence into
// variables of package expvar. One serves them all: give it to each as its
// Observer. It is safe for concurrent use and takes the same memory however many
// resources there are, because none of its names is a resource's.
type Metrics struct {
	attempted, granted, contended, reclaimed, lost, forced, conflicts expvar.Int
	renewalsFailed, releasesFailed                                    expvar.Int
	rejections                                                        expvar.Map // by reason
	acquisition, hold                                                 histogram
}

var _ guard.Observer = (*Metrics)(nil)

// Observe counts one event.
func (m *Metrics) Observe(_ context.Context, e guard.Event) {
	failed := e.Reason != guard.ReasonNone
	switch e.Op {
	case guard.OpAcquire:
		m.attempted.Add(1)
		m.acquisition.observe(e.Duration)
		if !failed {
			m.granted.Add(1)
		}
	case guard.OpContend:
		m.contended.Add(1)
	case guard.OpReclaim:
		m.reclaimed.Add(1)
	case guard.OpRenew:
		if failed {
			m.renewalsFailed.Add(1)
		}
	case guard.OpRelease:
		if failed {
			m.releasesFailed.Add(1)
		} else {
			m.hold.observe(e.Duration)
		}
	case guard.OpLost:
		m.lost.Add(1)
		m.hold.observe(e.Duration)
	case guard.OpForceUnlock:
		if !failed {
			m.forced.Add(1)
		}
	default: // a fence
		if failed {
			m.rejections.Add(string(e.Reason), 1)
		}
		if e.Reason == guard.ReasonConflict {
			m.conflicts.Add(1)
		}
	}
}

// Map returns the variables under their names, for expvar.Publish.
func (m *Metrics) Map() *expvar.Map {
	all := new(expvar.Map)
	for name, v := range map[string]expvar.Var{
		"acquisitions_attempted": &m.attempted,
		"acquisitions_granted":   &m.granted,
		"acquisitions_contended": &m.contended,
		"acquisition_seconds":    &m.acquisition,
		"renewals_failed":        &m.renewalsFailed,
		"releases_failed":        &m.releasesFailed,
		"leases_lost":            &m.lost,
		"expired_reclaimed":      &m.reclaimed,
		"hold_seconds":           &m.hold,
		"force_unlocks":          &m.forced,
		"fencing_rejections":     &m.rejections,
		"fencing_conflicts":      &m.conflicts,
	} {
		all.Set(name, v)
	}
	return all
}

// bounds are the upper ends of a histogram's buckets, in seconds; what is longer
// is in the count alone.
var bounds = [...]float64{0.001, 0.01, 0.1, 1, 10, 100, 1000}

// histogram is an expvar.Var: a count, a sum in seconds, and how many were at
// most each bound.
type histogram struct {
	count, nanoseconds atomic.Int64
	buckets            [len(bounds)]atomic.Int64
}

func (h *histogram) observe(d time.Duration) {
	h.count.Add(1)
	h.nanoseconds.Add(int64(d))
	for i, bound := range bounds {
		if d.Seconds() <= bound {
			h.buckets[i].Add(1)
		}
	}
}

// String returns JSON, as expvar demands.
func (h *histogram) String() string {
	type bucket struct {
		AtMost float64 `json:"at_most"`
		Count  int64   `json:"count"`
	}
	out := struct {
		Count   int64    `json:"count"`
		Sum     float64  `json:"sum"`
		Buckets []bucket `json:"buckets"`
	}{Count: h.count.Load(), Sum: time.Duration(h.nanoseconds.Load()).Seconds()}
	for i, bound := range bounds {
		out.Buckets = append(out.Buckets, bucket{bound, h.buckets[i].Load()})
	}
	text, _ := json.Marshal(out) // numbers alone
	return string(text)
}
