package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/internal/wire"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin"

	"github.com/urfave/cli/v3"
)

func (a *app) showCommand() *cli.Command {
	return &cli.Command{
		Name: "show", Category: categoryLook, ArgsUsage: "RESOURCE",
		Usage: "print one lease and its mark, and whose writes are admitted",
		Description: "The mark is sqlfence's. Tables with a token column, HTTP services with a store\n" +
			"of their own and S3 objects keep theirs elsewhere.",
		Action: a.on(leasesOnly, (*call).show, "RESOURCE"),
	}
}

func (c *call) show(ctx context.Context) error {
	v, err := c.look(ctx, c.resource)
	if err != nil {
		return err
	}
	return c.printView(v)
}

// view is all that is known about one resource.
type view struct {
	Lease lockadmin.LeaseInfo `json:"lease"`
	// Floor is the token that every later grant is above.
	Floor wire.Twice `json:"floor,omitzero"`
	// Mark is nil if sqlfence has none, or it cannot be read.
	Mark *markJSON `json:"mark"`
	// Verdict is one of the words of [verdicts].
	Verdict string `json:"verdict"`
	// Audit are the last records, the latest first.
	Audit []lockadmin.AuditRecord `json:"audit"`
	// AuditPartial: the search ended before there were enough of the resource's own, or
	// this role may not read the audit.
	AuditPartial bool `json:"auditPartial"`

	mark                guard.Mark
	elsewhere           bool  // another engine, or a lock server: no mark is seen
	unread, auditUnread error // why the mark and the audit could not be read
}

// The verdicts: what mark and lease say together. Each sentence is tested by
// presenting the claims that it mentions to a fence.
var verdicts = map[string]string{
	"unmarked":    "the resource has no mark here: any claim is admitted that comes first, unless the mark is kept elsewhere (a token column, S3, another store)",
	"floor_only":  "the resource has no mark here: any claim above the floor of retired marks is admitted that comes first, unless the mark is kept elsewhere (a token column, S3, another store)",
	"unread":      "the mark could not be read",
	"elsewhere":   "the marks are not kept here, or not shown: look at the resource",
	"current":     "the mark is the holder's claim: the holder is admitted, every older one is refused",
	"expired":     "the mark is the claim of the lease that ran out: its holder is still admitted, until a higher token arrives",
	"released":    "the mark has the token of a lease that was given back: its claim is still admitted, until a higher token arrives; every older one is refused",
	"ungranted":   "the mark has a token that was raised or invalidated at the issuer and never granted: its claim is still admitted, until a higher token arrives; every older one is refused",
	"invalidated": "the mark is the invalidated claim, which nobody holds: every claim that was granted is refused; the next grant is admitted",
	"behind":      "the mark is below the lease's token: the mark's claim is still admitted, until a higher token arrives",
	"ahead":       "the lease's token is below the mark, or not above the floor of retired marks: the lease is stale there; the next grant is admitted",
	"mark_ahead":  "THE MARK IS AHEAD OF THE ISSUER: every grant up to its token is refused there; see fencectl help runbook, \"A backup was restored\"",
	"conflict":    "TWO LEASES HAVE ONE TOKEN, or the mark was raised by hand under another lease ID: the mark's is admitted, this one is refused until it is a new lease: let its holder acquire again, or fencectl force-unlock --raise; see fencectl help runbook, \"Two holders seem to be at work\"",
}

const (
	shownRecords = 3
	searchedMost = 5 * nextPage
)

// look reads the mark first: a claim is granted before it is admitted, so a mark
// above what the issuer says later is ahead of the issuer, and not a takeover
// that happened in between.
func (s *session) look(ctx context.Context, resource string) (*view, error) {
	v := &view{elsewhere: s.postgres == nil}
	var err error
	if !v.elsewhere {
		if v.mark, err = s.mark(ctx, resource); err == nil && v.mark.Token != guard.NoToken {
			mark := markOf(guard.Claim{Resource: resource, Token: v.mark.Token, LeaseID: v.mark.LeaseID})
			v.Mark = &mark
		}
		v.unread = err
	}
	if v.Lease, err = s.op.Get(ctx, resource); err != nil {
		return nil, noSuchLease(err, resource)
	}
	if !v.elsewhere {
		floor, err := s.leases.Issued(ctx, "")
		if err != nil {
			return nil, err
		}
		v.Floor = wire.TwiceOf(floor)
	}
	v.Audit, v.AuditPartial, err = s.lastRecords(ctx, resource)
	switch {
	case errors.Is(err, errors.ErrUnsupported):
		err = nil
	case sqlState(err) == "42501", v.elsewhere && errors.Is(err, fs.ErrPermission):
		v.AuditPartial, v.auditUnread, err = true, err, nil
	}
	v.Verdict = v.verdict()
	return v, err
}

func noSuchLease(err error, resource string) error {
	if errors.Is(err, guard.ErrNotFound) {
		return notFound("there is no lease on %s: it was never leased, or its row was purged", shown(resource))
	}
	return err
}

// lastRecords returns the last records of one resource. The audit is queried by
// pattern, so records of longer names are skipped, and the search through them
// is bounded; partial says that it ended there.
func (s *session) lastRecords(ctx context.Context, resource string) (last []lockadmin.AuditRecord, partial bool, err error) {
	return s.records(ctx, resource, shownRecords)
}

// records returns at most so many of them.
func (s *session) records(ctx context.Context, resource string, most int) (last []lockadmin.AuditRecord, partial bool, err error) {
	looked := 0
	for r, err := range s.op.Audit(ctx, strings.ReplaceAll(resource, "*", "%2A"), nil) {
		if err != nil {
			return last, false, err
		}
		if r.Resource == resource {
			last = append(last, r)
		}
		if looked++; len(last) == most || looked == searchedMost {
			break
		}
	}
	return last, len(last) < most && looked == searchedMost, nil
}

func (v *view) verdict() string {
	lease := v.Lease
	switch {
	case v.elsewhere:
		return "elsewhere"
	case v.unread != nil:
		return "unread"
	case v.Mark == nil:
		return "unmarked"
	case v.mark.Floor && v.mark.Token < lease.Token:
		return "floor_only"
	case v.Mark.Token > max(lease.Token, v.Floor.Token):
		return "mark_ahead"
	case v.Mark.Token > lease.Token || v.mark.Floor: // the floor itself is refused too
		return "ahead"
	case v.Mark.Token < lease.Token:
		return "behind"
	case lease.State == lockadmin.StateFree:
		for _, r := range v.Audit {
			if r.Token == v.Mark.Token && r.RequestID == v.Mark.LeaseID {
				return "invalidated"
			}
		}
		if lease.Owner == "" { // an advance or a force-unlock wrote the row
			return "ungranted"
		}
		return "released"
	case v.Mark.LeaseID != lease.LeaseID:
		return "conflict"
	case lease.State == lockadmin.StateExpired:
		return "expired"
	}
	return "current"
}

// claim returns the claim that has the lease's token: the holder's, or the one
// that a force-unlock invalidated and nobody raised.
func (v *view) claim() (claim guard.Claim, known bool) {
	claim = guard.Claim{Resource: v.Lease.Resource, Token: v.Lease.Token, LeaseID: v.Lease.LeaseID}
	if v.Lease.State == lockadmin.StateFree && len(v.Audit) > 0 && v.Audit[0].Token == claim.Token {
		claim.LeaseID = v.Audit[0].RequestID
	}
	return claim, v.Lease.State == lockadmin.StateHeld || v.Lease.State == lockadmin.StateFree && claim.LeaseID != ""
}

func (c *call) printView(v *view) error {
	l := v.Lease
	state := string(l.State)
	switch l.State {
	case lockadmin.StateHeld:
		state += " for " + span(l.HeldFor) + ", another " + span(l.Remaining) + " unless renewed"
		if l.HeldFor < 0 {
			state += "; the server's clock was set back since it was granted"
		}
	case lockadmin.StateExpired:
		state += ": it ran out and was not released"
	}
	state += orNothing(l.Awaited, "; somebody waits for it")
	state += orNothing(l.Waiters > 0, ", "+strconv.Itoa(l.Waiters)+" in the queue")
	state += orNothing(l.Metadata != "", "; its holder says "+shown(l.Metadata))
	mark := "-"
	switch {
	case v.unread != nil:
		mark = "not read: " + oneLine(v.unread.Error())
	case v.Mark != nil && v.mark.Floor:
		mark = "-; the floor of retired marks is " + v.Mark.Token.String()
	case v.Mark != nil:
		mark = v.Mark.Token.String() + orNothing(v.Mark.LeaseID != "", ", lease "+shown(v.Mark.LeaseID))
	}
	so := verdicts[v.Verdict]
	if v.elsewhere && l.State == lockadmin.StateFree && l.Token == guard.NoToken {
		so += "; this engine does not tell a free resource from one that was never leased: check the name"
	}
	// An invalidated token means that a holder was cut, and it may not have written
	// yet.
	if claim, known := v.claim(); known && (v.Verdict == "behind" || (v.Verdict == "unmarked" || v.Verdict == "floor_only") && l.State == lockadmin.StateFree) {
		so += "; to fence it now: " + raiseCommand(claim)
	}
	err := c.fields(v,
		"resource", shown(l.Resource),
		"state", state,
		"token", l.Token.String(),
		"owner", orDash(l.Owner != "", shown(l.Owner))+orNothing(l.Owner != "" && l.State != lockadmin.StateHeld, ", not any more"),
		"lease ID", leaseID(l.LeaseID),
		"acquired", moment(l.CreatedAt),
		"expires", moment(l.ExpiresAt),
		"mark", mark,
		"so", so)
	if err != nil || c.asJSON() {
		return err
	}
	switch {
	case v.auditUnread != nil:
		fmt.Fprintf(c.out, "\nthe audit was not read: %s\n", oneLine(v.auditUnread.Error()))
	case v.AuditPartial:
		fmt.Fprintf(c.out, "\nthe last %d records of the audit under this name were searched: there may be more; see fencectl audit\n", searchedMost)
	}
	if len(v.Audit) == 0 {
		return nil
	}
	fmt.Fprintln(c.out)
	t := newTable(c.out, "AT", "ACTION", "TOKEN", "BY", "HELD BY", "REASON")
	for _, r := range v.Audit {
		row(t, clockTime(r.At), shown(r.Action), r.Token.String(), shown(r.Actor), holderOf(r.Cut), shown(r.Reason))
	}
	return t.Flush()
}

func moment(t time.Time) string { return orDash(!t.IsZero(), clockTime(t)) }
