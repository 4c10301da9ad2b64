package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost-go/fencepost/guard"
)

// The modes of the guards.
const (
	guardsOn    = "on"
	guardsNaive = "naive"
	guardsOff   = "off"
)

// resourcesPerSurface is small, so that workers meet.
const resourcesPerSurface = 2

// doc is what a resource holds: the ID of the last write, that of the write it
// was based on, and how many there were. A client computes it; nothing in a
// resource compares Base or N.
type doc struct {
	Write string `json:"write"`
	Base  string `json:"base"`
	N     int64  `json:"n"`
}

// surface is one way to access a resource.
type surface interface {
	// raise makes the claim the resource's mark.
	raise(ctx context.Context, claim guard.Claim) error
	read(ctx context.Context, claim guard.Claim) (doc, error)
	write(ctx context.Context, claim guard.Claim, next doc) error
}

// swapper is a surface that can read and write in one transaction: next is
// called between the two, commit between the write and COMMIT.
type swapper interface {
	swap(ctx context.Context, claim guard.Claim, next func(now doc) doc, commit func()) error
	// raises reports whether the transaction itself raises the mark before it
	// reads.
	raises() bool
}

// taker is a surface that can raise and read in one step.
type taker interface {
	takeover(ctx context.Context, claim guard.Claim) (doc, error)
}

// surfaces lists the names of all, and where the pauses of each may fall
// besides the two gates that all have.
var surfaces = []struct {
	name   string
	inside []string // further gates
}{
	{name: "sql-row"},
	{name: "sql-tx", inside: []string{phaseInside, phaseCommit}},
	{name: triggerSurface, inside: []string{phaseInside, phaseCommit}},
	{name: "http-admit", inside: []string{phaseAdmitted}},
	{name: "http-intx", inside: []string{phaseAdmitted, phaseCommit}},
	{name: "s3-sealed"},
	{name: "s3-pointer"},
}

// handlers are the surfaces whose writes go through a replica's handler, which
// records them.
var handlers = map[string]bool{"http-admit": true, "http-intx": true}

func newSurface(w *worker, pool *pgxpool.Pool) (surface, error) {
	switch w.Surface {
	case "sql-row":
		return newRow(w.Guards, pool)
	case "sql-tx", triggerSurface:
		return newTransaction(w, pool)
	case "http-admit", "http-intx":
		return newRemote(w), nil
	case "s3-sealed", "s3-pointer":
		return newObject(w)
	}
	return nil, fmt.Errorf("there is no surface %q", w.Surface)
}
