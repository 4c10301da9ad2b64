package zklock

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/internal/sequence"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin"
)

// The operators' calls. A free resource is known while ZooKeeper keeps its container; its
// token is not. Lists and the audit read a node or three for each resource.
var (
	_ lockadmin.Admin  = (*Issuer)(nil)
	_ driver.Explainer = (*Issuer)(nil)
)

// Get returns who has the lease, and how many wait for it.
func (i *Issuer) Get(ctx context.Context, resource string) (info lockadmin.LeaseInfo, err error) {
	if err := guard.ValidateResource(resource); err != nil {
		return info, err
	}
	s, err := i.session(ctx)
	if err == nil {
		var now *zk.Stat
		if now, err = s.now(ctx); err == nil {
			info, _, err = s.info(ctx, resource, now.Mtime)
		}
	}
	return info, failed("get", guard.Claim{Resource: resource}, err)
}

// info returns a resource at a moment of the leader's clock.
func (s *session) info(ctx context.Context, resource string, now int64) (lockadmin.LeaseInfo, *held, error) {
	info := lockadmin.LeaseInfo{Resource: resource, State: lockadmin.StateFree}
	h, err := s.holder(ctx, resource, now)
	if err != nil {
		return info, nil, err
	}
	if h != nil {
		info = h.Info(resource, h.left)
		info.ExpiresAt = time.UnixMilli(h.end).UTC()
		if h.runs() {
			info.HeldFor = time.Duration(now-h.At) * time.Millisecond
		}
	}
	queue, err := s.children(ctx, s.i.container(resource), "wait-")
	info.Waiters, info.Awaited = len(queue), len(queue) > 0
	return info, h, err
}

// resources returns the names of those that have a container, in order.
func (s *session) resources(ctx context.Context) (names []string, err error) {
	all, err := s.children(ctx, s.i.opts.Root, "r-")
	for _, child := range all {
		if name, err := url.PathUnescape(strings.TrimPrefix(child, "r-")); err == nil {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names, err
}

// List yields the resources that have a container.
func (i *Issuer) List(ctx context.Context, pattern string, opts *lockadmin.ListOptions) iter.Seq2[lockadmin.LeaseInfo, error] {
	selected, err := sequence.Listed(pattern, opts)
	if err != nil {
		return lockadmin.Failed[lockadmin.LeaseInfo](err)
	}
	return func(yield func(lockadmin.LeaseInfo, error) bool) {
		err := i.each(ctx, selected.Names, func(s *session, resource string, now int64) (bool, error) {
			info, _, err := s.info(ctx, resource, now)
			return err != nil || !selected.Lists(info) || yield(info, nil), err
		})
		if err != nil {
			yield(lockadmin.LeaseInfo{}, failed("list", guard.Claim{}, err))
		}
	}
}

// each calls f for each selected resource until it returns false.
func (i *Issuer) each(ctx context.Context, selected func(string) bool, f func(s *session, resource string, now int64) (bool, error)) error {
	s, err := i.session(ctx)
	if err != nil {
		return err
	}
	now, err := s.now(ctx)
	if err != nil {
		return err
	}
	names, err := s.resources(ctx)
	if err != nil {
		return err
	}
	for _, name := range names {
		if !selected(name) {
			continue
		}
		if more, err := f(s, name, now.Mtime); err != nil || !more {
			return err
		}
	}
	return nil
}

// cutPath is the node of a force unlock's record.
func (i *Issuer) cutPath(resource, requestID string) string {
	return i.container(resource) + "/cut-" + url.PathEscape(requestID)
}

// cut reads a record; nil if there is none.
func (s *session) cut(ctx context.Context, path string) (*lockadmin.AuditRecord, error) {
	n, err := s.get(ctx, path)
	if err != nil || n == nil {
		return nil, err
	}
	record, err := sequence.ReadCut(path, n.value, n.stat.Czxid)
	record.At = time.UnixMilli(n.stat.Ctime).UTC() // by the leader's clock
	return &record, err
}

// cuts reads the records of a resource, the latest first.
func (s *session) cuts(ctx context.Context, resource string) (all []lockadmin.AuditRecord, err error) {
	names, err := s.children(ctx, s.i.container(resource), "cut-")
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		record, err := s.cut(ctx, s.i.container(resource)+"/"+name)
		if err != nil {
			return nil, err
		}
		if record != nil {
			all = append(all, *record)
		}
	}
	latestFirst(all)
	return all, nil
}

func latestFirst(all []lockadmin.AuditRecord) {
	slices.SortFunc(all, func(a, b lockadmin.AuditRecord) int { return cmp.Compare(b.ID, a.ID) })
}

// ForceUnlock deletes the lease's nodes, whoever has it, and creates the record's, in one
// transaction, whose zxid makes the invalidated token. A request ID counts for its resource.
// The lease ID of the cut lease is not granted again for an hour.
func (i *Issuer) ForceUnlock(ctx context.Context, resource, actor, reason string, opts *lockadmin.ForceUnlockOptions) (lockadmin.ForceUnlocked, error) {
	var h *held
	var old base
	s, connecting := i.session(ctx)
	done, requestID, err := sequence.ForceUnlock(resource, actor, reason, opts, func(requestID string) (c sequence.Cutting, err error) {
		if connecting != nil {
			return c, connecting
		}
		if err = s.makeNode(ctx, i.container(resource), zk.FlagContainer); err == nil {
			err = i.learnBase(ctx, s)
		}
		if err != nil {
			return c, err
		}
		now, err := s.now(ctx)
		if err != nil {
			return c, err
		}
		if c.Done, err = s.cut(ctx, i.cutPath(resource, requestID)); err == nil {
			c.Now, h, err = s.info(ctx, resource, now.Mtime)
		}
		_, old = i.known()
		c.Base, c.Number = old.value, now.Mzxid
		return c, err
	}, func(record []byte, requestID string) (number int64, done bool, err error) {
		ops := i.unchanged(resource, h)
		if h != nil {
			ops = i.removal(resource, h.Grant, h.version)
			id := i.create(i.idPath(resource, h.ID), nil, 0)
			if spent, err := s.get(ctx, id.Path); err != nil {
				return 0, false, err
			} else if spent == nil {
				ops = append(ops, id)
				i.sweepLater(resource)
			}
		}
		stat, refused, err := s.multi(ctx, append(ops, check(i.valuePath(old.value), -1), i.create(i.cutPath(resource, requestID), record, 0))...)
		if refused != nil && raced(err) {
			return 0, false, nil
		}
		if err != nil {
			return 0, false, err
		}
		return stat.Mzxid, true, nil
	})
	return done, failed("force unlock", guard.Claim{Resource: resource, LeaseID: requestID}, err)
}

// Audit yields the force unlocks. It reads all that pattern selects first.
func (i *Issuer) Audit(ctx context.Context, pattern string, opts *lockadmin.AuditOptions) iter.Seq2[lockadmin.AuditRecord, error] {
	selected, err := sequence.Audited(pattern, opts)
	if err != nil {
		return lockadmin.Failed[lockadmin.AuditRecord](err)
	}
	return func(yield func(lockadmin.AuditRecord, error) bool) {
		var all []lockadmin.AuditRecord
		err := i.each(ctx, selected.Pattern.Match, func(s *session, resource string, _ int64) (bool, error) {
			some, err := s.cuts(ctx, resource)
			all = append(all, some...)
			return true, err
		})
		if err != nil {
			yield(lockadmin.AuditRecord{}, failed("audit", guard.Claim{}, err))
			return
		}
		latestFirst(all)
		for _, r := range all {
			if selected.Records(r) && !yield(r, nil) {
				return
			}
		}
	}
}

// Why returns who force-unlocked a lease; nil if nobody did.
func (i *Issuer) Why(ctx context.Context, claim guard.Claim) error {
	s, err := i.session(ctx)
	if err != nil {
		return nil // unread is unknown
	}
	all, _ := s.cuts(ctx, claim.Resource)
	for _, r := range all {
		if r.Cut.LeaseID == claim.LeaseID && r.Cut.Token == claim.Token {
			return sequence.Why(r)
		}
	}
	return nil
}

// AdvanceFloor is Advance, which raises the tokens of every resource; it is refused for no
// holder, whose token stays.
func (i *Issuer) AdvanceFloor(ctx context.Context, above guard.Token) (guard.Token, error) {
	var old base
	s, connecting := i.session(ctx)
	reached, err := sequence.Advance(above, func() (standing sequence.Standing, err error) {
		if connecting != nil {
			return standing, connecting
		}
		if err := i.learnBase(ctx, s); err != nil {
			return standing, err
		}
		now, err := s.now(ctx)
		if err != nil {
			return standing, err
		}
		_, old = i.known()
		return sequence.Standing{Base: old.value, Number: now.Mzxid}, nil
	}, func(value int64) (bool, error) { return s.setBase(ctx, old.value, value) })
	return reached, failed("advance floor", guard.Claim{}, err)
}

// Epoch returns the base, and the token that every later grant is above.
func (i *Issuer) Epoch(ctx context.Context) (lockadmin.Epoch, error) {
	s, err := i.session(ctx)
	if err == nil {
		err = i.learnBase(ctx, s)
	}
	var epoch lockadmin.Epoch
	if err == nil {
		epoch, err = s.epoch(ctx)
	}
	return epoch, failed("epoch", guard.Claim{}, err)
}

func (s *session) epoch(ctx context.Context) (lockadmin.Epoch, error) {
	now, err := s.now(ctx)
	if err != nil {
		return lockadmin.Epoch{}, err
	}
	read, err := s.readBase(ctx)
	if err == nil && read.created == 0 {
		err = sequence.Unwritten{Err: errors.New("there is no base: " + strconv.Quote(s.i.basePath()))}
	}
	return lockadmin.Epoch{Number: read.value, Base: read.value, Floor: sequence.Token(read.value, now.Mzxid)}, err
}

// Purge is not supported.
func (i *Issuer) Purge(context.Context, *lockadmin.PurgeOptions) (lockadmin.Purged, error) {
	return lockadmin.Purged{}, &lockadmin.UnsupportedError{Op: "purge", Engine: "ZooKeeper", Why: "the servers delete the empty containers of leases that are over themselves"}
}

// Inspect is not supported.
func (i *Issuer) Inspect(context.Context) ([]lockadmin.Finding, error) {
	return nil, &lockadmin.UnsupportedError{Op: "inspect", Engine: "ZooKeeper", Why: "it has no setting that leases depend on; the command srvr says how a server is"}
}
