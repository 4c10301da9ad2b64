package redislock

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/internal/input"
	"github.com/fencepost-go/fencepost/lockclient/internal/pattern"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin"
)

// The operators' calls. Redis forgets a lease that is over, and loses the records of force
// unlocks with its data.
var (
	_ lockadmin.Admin  = (*Issuer)(nil)
	_ driver.Explainer = (*Issuer)(nil)
)

func unsupported(op, why string) error {
	return &lockadmin.UnsupportedError{Op: op, Engine: "Redis", Why: why}
}

// look: KEYS lease, counter, queue. It writes nothing.
var lookScript = newScript(prelude + `
local now = clock()
local l = lease(KEYS[1])
if l.err then return l end
local waiting, last = tostring(redis.call('ZCARD', KEYS[3])), redis.call('GET', KEYS[2]) or ''
if not l[2] then return {'free', tostring(now), waiting, last} end
return {'held', tostring(now), l[3], l[2], l[4], l[5], tostring(redis.call('PTTL', KEYS[1])), l[6], waiting}
`)

// Get returns who has the lease, and how many wait for it.
func (i *Issuer) Get(ctx context.Context, resource string) (lockadmin.LeaseInfo, error) {
	info := lockadmin.LeaseInfo{Resource: resource, State: lockadmin.StateFree}
	if err := guard.ValidateResource(resource); err != nil {
		return info, err
	}
	response, err := i.call(ctx, "get", guard.Claim{Resource: resource}, lookScript,
		[]string{i.key(resource, "lease"), i.key(resource, "counter"), i.key(resource, "queue")})
	if err != nil {
		return info, readOnly(err)
	}
	now := milliseconds(response[1]).UTC()
	waiting := response[len(response)-1]
	if response[0] == "held" {
		h := heldBy(resource, response)
		info.State, info.Token, info.LeaseID, info.Owner, info.Metadata = lockadmin.StateHeld, h.Token, h.LeaseID, h.Owner, h.Metadata
		info.CreatedAt, info.ExpiresAt, info.Remaining = milliseconds(response[7]).UTC(), h.ExpiresAt.UTC(), h.Remaining
		info.HeldFor = now.Sub(info.CreatedAt)
	} else {
		waiting = response[2]
		info.Token, _ = guard.ParseToken(response[3]) // none if it was forgotten
	}
	info.Waiters, info.Awaited = int(number(waiting)), number(waiting) > 0
	return info, nil
}

// readOnly is the error of a request that writes nothing, whatever became of it.
func readOnly(err error) error {
	if failed, is := errors.AsType[*guard.FailedError](err); is && errors.Is(err, guard.ErrOutcomeUnknown) {
		return guard.Unavailable(failed.Op, failed.Claim, failed.Cause)
	}
	return err
}

var unescapeName = strings.NewReplacer("%25", "%", "%7B", "{", "%7D", "}")

// List yields the leases that run. It goes through all keys of the server first, and then
// reads each lease.
func (i *Issuer) List(ctx context.Context, text string, opts *lockadmin.ListOptions) iter.Seq2[lockadmin.LeaseInfo, error] {
	var set lockadmin.ListOptions
	if opts != nil {
		set = *opts
	}
	selected, err := i.selecting("list", text, set.Validate())
	if err != nil {
		return lockadmin.Failed[lockadmin.LeaseInfo](err)
	}
	return func(yield func(lockadmin.LeaseInfo, error) bool) {
		names, err := i.names(ctx)
		if err != nil {
			yield(lockadmin.LeaseInfo{}, err)
			return
		}
		for _, name := range names {
			if name <= set.After || !selected.Match(name) {
				continue
			}
			info, err := i.Get(ctx, name)
			if err != nil {
				yield(lockadmin.LeaseInfo{}, err)
				return
			}
			if info.State == lockadmin.StateHeld && set.Selects(info) && !yield(info, nil) {
				return
			}
		}
	}
}

// selecting checks a call that goes through all keys; options is what is wrong with its options.
func (i *Issuer) selecting(op, text string, options error) (pattern.Pattern, error) {
	selected, err := pattern.New("pattern", text)
	switch {
	case err != nil:
	case options != nil:
		err = options
	case i.opts.Cluster:
		err = unsupported(op, "the keys of a cluster are on several servers, and this issuer sends commands about one resource")
	}
	return selected, err
}

// globs are what SCAN's pattern gives a meaning to.
var globs = strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`, "]", `\]`, "^", `\^`)

// names returns the resources whose leases run, in order.
func (i *Issuer) names(ctx context.Context) (names []string, err error) {
	before, after := i.opts.Prefix+":{", "}:lease"
	keys, err := i.keys(ctx, "list", globs.Replace(before)+"*"+after)
	for _, key := range keys {
		name, begins := strings.CutPrefix(key, before)
		name, ends := strings.CutSuffix(name, after)
		if begins && ends {
			names = append(names, unescapeName.Replace(name))
		}
	}
	slices.Sort(names)
	return slices.Compact(names), err
}

// keys goes through all keys of the server, and returns those that match. One may be there twice.
func (i *Issuer) keys(ctx context.Context, op, matching string) (found []string, err error) {
	for cursor := "0"; ; {
		raw, err := i.do(ctx, "SCAN", cursor, "MATCH", matching, "COUNT", 1000)
		if err != nil {
			return nil, unsent(op, guard.Claim{}, err)
		}
		response, ok := raw.([]any)
		var head, keys []string
		if ok && len(response) == 2 {
			if head, ok = texts(response[:1]); ok {
				keys, ok = texts(response[1])
			}
		}
		if !ok || len(head) != 1 {
			return nil, guard.Unavailable(op, guard.Claim{}, fmt.Errorf("the response is %v", raw))
		}
		found = append(found, keys...)
		if cursor = head[0]; cursor == "0" {
			return found, nil
		}
	}
}

// ForceUnlock deletes the lease, whoever has it, raises the resource's counter to the
// invalidated token, and stores the record, in one script. The record is kept for 30 days, and
// lost with the server's data; a request ID counts for its resource and for as long. The cut
// lease ID is not granted again for an hour.
func (i *Issuer) ForceUnlock(ctx context.Context, resource, actor, reason string, opts *lockadmin.ForceUnlockOptions) (done lockadmin.ForceUnlocked, err error) {
	var set lockadmin.ForceUnlockOptions
	if opts != nil {
		set = *opts
	}
	claim := guard.Claim{Resource: resource, LeaseID: cmp.Or(set.RequestID, input.NewLeaseID())}
	err = cmp.Or(guard.ValidateResource(resource), lockadmin.ValidateActor(actor), lockadmin.ValidateReason(reason),
		idOf("ExpectedLeaseID", set.ExpectedLeaseID), idOf("RequestID", set.RequestID))
	if err != nil {
		return done, err
	}
	cut := i.key(resource, "cut:"+claim.LeaseID)
	for range cutTries {
		before, err := i.record(ctx, "force unlock", cut)
		if err != nil {
			return done, err
		}
		if before != nil {
			return unlocked(*before, true), nil
		}
		now, err := i.Get(ctx, resource)
		if err != nil {
			return done, unwritten("force unlock", claim, err)
		}
		if set.ExpectedLeaseID != "" && now.LeaseID != set.ExpectedLeaseID {
			return done, &lockadmin.LeaseChangedError{Expected: set.ExpectedLeaseID, Now: now}
		}
		record := lockadmin.AuditRecord{Action: lockadmin.ActionForceUnlock, Resource: resource, Actor: actor, Reason: reason, RequestID: claim.LeaseID, Cut: now}
		text, err := json.Marshal(record)
		if err != nil {
			return done, guard.Unavailable("force unlock", claim, err)
		}
		token := ""
		if now.State == lockadmin.StateHeld {
			token = now.Token.String()
		}
		_, seen := i.notAfter(resource, 0)
		response, err := i.call(ctx, "force unlock", claim, cutScript, []string{i.key(resource, "lease"), i.key(resource, "counter"), cut, i.key(resource, "spent:"+now.LeaseID),
			i.key(resource, "kept"), i.key(resource, "queue"), i.key(resource, "until"), i.key(resource, "watched")},
			now.LeaseID, token, string(text), seen, claim.LeaseID, i.wakeups(), i.changes(resource), resource)
		if err != nil {
			return done, err
		}
		switch response[0] {
		case "changed":
			continue
		case "back":
			return done, wentBack("force unlock", resource, response, seen)
		case "full":
			return done, exhausted("force unlock", claim, response)
		}
		written, err := readRecord(response[2:])
		if err != nil {
			return done, guard.OutcomeUnknown("force unlock", claim, err)
		}
		return unlocked(*written, response[0] == "done"), nil
	}
	return done, guard.Unavailable("force unlock", claim, errors.New("the lease kept changing"))
}

// cutTries is how often a force unlock looks again if the lease has changed since.
const cutTries = 5

// idOf checks an ID that may be empty.
func idOf(field, id string) error {
	err := guard.ValidateLeaseID(id)
	if invalid, is := errors.AsType[*guard.InvalidError](err); is {
		invalid.Field = field
	}
	return err
}

// unwritten is the error of a look before a write.
func unwritten(op string, claim guard.Claim, err error) error {
	if failed, is := errors.AsType[*guard.FailedError](err); is && !errors.Is(err, guard.ErrSetup) {
		return guard.Unavailable(op, claim, failed.Cause)
	}
	return err
}

func unlocked(r lockadmin.AuditRecord, repeated bool) lockadmin.ForceUnlocked {
	return lockadmin.ForceUnlocked{Invalidated: guard.Claim{Resource: r.Resource, Token: r.Token, LeaseID: r.RequestID}, Cut: r.Cut, AuditID: r.ID, At: r.At, Repeated: repeated}
}

// record reads the record under a key; nil if there is none.
func (i *Issuer) record(ctx context.Context, op, key string) (*lockadmin.AuditRecord, error) {
	raw, err := i.do(ctx, "HMGET", key, "id", "token", "at", "left", "record")
	if err != nil {
		return nil, unsent(op, guard.Claim{}, err)
	}
	fields, ok := texts(raw)
	if !ok || len(fields) != 5 {
		return nil, guard.Unavailable(op, guard.Claim{}, fmt.Errorf("the response is %v", raw))
	}
	if fields[0] == "" {
		return nil, nil
	}
	record, err := readRecord(fields)
	if err != nil {
		return nil, guard.Setup(op, guard.Claim{}, fmt.Errorf("%q holds something else: %w", key, err))
	}
	return record, nil
}

// readRecord completes what was read before the script by what the script saw: its ID, its
// token, when it was, and how much was left of the lease.
func readRecord(fields []string) (*lockadmin.AuditRecord, error) {
	r := &lockadmin.AuditRecord{}
	if err := json.Unmarshal([]byte(fields[4]), r); err != nil {
		return nil, err
	}
	token, err := guard.ParseToken(fields[1])
	if err != nil {
		return nil, err
	}
	r.ID, r.Token, r.At = number(fields[0]), token, milliseconds(fields[2]).UTC()
	if left := time.Duration(number(fields[3])) * time.Millisecond; r.Cut.State == lockadmin.StateHeld {
		r.Cut.HeldFor, r.Cut.Remaining, r.Cut.ExpiresAt = r.At.Sub(r.Cut.CreatedAt), max(left, time.Millisecond), r.At.Add(left)
	}
	return r, nil
}

// Audit yields the force unlocks of the last 30 days. It goes through all keys of the server
// first, and holds what it yields.
func (i *Issuer) Audit(ctx context.Context, text string, opts *lockadmin.AuditOptions) iter.Seq2[lockadmin.AuditRecord, error] {
	var set lockadmin.AuditOptions
	if opts != nil {
		set = *opts
	}
	selected, err := i.selecting("audit", text, set.Validate())
	if err != nil {
		return lockadmin.Failed[lockadmin.AuditRecord](err)
	}
	return func(yield func(lockadmin.AuditRecord, error) bool) {
		keys, err := i.keys(ctx, "audit", globs.Replace(i.opts.Prefix)+":{*}:cut:*")
		slices.Sort(keys)
		var records []lockadmin.AuditRecord
		for _, key := range slices.Compact(keys) {
			var r *lockadmin.AuditRecord
			if r, err = i.record(ctx, "audit", key); err != nil {
				break
			}
			if r != nil && key == i.key(r.Resource, "cut:"+r.RequestID) && selected.Match(r.Resource) && set.Selects(*r) {
				records = append(records, *r)
			}
		}
		if err != nil {
			yield(lockadmin.AuditRecord{}, err)
			return
		}
		slices.SortFunc(records, func(a, b lockadmin.AuditRecord) int { return cmp.Compare(b.ID, a.ID) })
		for _, r := range records {
			if !yield(r, nil) {
				return
			}
		}
	}
}

// Why returns who force-unlocked a lease within the last hour; nil if nobody did.
func (i *Issuer) Why(ctx context.Context, claim guard.Claim) error {
	raw, err := i.do(ctx, "GET", i.key(claim.Resource, "spent:"+claim.LeaseID))
	requestID, ok := texts([]any{raw})
	if err != nil || !ok || requestID[0] == "" { // unread is unknown
		return nil
	}
	r, err := i.record(ctx, "why", i.key(claim.Resource, "cut:"+requestID[0]))
	if err != nil || r == nil || r.Cut.LeaseID != claim.LeaseID || claim.Token != guard.NoToken && r.Cut.Token != claim.Token {
		return nil
	}
	return &driver.ForceUnlockedError{Actor: r.Actor, Reason: r.Reason, At: r.At}
}

// AdvanceFloor is not supported.
func (i *Issuer) AdvanceFloor(context.Context, guard.Token) (guard.Token, error) {
	return guard.NoToken, unsupported("advance floor", "each resource has a counter of its own, so advance each")
}

// Epoch is not supported.
func (i *Issuer) Epoch(context.Context) (lockadmin.Epoch, error) {
	return lockadmin.Epoch{}, unsupported("epoch", "its tokens follow the server's time")
}

// RaiseEpoch is not supported.
func (i *Issuer) RaiseEpoch(context.Context) (lockadmin.Epoch, error) {
	return lockadmin.Epoch{}, unsupported("raise epoch", "its tokens follow the server's time; advance each resource whose mark is above it")
}

// Purge is not supported.
func (i *Issuer) Purge(context.Context, *lockadmin.PurgeOptions) (lockadmin.Purged, error) {
	return lockadmin.Purged{}, unsupported("purge", "counters run out by themselves")
}

// Inspect looks at what the first acquire would refuse.
func (i *Issuer) Inspect(ctx context.Context) ([]lockadmin.Finding, error) {
	if i.opts.InsecureEviction {
		return nil, unsupported("inspect", "Options.InsecureEviction says not to ask for the policy")
	}
	var wrong *setupError
	err := i.keepsAll(ctx)
	switch {
	case errors.As(err, &wrong):
		return []lockadmin.Finding{{Severity: lockadmin.SeverityError, Setting: "maxmemory-policy", Detail: err.Error(), Remedy: "set maxmemory-policy to noeviction"}}, nil
	case err != nil:
		return nil, guard.Unavailable("inspect", guard.Claim{}, err)
	}
	return []lockadmin.Finding{{Severity: lockadmin.SeverityOK, Setting: "maxmemory-policy", Detail: "noeviction"}}, nil
}
