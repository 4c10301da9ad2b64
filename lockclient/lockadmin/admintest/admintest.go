// Package admintest checks that an engine's operators' calls are what package lockadmin says.
//
// It is for tests of engines: one table of cases over one interface. Each case has resources
// of its own. What an engine cannot do must say so in one way, and do nothing. Then every fault
// that an engine may have is put into it, one at a time: the case that is for it must report it.
package admintest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin"
)

// Engine is what is tested.
type Engine struct {
	Admin lockadmin.Admin
	// Issuer issues the leases that Admin sees.
	Issuer driver.Issuer
	// Cannot are the calls that it does not have: list, force unlock, audit, advance, advance
	// floor, epoch, raise epoch, purge, inspect. All others must work.
	Cannot []string
}

// patience ends a hang; nothing is awaited for as long.
const patience = 5 * time.Minute

// Run runs the cases, and looks whether they catch what is broken.
func Run(t *testing.T, e Engine) {
	cases := []struct {
		name string
		run  func(*suite)
	}{
		{"get", (*suite).get}, {"list", (*suite).list}, {"force unlock", (*suite).forceUnlock}, {"force unlock of another", (*suite).another},
		{"force unlock of nobody", (*suite).nobody}, {"force unlock, repeated", (*suite).repeated}, {"audit", (*suite).audit},
		{"advance", (*suite).advance}, {"advance floor", (*suite).advanceFloor}, {"epoch", (*suite).epoch}, {"raise epoch", (*suite).raiseEpoch},
		{"purge", (*suite).purge}, {"inspect", (*suite).inspect}, {"bad input", (*suite).badInput},
	}
	byName := map[string]func(*suite){}
	for _, c := range cases {
		byName[c.name] = c.run
		t.Run(c.name, func(t *testing.T) {
			for _, problem := range problems(t, e, c.run) {
				t.Error(problem)
			}
		})
	}
	for _, f := range faults {
		if slices.Contains(e.Cannot, f.needs) {
			continue
		}
		t.Run("broken: "+f.name, func(t *testing.T) {
			broken := e
			broken.Admin = f.of(e.Admin)
			found := problems(t, broken, byName[f.caughtBy])
			if len(found) == 0 {
				t.Errorf("%q does not report it", f.caughtBy)
			}
		})
	}
}

// problems is what a case finds wrong with an engine.
func problems(t *testing.T, e Engine, run func(*suite)) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	s := &suite{T: t, Engine: e, ctx: ctx}
	s.until(run)
	return s.found
}

// suite is one run of a case, which finds problems in place of failing the test.
type suite struct {
	*testing.T
	Engine
	ctx   context.Context
	found []string
}

// over is what ends a case that cannot go on.
type over struct{}

// until runs a case to its end.
func (s *suite) until(run func(*suite)) {
	defer func() {
		if r := recover(); r != nil && r != any(over{}) {
			panic(r)
		}
	}()
	run(s)
}

// Errorf notes a problem.
func (s *suite) Errorf(format string, args ...any) {
	s.found = append(s.found, fmt.Sprintf(format, args...))
}

// Fatal notes a problem and ends the case, as Fatalf does.
func (s *suite) Fatal(args ...any) { s.Fatalf("%s", fmt.Sprint(args...)) }

// Fatalf is explained with Fatal.
func (s *suite) Fatalf(format string, args ...any) {
	s.Errorf(format, args...)
	panic(over{})
}

func (s *suite) name(part string) string { return "admintest:" + s.Name() + ":" + part }

func (s *suite) acquire(resource, id string) guard.Claim {
	s.Helper()
	g, err := s.Issuer.Acquire(s.ctx, driver.Request{Resource: resource, LeaseID: id, Owner: "worker-1", TTL: time.Hour, Timeout: time.Minute})
	if err != nil {
		s.Fatal(err)
	}
	return guard.Claim{Resource: resource, Token: g.Token, LeaseID: id}
}

// renews says whether a renewal still finds the lease of the claim.
func (s *suite) renews(what string, claim guard.Claim, want driver.RenewState) {
	s.Helper()
	results := make([]driver.Renewed, 1)
	s.Issuer.Renew(s.ctx, []driver.Renewal{{Claim: claim, TTL: time.Hour}}, results)
	if results[0].State != want {
		s.Errorf("%s: %+v", what, results[0])
	}
}

// can checks that an engine has a call, or says that it does not: then the case is over.
func (s *suite) can(op string, err error) bool {
	s.Helper()
	says, is := errors.AsType[*lockadmin.UnsupportedError](err)
	cannot := slices.Contains(s.Cannot, op)
	switch {
	case cannot && (!is || says.Op != op || says.Engine == "" || says.Why == "" || !errors.Is(err, errors.ErrUnsupported)):
		s.Errorf("%s: %v; it should be an UnsupportedError with the reason", op, err)
	case !cannot && is:
		s.Errorf("%s: %v", op, err)
	}
	return !cannot && !is
}

func (s *suite) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

func all[T any](list iter.Seq2[T, error]) (rows []T, err error) {
	for row, err := range list {
		if err != nil {
			return rows, err
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// get: who has the lease, under which token, since when and until when.
func (s *suite) get() {
	claim := s.acquire(s.name("r"), "lease-1")
	info, err := s.Admin.Get(s.ctx, claim.Resource)
	s.must(err)
	if info.Resource != claim.Resource || info.State != lockadmin.StateHeld || info.Token != claim.Token || info.LeaseID != "lease-1" || info.Owner != "worker-1" ||
		info.Remaining <= 0 || info.Remaining > time.Hour+time.Minute || info.ExpiresAt.IsZero() {
		s.Errorf("%+v", info)
	}
	_, err = s.Issuer.Release(s.ctx, claim)
	s.must(err)
	if info, err = s.Admin.Get(s.ctx, claim.Resource); err != nil && !errors.Is(err, guard.ErrNotFound) || err == nil && (info.State != lockadmin.StateFree || info.LeaseID != "") {
		s.Errorf("after its release: %+v, %v", info, err)
	}
}

// list: in the order of the names, by components, without others.
func (s *suite) list() {
	for _, part := range []string{"a:1", "a:2", "ab:1"} {
		s.acquire(s.name(part), "lease "+part)
	}
	under := s.name("a")
	got, err := all(s.Admin.List(s.ctx, under, nil))
	if !s.can("list", err) {
		return
	}
	s.must(err)
	if len(got) != 2 || got[0].Resource != under+":1" || got[1].Resource != under+":2" || got[0].State != lockadmin.StateHeld || got[0].Token == guard.NoToken {
		s.Errorf("%s selects %+v", under, got)
	}
	for _, c := range []struct {
		pattern string
		opts    lockadmin.ListOptions
		want    int
	}{
		{under + "*", lockadmin.ListOptions{}, 3},
		{"admintest:*:a:2", lockadmin.ListOptions{}, 1},
		{under, lockadmin.ListOptions{After: under + ":1"}, 1},
		{under, lockadmin.ListOptions{HeldFor: 24 * time.Hour}, 0},
		{under, lockadmin.ListOptions{AwaitedOnly: true}, 0},
		{under, lockadmin.ListOptions{States: []lockadmin.LeaseState{lockadmin.StateExpired, lockadmin.StateFree}}, 0},
	} {
		got, err := all(s.Admin.List(s.ctx, c.pattern, &c.opts))
		if err != nil || len(got) != c.want {
			s.Errorf("%s, %+v: %d, %v; want %d", c.pattern, c.opts, len(got), err, c.want)
		}
	}
}

// forceUnlock: the lease is over at once, the invalidated token is above its and below the next,
// and the cut lease ID is not granted again.
func (s *suite) forceUnlock() {
	claim := s.acquire(s.name("r"), "lease-1")
	done, err := s.Admin.ForceUnlock(s.ctx, claim.Resource, "ada", "it hangs", &lockadmin.ForceUnlockOptions{ExpectedLeaseID: "lease-1"})
	if !s.can("force unlock", err) {
		s.renews("after what is not supported", claim, driver.Extended)
		return
	}
	s.must(err)
	if done.Invalidated.Resource != claim.Resource || done.Invalidated.Token <= claim.Token || done.Invalidated.LeaseID == "" || done.Cut.LeaseID != "lease-1" ||
		done.Cut.Owner != "worker-1" || done.Cut.Token != claim.Token || done.Cut.State != lockadmin.StateHeld || done.AuditID <= 0 || done.At.IsZero() || done.Repeated {
		s.Errorf("%+v", done)
	}
	s.renews("the cut lease", claim, driver.Over)
	if why, is := s.Issuer.(driver.Explainer); is {
		var cut *driver.ForceUnlockedError
		if err := why.Why(s.ctx, claim); !errors.As(err, &cut) || cut.Actor == "" || cut.Reason != "it hangs" && cut.Reason != "it hangs (in the name of ada)" {
			s.Errorf("why: %v", err)
		}
	}
	if g, err := s.Issuer.Acquire(s.ctx, driver.Request{Resource: claim.Resource, LeaseID: "lease-1", Owner: "worker-1", TTL: time.Hour, Timeout: time.Minute}); !errors.Is(err, driver.ErrLeaseIDSpent) {
		s.Errorf("the cut lease ID: %+v, %v", g, err)
	}
	if next := s.acquire(claim.Resource, "lease-2"); next.Token <= done.Invalidated.Token {
		s.Errorf("the next token is %v, %v was invalidated", next.Token, done.Invalidated.Token)
	}
}

// another: a successor's lease is not cut.
func (s *suite) another() {
	if slices.Contains(s.Cannot, "force unlock") {
		return
	}
	claim := s.acquire(s.name("r"), "lease-2")
	_, err := s.Admin.ForceUnlock(s.ctx, claim.Resource, "ada", "it hangs", &lockadmin.ForceUnlockOptions{ExpectedLeaseID: "lease-1"})
	var changed *lockadmin.LeaseChangedError
	if !errors.Is(err, lockadmin.ErrLeaseChanged) || !errors.As(err, &changed) || changed.Expected != "lease-1" || changed.Now.LeaseID != "lease-2" {
		s.Errorf("%v", err)
	}
	s.renews("the successor's lease", claim, driver.Extended)
}

// nobody: a free resource has a token to invalidate, too: its last holder may come back.
func (s *suite) nobody() {
	if slices.Contains(s.Cannot, "force unlock") {
		return
	}
	claim := s.acquire(s.name("r"), "lease-1")
	_, err := s.Issuer.Release(s.ctx, claim)
	s.must(err)
	done, err := s.Admin.ForceUnlock(s.ctx, claim.Resource, "ada", "it may come back", nil)
	s.must(err)
	if done.Cut.State != lockadmin.StateFree || done.Invalidated.Token <= claim.Token {
		s.Errorf("%+v", done)
	}
}

// repeated: a request ID is carried out once, whoever has the lease by then.
func (s *suite) repeated() {
	if slices.Contains(s.Cannot, "force unlock") {
		return
	}
	claim := s.acquire(s.name("r"), "lease-1")
	opts := &lockadmin.ForceUnlockOptions{RequestID: "request " + s.Name()}
	first, err := s.Admin.ForceUnlock(s.ctx, claim.Resource, "ada", "it hangs", opts)
	s.must(err)
	next := s.acquire(claim.Resource, "lease-2")
	again, err := s.Admin.ForceUnlock(s.ctx, claim.Resource, "ada", "it hangs", opts)
	s.must(err)
	if !again.Repeated || again.Invalidated != first.Invalidated || again.AuditID != first.AuditID || again.Cut.LeaseID != "lease-1" {
		s.Errorf("%+v, after %+v", again, first)
	}
	s.renews("the successor's lease", next, driver.Extended)
}

// audit: who did what and why, the latest first, and no page is lost.
func (s *suite) audit() {
	if slices.Contains(s.Cannot, "audit") {
		_, err := all(s.Admin.Audit(s.ctx, "", nil))
		s.can("audit", err)
		return
	}
	var done []lockadmin.ForceUnlocked
	for n := range 3 {
		claim := s.acquire(s.name("r"), fmt.Sprint("lease-", n))
		one, err := s.Admin.ForceUnlock(s.ctx, claim.Resource, "ada", fmt.Sprint("reason ", n), nil)
		s.must(err)
		done = append(done, one)
	}
	other := s.acquire(s.name("other"), "lease")
	_, err := s.Admin.ForceUnlock(s.ctx, other.Resource, "ada", "another", nil)
	s.must(err)
	got, err := all(s.Admin.Audit(s.ctx, s.name("r"), nil))
	s.must(err)
	if len(got) != 3 {
		s.Fatalf("%+v", got)
	}
	for n, r := range got {
		of := done[len(done)-1-n]
		if holder, held := r.Holder(); r.ID != of.AuditID || r.Action != lockadmin.ActionForceUnlock || r.Resource != of.Invalidated.Resource || r.Actor == "" || r.Token != of.Invalidated.Token ||
			r.RequestID != of.Invalidated.LeaseID || r.Cut.LeaseID != of.Cut.LeaseID || r.At.IsZero() || holder != "worker-1" || !held {
			s.Errorf("%+v, want that of %+v", r, of)
		}
		text, err := json.Marshal(r)
		var back lockadmin.AuditRecord
		if err = errors.Join(err, json.Unmarshal(text, &back)); err != nil || back.Token != r.Token || back.Actor != r.Actor || back.Cut.LeaseID != r.Cut.LeaseID {
			s.Errorf("%s, %v", text, err)
		}
	}
	if older, err := all(s.Admin.Audit(s.ctx, s.name("r"), &lockadmin.AuditOptions{Before: got[0].ID})); err != nil || len(older) != 2 {
		s.Errorf("before the last: %d, %v", len(older), err)
	}
	if none, err := all(s.Admin.Audit(s.ctx, s.name("r"), &lockadmin.AuditOptions{To: got[2].At})); err != nil || len(none) != 0 {
		s.Errorf("before the first: %d, %v", len(none), err)
	}
}

// advance: every later token of the resource is above, and none is lowered.
func (s *suite) advance() {
	claim := s.acquire(s.name("held"), "lease-1")
	above := claim.Token + 1000
	_, err := s.Admin.Advance(s.ctx, claim.Resource, above)
	if !s.can("advance", err) {
		return
	}
	if !errors.Is(err, driver.ErrHeld) {
		s.Errorf("above a holder: %v", err)
	}
	free := s.name("free")
	reached, err := s.Admin.Advance(s.ctx, free, above)
	s.must(err)
	if again, err := s.Admin.Advance(s.ctx, free, above-500); reached < above || err != nil || again < above {
		s.Errorf("%v, then %v, %v; want %v at least", reached, again, err, above)
	}
	if next := s.acquire(free, "lease-2"); next.Token <= reached {
		s.Errorf("token %v after an advance to %v", next.Token, reached)
	}
	if _, err := s.Admin.Advance(s.ctx, free, lockadmin.MaxAdvance+1); !errors.Is(err, guard.ErrInvalid) {
		s.Errorf("above the highest: %v", err)
	}
}

// advanceFloor: every later token of every resource is above, and nobody loses a lease.
func (s *suite) advanceFloor() {
	claim := s.acquire(s.name("held"), "lease-1")
	reached, err := s.Admin.AdvanceFloor(s.ctx, claim.Token+1000)
	if !s.can("advance floor", err) {
		return
	}
	s.must(err)
	if next := s.acquire(s.name("new"), "lease-2"); reached < claim.Token+1000 || next.Token <= reached {
		s.Errorf("token %v after an advance to %v", next.Token, reached)
	}
	s.renews("a lease that runs", claim, driver.Extended)
}

// epoch: the floor is not above a later token.
func (s *suite) epoch() {
	epoch, err := s.Admin.Epoch(s.ctx)
	if !s.can("epoch", err) {
		return
	}
	s.must(err)
	if next := s.acquire(s.name("r"), "lease-1"); next.Token <= epoch.Floor {
		s.Errorf("token %v, the floor was %v", next.Token, epoch.Floor)
	}
}

// raiseEpoch: it grows, and so do the tokens.
func (s *suite) raiseEpoch() {
	before := s.acquire(s.name("before"), "lease-1")
	raised, err := s.Admin.RaiseEpoch(s.ctx)
	if !s.can("raise epoch", err) {
		return
	}
	s.must(err)
	again, err := s.Admin.RaiseEpoch(s.ctx)
	s.must(err)
	if again.Number <= raised.Number {
		s.Errorf("epoch %d after %d", again.Number, raised.Number)
	}
	if after := s.acquire(s.name("after"), "lease-1"); after.Token < before.Token+1<<30 {
		s.Errorf("token %v after %v", after.Token, before.Token)
	}
}

// purge: no token is lowered by it.
func (s *suite) purge() {
	claim := s.acquire(s.name("r"), "lease-1")
	_, err := s.Issuer.Release(s.ctx, claim)
	s.must(err)
	_, err = s.Admin.Purge(s.ctx, &lockadmin.PurgeOptions{OlderThan: time.Millisecond})
	if !s.can("purge", err) {
		return
	}
	s.must(err)
	if next := s.acquire(claim.Resource, "lease-2"); next.Token <= claim.Token {
		s.Errorf("token %v after %v", next.Token, claim.Token)
	}
}

// inspect: what is wrong has its repair. A test's server may have much that is.
func (s *suite) inspect() {
	found, err := s.Admin.Inspect(s.ctx)
	if !s.can("inspect", err) {
		return
	}
	s.must(err)
	for _, f := range found {
		if f.Severity == "" || f.Setting == "" || f.Detail == "" || f.Severity != lockadmin.SeverityOK && f.Remedy == "" {
			s.Errorf("%+v", f)
		}
	}
}

// badInput: each names its field, and nothing is changed.
func (s *suite) badInput() {
	claim := s.acquire(s.name("r"), "lease-1")
	refused := func(what, field string, err error) {
		s.Helper()
		var invalid *guard.InvalidError
		if errors.Is(err, errors.ErrUnsupported) {
			return
		}
		if !errors.As(err, &invalid) || invalid.Field != field {
			s.Errorf("%s: %v; want an invalid %s", what, err, field)
		}
	}
	_, err := s.Admin.Get(s.ctx, "a\x00")
	refused("get", "resource", err)
	_, err = all(s.Admin.List(s.ctx, "a*b", nil))
	refused("list", "pattern", err)
	_, err = all(s.Admin.List(s.ctx, "", &lockadmin.ListOptions{States: []lockadmin.LeaseState{"gone"}}))
	refused("list", "States[0]", err)
	_, err = all(s.Admin.Audit(s.ctx, "", &lockadmin.AuditOptions{Before: -1}))
	refused("audit", "Before", err)
	_, err = s.Admin.ForceUnlock(s.ctx, claim.Resource, " ", "it hangs", nil)
	refused("force unlock", "actor", err)
	_, err = s.Admin.ForceUnlock(s.ctx, claim.Resource, "ada", "", nil)
	refused("force unlock", "reason", err)
	_, err = s.Admin.ForceUnlock(s.ctx, claim.Resource, "ada", "it hangs", &lockadmin.ForceUnlockOptions{RequestID: "a\n"})
	refused("force unlock", "RequestID", err)
	_, err = s.Admin.ForceUnlock(s.ctx, claim.Resource, "ada", "it hangs", &lockadmin.ForceUnlockOptions{ExpectedLeaseID: "a\x00"})
	refused("force unlock", "ExpectedLeaseID", err)
	_, err = s.Admin.Advance(s.ctx, claim.Resource, 0)
	refused("advance", "token", err)
	s.renews("after what was refused", claim, driver.Extended)
}
