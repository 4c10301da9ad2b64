package lockclient

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

// TestListByPrefix: whatever is in names and prefixes, a list is exactly the
// names that begin with the prefix, in the order of their bytes, in pages of any
// size. The control, LIKE, is wrong about some of them.
func TestListByPrefix(t *testing.T) {
	pool := migrated(t)
	o := newRoleOperator(t, pool)
	names := []string{
		"a", "a%", "a%b", "a_", "axb", "a\\", "a\\%", "A", "ab", "b", "~", "~~", "é", "e\u0301", "\u007e\U0010FFFF",
		"\uD7FF", "\uD7FFx", "\uE000", "\uFFFF", "\U00010000", "\U0010FFFF", "\U0010FFFFx", "\U0010FFFF\U0010FFFF", "x\U0010FFFF", "x\U0010FFFFa", "y", " ", "'", "..",
	}
	mustExec(t, pool, "INSERT INTO fencepost.leases (resource, token) SELECT r, 1 FROM unnest($1::text[]) r", names)
	mustExec(t, pool, "INSERT INTO fencepost.leases (resource, token) VALUES ('', 1)") // the floor is no lease
	slices.Sort(names)
	likeIsWrong := 0
	for _, prefix := range append(names, "", "q", "a%b%", "\uD7FF\U0010FFFF") {
		var want []string
		for _, name := range names {
			if strings.HasPrefix(name, prefix) {
				want = append(want, name)
			}
		}
		for _, limit := range []int{0, 1, 3} {
			var got []string
			for info, err := range o.All(t.Context(), prefix, &ListOptions{Limit: limit}) {
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, info.Resource)
			}
			if !slices.Equal(got, want) {
				t.Errorf("%q by %d: %q, want %q", prefix, limit, got, want)
			}
		}
		var like []string
		if err := pool.QueryRow(t.Context(), `SELECT array_agg(resource ORDER BY resource) FROM fencepost.leases WHERE resource LIKE $1 || '%' AND resource <> ''`, prefix).Scan(&like); err != nil || !slices.Equal(like, want) {
			likeIsWrong++
		}
	}
	if likeIsWrong == 0 {
		t.Error("the control: LIKE gives the same, so the names show nothing")
	}
}

// TestListStates: rows by state and by waiters, also where a page's worth of
// rows has none of them; what each row says.
func TestListStates(t *testing.T) {
	pool := migrated(t)
	client, o := newTestClient(t, pool, nil), newRoleOperator(t, pool)
	mustExec(t, pool, "INSERT INTO fencepost.leases (resource, token) SELECT 'f' || i, 1 FROM generate_series(1, $1::bigint) i", int64(window+10))
	mustTry(t, client, "expired", time.Minute)
	runOut(t, pool, "expired")
	held := mustTry(t, client, "z", 30*time.Minute)
	time.Sleep(MinTTL)
	go client.Acquire(t.Context(), "z", &AcquireOptions{TTL: time.Minute})
	awaited(t, o, "z")
	// Seen for longer than this machine may take to set it again.
	mustExec(t, pool, "UPDATE fencepost.leases SET wake_until = clock_timestamp() + interval '1 hour' WHERE resource = 'z'")
	list := func(opts ListOptions) (names []string) {
		for info, err := range o.All(t.Context(), "", &opts) {
			if err != nil {
				t.Fatal(err)
			}
			names = append(names, info.Resource)
		}
		return names
	}
	for what, test := range map[string]struct {
		opts ListOptions
		want []string
	}{
		"held":            {ListOptions{States: []LeaseState{StateHeld}}, []string{"z"}},
		"expired":         {ListOptions{States: []LeaseState{StateExpired}}, []string{"expired"}},
		"held or expired": {ListOptions{States: []LeaseState{StateHeld, StateExpired}, Limit: 1}, []string{"expired", "z"}},
		"awaited":         {ListOptions{AwaitedOnly: true}, []string{"z"}},
		"awaited, free":   {ListOptions{AwaitedOnly: true, States: []LeaseState{StateFree}}, nil},
	} {
		if got := list(test.opts); !slices.Equal(got, test.want) {
			t.Errorf("%s: %q", what, got)
		}
	}
	if n := len(list(ListOptions{States: []LeaseState{StateFree}, Limit: 1000})); n != window+10 {
		t.Errorf("free: %d", n)
	}
	// A short page says where to go on.
	page, err := o.List(t.Context(), "", &ListOptions{States: []LeaseState{StateHeld}})
	if err != nil || len(page.Leases) != 0 || page.Next == "" {
		t.Errorf("a selection with nothing in the first %d rows: %d, next %q, %v", window, len(page.Leases), page.Next, err)
	}

	info, err := o.Get(t.Context(), "z")
	r := rowOf(t, pool, "z")
	if err != nil || info.LeaseID != held.ID() || info.Owner != client.owner || info.Token != 1 || info.State != StateHeld || !info.Awaited ||
		!info.AcquiredAt.Equal(r.AcquiredAt) || !info.ExpiresAt.Equal(r.ExpiresAt) || info.HeldFor <= 0 || info.Remaining <= 0 || info.Remaining > 30*time.Minute {
		t.Errorf("%+v, %v", info, err)
	}
	info, err = o.Get(t.Context(), "f1")
	if err != nil || info.State != StateFree || !info.AcquiredAt.IsZero() || !info.ExpiresAt.IsZero() || info.LeaseID != "" || info.Remaining != 0 || info.Awaited {
		t.Errorf("%+v, %v", info, err)
	}
	long, err := o.LongHeld(t.Context(), MinTTL/2, nil)
	if err != nil || len(long) != 1 || long[0].Resource != "z" {
		t.Errorf("held for long: %+v, %v", long, err)
	}
	if long, err = o.LongHeld(t.Context(), time.Hour, nil); err != nil || len(long) != 0 {
		t.Errorf("held for an hour: %+v, %v", long, err)
	}
}

// TestListInvalid: each is refused by field and value.
func TestListInvalid(t *testing.T) {
	o := newRoleOperator(t, migrated(t))
	list := func(prefix string, opts ListOptions) error { _, err := o.List(t.Context(), prefix, &opts); return err }
	audit := func(from, to time.Time, opts AuditOptions) error {
		_, err := o.Audit(t.Context(), "", from, to, &opts)
		return err
	}
	_, long := o.LongHeld(t.Context(), -1, nil)
	_, longPrefix := o.LongHeld(t.Context(), 0, &LongHeldOptions{Prefix: "\xff"})
	_, auditPrefix := o.Audit(t.Context(), "\x00", time.Time{}, time.Time{}, nil)
	_, get := o.Get(t.Context(), "")
	now := time.Now()
	for field, errs := range map[string][]error{
		"prefix":    {list("\xff", ListOptions{}), list("a\x00", ListOptions{}), list(strings.Repeat("x", 513), ListOptions{}), longPrefix, auditPrefix},
		"Limit":     {list("", ListOptions{Limit: -1}), list("", ListOptions{Limit: 1001}), audit(now.Add(-1), now, AuditOptions{Limit: 1001})},
		"After":     {list("", ListOptions{After: "\x00"}), audit(now.Add(-1), now, AuditOptions{After: "x"}), audit(now.Add(-1), now, AuditOptions{After: "-1"}), audit(now.Add(-1), now, AuditOptions{After: "01"})},
		"States[1]": {list("", ListOptions{States: []LeaseState{StateHeld, "dead"}})},
		"from":      {audit(now, now, AuditOptions{}), audit(now, now.Add(-1), AuditOptions{})},
		"threshold": {long},
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
	out, err := json.Marshal(LeaseInfo{Resource: "r", State: StateFree, Token: 1 << 60})
	if err != nil || !bytes.Contains(out, []byte(`"token":"1152921504606846976"`)) || bytes.Contains(out, []byte("0001-01-01")) {
		t.Errorf("%s, %v", out, err)
	}
}
