package redislock

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/internal/pattern"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin"
)

// The operators' calls. Redis forgets a lease that is over, and may lose with its data what
// would be a record, so that there is no audit and no force unlock.
var _ lockadmin.Admin = (*Issuer)(nil)

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
	selected, err := pattern.New("pattern", text)
	if err == nil {
		err = set.Validate()
	}
	if err == nil && i.opts.Cluster {
		err = unsupported("list", "the keys of a cluster are on several servers, and this issuer sends commands about one resource")
	}
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

// globs are what SCAN's pattern gives a meaning to.
var globs = strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`, "]", `\]`, "^", `\^`)

// names returns the resources whose leases run, in order.
func (i *Issuer) names(ctx context.Context) (names []string, err error) {
	before, after := i.opts.Prefix+":{", "}:lease"
	for cursor := "0"; ; {
		raw, err := i.do(ctx, "SCAN", cursor, "MATCH", globs.Replace(before)+"*"+after, "COUNT", 1000)
		if err != nil {
			return nil, guard.Unavailable("list", guard.Claim{}, err)
		}
		response, ok := raw.([]any)
		var head, keys []string
		if ok && len(response) == 2 {
			if head, ok = texts(response[:1]); ok {
				keys, ok = texts(response[1])
			}
		}
		if !ok || len(head) != 1 {
			return nil, guard.Unavailable("list", guard.Claim{}, fmt.Errorf("the response is %v", raw))
		}
		for _, key := range keys {
			name, begins := strings.CutPrefix(key, before)
			name, ends := strings.CutSuffix(name, after)
			if begins && ends {
				names = append(names, unescapeName.Replace(name))
			}
		}
		if cursor = head[0]; cursor == "0" {
			slices.Sort(names)
			return slices.Compact(names), nil
		}
	}
}

// ForceUnlock is not supported.
func (i *Issuer) ForceUnlock(_ context.Context, resource, _, _ string, _ *lockadmin.ForceUnlockOptions) (lockadmin.ForceUnlocked, error) {
	return lockadmin.ForceUnlocked{}, unsupported("force unlock", fmt.Sprintf("it keeps no record; DEL %q ends the lease without one, and the next holder's token stops the cut one", i.key(resource, "lease")))
}

// Audit is not supported.
func (i *Issuer) Audit(context.Context, string, *lockadmin.AuditOptions) iter.Seq2[lockadmin.AuditRecord, error] {
	return lockadmin.Failed[lockadmin.AuditRecord](unsupported("audit", "it keeps no record"))
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
