package pgadmin

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin"
)

// pages lists with pages of any size.
func pages(t *testing.T, o *Operator, pattern string, opts *lockadmin.ListOptions, limit int) (names []string) {
	t.Helper()
	q, err := o.listQuery(pattern, opts)
	if err != nil {
		t.Fatal(err)
	}
	q.limit = limit
	for more := true; more; {
		var page []lockadmin.LeaseInfo
		if page, q.after, more, err = o.page(t.Context(), q); err != nil || len(page) > limit {
			t.Fatal(len(page), err)
		}
		for _, info := range page {
			names = append(names, info.Resource)
		}
	}
	return names
}

// matches is the rule of patterns, by components and not by expressions.
func matches(pattern, name string) bool {
	if pattern == "" {
		return true
	}
	want, have := strings.Split(pattern, ":"), strings.Split(name, ":")
	for i, w := range want {
		if i >= len(have) {
			return false
		}
		if i == len(want)-1 && strings.HasSuffix(w, "*") {
			return strings.HasPrefix(have[i], strings.ReplaceAll(strings.TrimSuffix(w, "*"), "%2A", "*"))
		}
		if w != "*" && strings.ReplaceAll(w, "%2A", "*") != have[i] {
			return false
		}
	}
	return true
}

// TestListByPattern: whatever names and patterns contain, a list is exactly the
// names whose components match, in byte order, in pages of any size. The
// control, LIKE, is wrong about some of them.
func TestListByPattern(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	o := newRoleOperator(t, pool)
	names := []string{
		"a", "a%", "a%b", "a_", "axb", "a\\", "a\\%", "A", "ab", "b", "~", "~~", "é", "e\u0301", "\u007e\U0010FFFF",
		"\uD7FF", "\uD7FFx", "\uE000", "\uFFFF", "\U00010000", "\U0010FFFF", "\U0010FFFFx", "\U0010FFFF\U0010FFFF", "x\U0010FFFF", "x\U0010FFFFa", "y", " ", "'", "..",
		"tenant_1", "tenant_1:", "tenant_1:a", "tenant_1:billing:04", "tenant_1:bills", "tenant_12", "tenant_12:billing:04", "tenant_1!", "tenant_1;", "tenant_1%3Ax:billing:04",
		"tenant_123:billing-close:2026-04", "tenant_1234:billing-close:2026-04", "tenant_123:billing-closed:2026-04", "tenant_123:payout:2026-04", "tenant_123:billing-close",
		"*", "**:x", "a*b:c", ":", "::", ":a", "a.c", "a.c:x", "abc:x", "(a|b)", "[a]:$", "^a",
	}
	mustExec(t, pool, "INSERT INTO fencepost.leases (resource, token) SELECT r, 1 FROM unnest($1::text[]) r", names)
	mustExec(t, pool, "INSERT INTO fencepost.leases (resource, token) VALUES ('', 1)") // the floor is no lease
	slices.Sort(names)
	patterns := []string{
		"", "q", "a%b%", "\uD7FF\U0010FFFF*", "*", "*:*", "*:billing", "*:billing:04", "*:*:04", "tenant_1*", "tenant_1:*", "tenant_1:bill*", "tenant_123:billing-close:*",
		"tenant_123:billing-close", "%2A", "%2A%2A", "a%2Ab", "a%2A*", "*:*:*", "a*", ":*", "\U0010FFFF*", "tenant_1:*:04", "*:a*", "a.c", "*:x", "(a*", "[a]", "tenant_123:*:2026-04",
	}
	for _, name := range names {
		if !strings.Contains(name, "*") {
			patterns = append(patterns, name)
		}
	}
	likeIsWrong := 0
	for _, pattern := range patterns {
		var want []string
		for _, name := range names {
			if matches(pattern, name) {
				want = append(want, name)
			}
		}
		for _, limit := range []int{1, 3, 100} {
			if got := pages(t, o, pattern, nil, limit); !slices.Equal(got, want) {
				t.Errorf("%q by %d: %q, want %q", pattern, limit, got, want)
			}
		}
		var like []string
		if err := pool.QueryRow(t.Context(), `SELECT array_agg(resource ORDER BY resource) FROM fencepost.leases WHERE resource LIKE $1 || '%' AND resource <> ''`, pattern).Scan(&like); err != nil || !slices.Equal(like, want) {
			likeIsWrong++
		}
	}
	if likeIsWrong == 0 {
		t.Error("the control: LIKE gives the same, so the names show nothing")
	}
	if got := pages(t, o, "tenant_1", nil, 100); slices.Contains(got, "tenant_12") || !slices.Contains(got, "tenant_1:a") {
		t.Errorf("tenant_1 chooses %q", got)
	}
}

// TestListStates: rows by state and by waiters, even if a page's worth of rows
// has none of them, and the contents of each row.
func TestListStates(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	client, o := newTestClient(t, pool, nil), newRoleOperator(t, pool)
	mustExec(t, pool, "INSERT INTO fencepost.leases (resource, token) SELECT 'f' || i, 1 FROM generate_series(1, $1::bigint) i", int64(window+10))
	mustTry(t, client, "expired", time.Hour)
	runOut(t, pool, "expired")
	held := mustTry(t, client, "z", 30*time.Minute)
	time.Sleep(lockclient.MinTTL)
	go client.Acquire(t.Context(), "z", &lockclient.AcquireOptions{TTL: time.Hour})
	awaited(t, o, "z")
	// Valid for longer than this machine may take to set it again.
	mustExec(t, pool, "UPDATE fencepost.leases SET wake_until = clock_timestamp() + interval '1 hour' WHERE resource = 'z'")
	list := func(opts lockadmin.ListOptions) (names []string) {
		for info, err := range o.List(t.Context(), "", &opts) {
			if err != nil {
				t.Fatal(err)
			}
			names = append(names, info.Resource)
		}
		return names
	}
	for what, test := range map[string]struct {
		opts lockadmin.ListOptions
		want []string
	}{
		"held":            {lockadmin.ListOptions{States: []lockadmin.LeaseState{lockadmin.StateHeld}}, []string{"z"}},
		"expired":         {lockadmin.ListOptions{States: []lockadmin.LeaseState{lockadmin.StateExpired}}, []string{"expired"}},
		"held or expired": {lockadmin.ListOptions{States: []lockadmin.LeaseState{lockadmin.StateHeld, lockadmin.StateExpired}}, []string{"expired", "z"}},
		"awaited":         {lockadmin.ListOptions{AwaitedOnly: true}, []string{"z"}},
		"awaited, free":   {lockadmin.ListOptions{AwaitedOnly: true, States: []lockadmin.LeaseState{lockadmin.StateFree}}, nil},
	} {
		if got := list(test.opts); !slices.Equal(got, test.want) {
			t.Errorf("%s: %q", what, got)
		}
	}
	if n := len(list(lockadmin.ListOptions{States: []lockadmin.LeaseState{lockadmin.StateFree}})); n != window+10 {
		t.Errorf("free: %d", n)
	}
	// A short page says where to go on.
	q, err := o.listQuery("", &lockadmin.ListOptions{States: []lockadmin.LeaseState{lockadmin.StateHeld}})
	if err != nil {
		t.Fatal(err)
	}
	if page, last, more, err := o.page(t.Context(), q); err != nil || len(page) != 0 || !more || last == "" {
		t.Errorf("a selection with nothing in the first %d rows: %d, on from %q, %v", window, len(page), last, err)
	}
	if got := list(lockadmin.ListOptions{States: []lockadmin.LeaseState{lockadmin.StateHeld, lockadmin.StateExpired}, After: "expired"}); !slices.Equal(got, []string{"z"}) {
		t.Errorf("after expired: %q", got)
	}

	info, err := o.Get(t.Context(), "z")
	r := rowOf(t, pool, "z")
	if err != nil || info.LeaseID != held.ID() || info.Owner != held.Owner() || info.Token != 1 || info.State != lockadmin.StateHeld || !info.Awaited ||
		!info.CreatedAt.Equal(r.AcquiredAt) || !info.ExpiresAt.Equal(r.ExpiresAt) || info.HeldFor <= 0 || info.Remaining <= 0 || info.Remaining > 30*time.Minute {
		t.Errorf("%+v, %v", info, err)
	}
	info, err = o.Get(t.Context(), "f1")
	if err != nil || info.State != lockadmin.StateFree || !info.CreatedAt.IsZero() || !info.ExpiresAt.IsZero() || info.LeaseID != "" || info.Remaining != 0 || info.Awaited {
		t.Errorf("%+v, %v", info, err)
	}
	long, err := all(o.List(t.Context(), "", &lockadmin.ListOptions{HeldFor: lockclient.MinTTL / 2}))
	if err != nil || len(long) != 1 || long[0].Resource != "z" {
		t.Errorf("held for long: %+v, %v", long, err)
	}
	if long, err = all(o.List(t.Context(), "", &lockadmin.ListOptions{HeldFor: time.Hour})); err != nil || len(long) != 0 {
		t.Errorf("held for an hour: %+v, %v", long, err)
	}
}

// TestListInvalid: each is refused with its field and value.
func TestListInvalid(t *testing.T) {
	t.Parallel()
	o := newRoleOperator(t, nowhere(t))
	list := func(pattern string, opts lockadmin.ListOptions) error {
		_, err := all(o.List(t.Context(), pattern, &opts))
		return err
	}
	audit := func(pattern string, opts lockadmin.AuditOptions) error {
		_, err := all(o.Audit(t.Context(), pattern, &opts))
		return err
	}
	_, get := o.Get(t.Context(), "")
	now := time.Now()
	for field, errs := range map[string][]error{
		"pattern": {list("\xff", lockadmin.ListOptions{}), list("a\x00", lockadmin.ListOptions{}), list(strings.Repeat("x", 513), lockadmin.ListOptions{}), list("a*:b", lockadmin.ListOptions{}),
			list("*a", lockadmin.ListOptions{}), list("a:**", lockadmin.ListOptions{}), audit("\x00", lockadmin.AuditOptions{}), audit("*a", lockadmin.AuditOptions{})},
		"HeldFor":   {list("", lockadmin.ListOptions{HeldFor: -1})},
		"After":     {list("", lockadmin.ListOptions{After: "\x00"})},
		"Before":    {audit("", lockadmin.AuditOptions{Before: -1})},
		"States[1]": {list("", lockadmin.ListOptions{States: []lockadmin.LeaseState{lockadmin.StateHeld, "dead"}})},
		"From":      {audit("", lockadmin.AuditOptions{From: now, To: now}), audit("", lockadmin.AuditOptions{From: now, To: now.Add(-1)})},
		"resource":  {get},
	} {
		for i, err := range errs {
			var invalid *guard.InvalidError
			if !errors.Is(err, guard.ErrInvalid) || !errors.As(err, &invalid) || invalid.Field != field {
				t.Errorf("%s %d: %v", field, i, err)
			}
		}
	}
}

func TestInfoJSON(t *testing.T) {
	t.Parallel()
	out, err := json.Marshal(lockadmin.LeaseInfo{Resource: "r", State: lockadmin.StateFree, Token: 1 << 60})
	if err != nil || !bytes.Contains(out, []byte(`"token":"1152921504606846976"`)) || bytes.Contains(out, []byte("0001-01-01")) {
		t.Errorf("%s, %v", out, err)
	}
}

// TestInfoOfWaitersAndMetadata: a lease shows what its holder says about itself
// and how many processes wait; once it is free, neither.
func TestInfoOfWaitersAndMetadata(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	client, o := newTestClient(t, pool, nil), newRoleOperator(t, pool)
	lease, err := client.TryAcquire(t.Context(), "r", &lockclient.AcquireOptions{TTL: time.Hour, Metadata: "pod 7"})
	if err != nil {
		t.Fatal(err)
	}
	mustExec(t, pool, "UPDATE fencepost.leases SET wake_until = now() + interval '1 hour', waiters = '{a,b}' WHERE resource = 'r'")
	if info, err := o.Get(t.Context(), "r"); err != nil || info.Metadata != "pod 7" || info.Waiters != 2 || !info.Awaited {
		t.Errorf("held: %+v, %v", info, err)
	}
	mustExec(t, pool, "UPDATE fencepost.leases SET wake_until = now() - interval '1 second'")
	if info, err := o.Get(t.Context(), "r"); err != nil || info.Waiters != 0 || info.Awaited {
		t.Errorf("the line is over: %+v, %v", info, err)
	}
	if err := lease.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if info, err := o.Get(t.Context(), "r"); err != nil || info.Metadata != "" {
		t.Errorf("free: %+v, %v", info, err)
	}
}
