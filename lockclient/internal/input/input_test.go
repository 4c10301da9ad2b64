package input

import (
	"math/rand/v2"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/testkit"
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
		n, err := NewNamespace("Options.Namespace", ns)
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
		n, err := NewNamespace("Options.Namespace", ns)
		testkit.Must(t, err)
		name, err := guard.JoinResource(a, b)
		testkit.Must(t, err)
		want, err := guard.JoinResource(ns, a, b)
		testkit.Must(t, err)
		if got, err := n.Resource(name); err != nil || got != want {
			t.Fatalf("%q, %v, want %q", got, err, want)
		}
	}
}

func TestNewLeaseID(t *testing.T) {
	form := regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
	seen := map[string]bool{}
	for range 10_000 {
		before := time.Now().UnixMilli()
		id := NewLeaseID()
		after := time.Now().UnixMilli()
		if !form.MatchString(id) || guard.ValidateLeaseID(id) != nil || seen[id] {
			t.Fatalf("bad or repeated %q", id)
		}
		seen[id] = true
		ms, err := strconv.ParseInt(strings.ReplaceAll(id, "-", "")[:12], 16, 64)
		if err != nil || ms < before || ms > after {
			t.Fatalf("%q has the time %d, made from %d to %d", id, ms, before, after)
		}
	}
}
