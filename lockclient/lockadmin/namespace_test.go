package lockadmin

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient"
	"github.com/fencepost-go/fencepost/lockclient/internal/input"
	"github.com/fencepost-go/fencepost/lockclient/pglock"
)

// pieces are what hostile names are made of.
var pieces = []string{"a", "b", ":", "%", "%3A", "%25", "%3a", "/", "..", "../", "::", " ", "é", "\U0010FFFF", "*", "_", "\\", "'"}

func hostile(rng *rand.Rand) string {
	var b strings.Builder
	for range 1 + rng.IntN(5) {
		b.WriteString(pieces[rng.IntN(len(pieces))])
	}
	return b.String()
}

// collisions counts pairs of namespace and name that join maps to one resource.
func collisions(join func(ns, name string) (string, error)) (n int) {
	rng := rand.New(rand.NewPCG(1, 2))
	seen := map[string][2]string{}
	for range 100_000 {
		pair := [2]string{hostile(rng), hostile(rng)}
		resource, err := join(pair[0], pair[1])
		if err != nil {
			continue
		}
		if other, there := seen[resource]; there && other != pair {
			n++
		}
		seen[resource] = pair
	}
	return n
}

// TestNamespacesAreInjective: no two pairs of namespace and name make one
// resource. The control joins without escaping.
func TestNamespacesAreInjective(t *testing.T) {
	t.Parallel()
	if n := collisions(func(ns, name string) (string, error) {
		n, err := input.NewNamespace("Options.Namespace", ns)
		if err != nil {
			return "", err
		}
		resource, err := n.Resource(name)
		if err == nil && n.Name(resource) != name {
			t.Fatalf("%q in %q comes back as %q", name, ns, n.Name(resource))
		}
		return resource, err
	}); n != 0 {
		t.Errorf("%d collisions", n)
	}
	if collisions(func(ns, name string) (string, error) { return ns + ":" + name, nil }) == 0 {
		t.Error("the control has no collision: the names are not hostile enough")
	}
}

// TestNamespaceJoinsAsJoinResource: a confined client's names agree with what
// the fences make of the parts.
func TestNamespaceJoinsAsJoinResource(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(3, 4))
	for range 1000 {
		ns, a, b := hostile(rng), hostile(rng), hostile(rng)
		n, err := input.NewNamespace("Options.Namespace", ns)
		if err != nil {
			t.Fatal(err)
		}
		name, err := guard.JoinResource(a, b)
		if err != nil {
			t.Fatal(err)
		}
		want, err := guard.JoinResource(ns, a, b)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := n.Resource(name); err != nil || got != want {
			t.Fatalf("%q, %v, want %q", got, err, want)
		}
	}
}

// TestTenants: a client confined to a namespace neither acquires, nor lists, nor
// audits, nor cuts outside of it, whatever it names.
func TestTenants(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	confined := func(ns string) *Client { return newTestClient(t, pool, &lockclient.Options{Namespace: ns}) }
	a, b := confined("a"), confined("a:b")
	names := []string{"x", "b:x", ":x", "a:x", "%3Ab:x", "../a:b/x", "..", "/", "%", "'; --", "\U0010FFFF"}
	unconfined := newTestClient(t, pool, nil).Operator
	for _, name := range names {
		la, lb := mustTry(t, a, name, time.Hour), mustTry(t, b, name, time.Hour)
		if la.Resource() != "a:"+name || lb.Resource() != "a%3Ab:"+name {
			t.Errorf("%q is %q and %q", name, la.Resource(), lb.Resource())
		}
		// Both tenants' whole names, as hostile names of the other.
		for _, whole := range []string{la.Resource(), lb.Resource()} {
			if _, err := b.Operator.Get(t.Context(), whole); !errors.Is(err, guard.ErrNotFound) {
				t.Errorf("b gets %q: %v", whole, err)
			}
			if _, err := b.Operator.ForceUnlock(t.Context(), whole, "b", "mischief", nil); !errors.Is(err, guard.ErrNotFound) {
				t.Errorf("b cuts %q: %v", whole, err)
			}
		}
		if err := la.Renew(t.Context()); err != nil {
			t.Errorf("%q of a: %v", name, err)
		}
		if _, err := a.Operator.ForceUnlock(t.Context(), name, "a", "its own", nil); err != nil {
			t.Error(err)
		}
		if err := lb.Renew(t.Context()); err != nil {
			t.Errorf("%q of b: %v", name, err)
		}
	}
	if leases, err := all(unconfined.List(t.Context(), "", nil)); err != nil || len(leases) != 2*len(names) {
		t.Errorf("the unconfined: %d leases, %v", len(leases), err)
	}
	// Hostile prefixes and places to continue from.
	for _, prefix := range []string{"", "a", ":", "%", "../*", "\U0010FFFF", "a:", "_", "b:x", "*", "*:x", "a*"} {
		for _, after := range []string{"", "a", "a%3Ab:", "a:", "\U0010FFFF"} {
			for c, inside := range map[*Client]string{a: "a:", b: "a%3Ab:"} {
				leases, err := all(c.Operator.List(t.Context(), prefix, &ListOptions{After: after}))
				if err != nil {
					t.Fatal(err)
				}
				for _, l := range leases {
					if l.Resource != inside+l.Name || !matches(prefix, l.Name) {
						t.Errorf("prefix %q after %q lists %q, %q", prefix, after, l.Resource, l.Name)
					}
				}
			}
		}
		for c, want := range map[*Client]int{a: len(names), b: 0} {
			records, err := all(c.Operator.Audit(t.Context(), prefix, nil))
			if err != nil || prefix == "" && len(records) != want || len(records) > want {
				t.Errorf("audit of %q: %d records, %v", prefix, len(records), err)
			}
		}
	}
	if held, err := all(b.Operator.List(t.Context(), "", &ListOptions{HeldFor: time.Microsecond})); err != nil || len(held) != len(names) {
		t.Errorf("long held: %d, %v", len(held), err)
	}
	if above, err := b.Advance(t.Context(), "advanced", 9); err != nil || above != 9 || tokenOf(t, pool, "a%3Ab:advanced") != 9 {
		t.Errorf("advanced %v, %v", above, err)
	}
	_, floor := a.AdvanceFloor(t.Context(), 9)
	_, epoch := a.RaiseEpoch(t.Context())
	_, purge := a.Purge(t.Context(), nil)
	for what, err := range map[string]error{"AdvanceFloor": floor, "RaiseEpoch": epoch, "Purge": purge} {
		var invalid *guard.InvalidError
		if !errors.As(err, &invalid) || invalid.Field != "Options.Namespace" || !strings.Contains(err.Error(), what) {
			t.Errorf("%s by a tenant: %v", what, err)
		}
	}
}

// TestNamespaceInvalid: each is refused with its field and value, and no row is
// made.
func TestNamespaceInvalid(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	for _, ns := range []string{"a\x00", "a\n", "\xff", strings.Repeat("x", 257), strings.Repeat(":", 86), strings.Repeat("y", 1<<20)} {
		_, err := lockclient.New(guard.Must(pglock.New(pool, nil)), "o", &lockclient.Options{Namespace: ns})
		_, opErr := New(pool, &Options{Namespace: ns})
		for _, err := range []error{err, opErr} {
			var invalid *guard.InvalidError
			if !errors.As(err, &invalid) || invalid.Field != "Options.Namespace" || invalid.Value != ns[:min(len(ns), 64)] {
				t.Errorf("%.20q: %v", ns, err)
			}
		}
	}
	c := newTestClient(t, pool, &lockclient.Options{Namespace: "tenant"})
	mustTry(t, c, strings.Repeat("x", 512-len("tenant:")), time.Hour)
	for _, name := range []string{"", strings.Repeat("x", 513-len("tenant:")), "a\x00b", "\xff"} {
		var invalid *guard.InvalidError
		if _, err := c.TryAcquire(t.Context(), name, &lockclient.AcquireOptions{TTL: time.Hour}); !errors.As(err, &invalid) ||
			invalid.Field != "resource" || invalid.Value != name[:min(len(name), 64)] {
			t.Errorf("%.20q: %v", name, err)
		}
	}
	if n := countRows(t, pool); n != 1 {
		t.Errorf("%d rows", n)
	}
}
