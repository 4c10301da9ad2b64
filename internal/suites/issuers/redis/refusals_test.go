package redis_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/redislock"
)

// TestEvictionPolicy: a server that may evict leases is refused before anything is
// written, and so is one whose policy cannot be read, unless the caller insists.
func TestEvictionPolicy(t *testing.T) {
	s := startServer(t)
	c := s.client(t, s.addr)
	for _, policy := range []string{"noeviction", "volatile-lru", "volatile-ttl", "allkeys-lru", "unreadable"} {
		i := s.issuer(t, s.addr)
		if policy == "unreadable" {
			c.ConfigSet(t.Context(), "maxmemory-policy", "noeviction")
			i = restricted(t, s, "info")
		} else if err := c.ConfigSet(t.Context(), "maxmemory-policy", policy).Err(); err != nil {
			t.Fatal(err)
		}
		_, err := i.Acquire(t.Context(), ask(policy, "a"))
		if policy == "noeviction" {
			if err != nil {
				t.Error(err)
			}
			continue
		}
		if !errors.Is(err, guard.ErrSetup) || !strings.Contains(err.Error(), "InsecureEviction") {
			t.Errorf("%s: %v", policy, err)
		}
		if n := c.Exists(t.Context(), "fencepost:{"+policy+"}:lease").Val(); n != 0 {
			t.Errorf("%s: granted", policy)
		}
		insists, err := redislock.New(doOf(c), &redislock.Options{InsecureEviction: true})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := insists.Acquire(t.Context(), ask(policy, "a")); err != nil {
			t.Errorf("%s, insisted: %v", policy, err)
		}
	}
}

// TestDefiniteRefusals: what the server refuses for a reason of its own is refused,
// and nothing was written.
func TestDefiniteRefusals(t *testing.T) {
	for code, test := range map[string]struct {
		begin func(t *testing.T, do func(args ...any) error, dir string)
		end   func(do func(args ...any) error)
	}{
		"NOREPLICAS": {
			func(_ *testing.T, do func(...any) error, _ string) { do("CONFIG", "SET", "min-replicas-to-write", "1") },
			func(do func(...any) error) { do("CONFIG", "SET", "min-replicas-to-write", "0") },
		},
		"OOM": {
			func(_ *testing.T, do func(...any) error, _ string) { do("CONFIG", "SET", "maxmemory", "1") },
			func(do func(...any) error) { do("CONFIG", "SET", "maxmemory", "0") },
		},
		"READONLY": {
			func(_ *testing.T, do func(...any) error, _ string) { do("REPLICAOF", "127.0.0.1", "1") },
			func(do func(...any) error) { do("REPLICAOF", "NO", "ONE") },
		},
		"MISCONF": {
			func(t *testing.T, do func(...any) error, dir string) {
				os.RemoveAll(dir)
				do("CONFIG", "SET", "save", "3600 1")
				testkit.Eventually(t, "a save that fails without a directory", func() bool {
					do("BGSAVE")
					return strings.HasPrefix(errorText(do("SET", "x", "y")), "MISCONF")
				})
			},
			func(do func(...any) error) { do("CONFIG", "SET", "save", "") },
		},
		"BUSY": {
			func(t *testing.T, do func(...any) error, _ string) {
				do("CONFIG", "SET", "lua-time-limit", "1")
				go do("EVAL", "while true do end", 0)
				testkit.Eventually(t, "a busy server", func() bool { return strings.HasPrefix(errorText(do("GET", "x")), "BUSY") })
			},
			func(do func(...any) error) {
				for do("SCRIPT", "KILL"); strings.HasPrefix(errorText(do("GET", "x")), "BUSY"); {
					time.Sleep(time.Millisecond)
				}
			},
		},
	} {
		t.Run(code, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			s := startServer(t, "--dir", dir)
			c := s.client(t, s.addr)
			do := func(args ...any) error { return c.Do(context.WithoutCancel(t.Context()), args...).Err() }
			i := s.issuer(t, s.addr)
			held := acquire(t, i, "held", "a")
			test.begin(t, do, dir)
			_, acquired := i.Acquire(t.Context(), ask("free", "a"))
			// The first write of an acquire needs no memory, and then Redis lets it finish.
			if code != "OOM" && (!errors.Is(acquired, guard.ErrUnavailable) || !strings.Contains(acquired.Error(), code+" ")) {
				t.Errorf("acquire: %v", acquired)
			}
			results := make([]driver.Renewed, 1)
			i.Renew(t.Context(), []driver.Renewal{{Claim: held, TTL: time.Minute}}, results)
			_, spent := i.Release(t.Context(), guard.Claim{Resource: "free", LeaseID: "b"})
			if !errors.Is(spent, guard.ErrUnavailable) {
				t.Errorf("release: %v", spent)
			}
			for what, err := range map[string]error{"acquire": acquired, "renew": results[0].Err, "release": spent} {
				if errors.Is(err, guard.ErrOutcomeUnknown) {
					t.Errorf("%s: %v", what, err)
				}
			}
			test.end(do)
			if i.Renew(t.Context(), []driver.Renewal{{Claim: held, TTL: time.Minute}}, results); results[0].State != driver.Extended {
				t.Errorf("afterwards: %+v", results[0])
			}
			if n := c.Exists(t.Context(), "fencepost:{free}:lease").Val(); acquired != nil && n != 0 {
				t.Error("the refused acquire was granted")
			}
		})
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
