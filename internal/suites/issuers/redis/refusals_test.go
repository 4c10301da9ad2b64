package redis_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/suites/issuers/issuertest"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin"
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
			testkit.Check(t, err)
			continue
		}
		if !errors.Is(err, guard.ErrSetup) || !strings.Contains(err.Error(), "InsecureEviction") {
			t.Errorf("%s: %v", policy, err)
		}
		if n := c.Exists(t.Context(), "fencepost:{"+policy+"}:lease").Val(); n != 0 {
			t.Errorf("%s: granted", policy)
		}
		insists, err := redislock.New(doOf(c), &redislock.Options{InsecureEviction: true})
		testkit.Must(t, err)
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

// restricted is an issuer of a user who may do all but one command.
func restricted(t *testing.T, s *server, without string) *redislock.Issuer {
	t.Helper()
	testkit.Must(t, s.client(t, s.addr).Do(t.Context(), "ACL", "SETUSER", without, "on", ">secret", "~*", "&*", "+@all", "-"+without).Err())
	c := redis.NewClient(&redis.Options{Addr: s.addr, Username: without, Password: "secret", MaxRetries: -1})
	t.Cleanup(func() { c.Close() })
	i, err := redislock.New(doOf(c), &redislock.Options{Subscribe: subscribeOf(c)})
	testkit.Must(t, err)
	t.Cleanup(func() { i.Close() })
	return i
}

// TestMissingRights: without the right to a command that a script needs, nothing is
// granted and no lease is left, such as one that never ends; the error says that.
// With somebody in line more commands are needed.
func TestMissingRights(t *testing.T) {
	for _, without := range []string{"pexpire", "hset", "set", "hmget", "exists", "del", "zrem", "hdel"} {
		t.Run(without, func(t *testing.T) {
			t.Parallel()
			s := startServer(t)
			c := s.client(t, s.addr)
			i, other := restricted(t, s, without), s.issuer(t, s.addr)
			for _, resource := range []string{"alone", "in line"} {
				if resource == "in line" {
					held := acquire(t, other, resource, "before")
					w, err := other.Watch(t.Context(), driver.Watch{Resource: resource, LeaseID: "waiter"}, func() {})
					testkit.Must(t, err)
					w.Stop()
					if freed, err := other.Release(t.Context(), held); !freed || err != nil {
						t.Fatal(freed, err)
					}
				}
				g, err := i.Acquire(t.Context(), ask(resource, "a"))
				if err == nil && resource == "alone" && without != "pexpire" && without != "hset" && without != "set" && without != "exists" {
					continue // not needed
				}
				if !errors.Is(err, guard.ErrSetup) || errors.Is(err, guard.ErrOutcomeUnknown) || g.Token != guard.NoToken {
					t.Errorf("%s: %+v, %v; want ErrSetup", resource, g, err)
				}
				if n := c.Exists(t.Context(), "fencepost:{"+resource+"}:lease").Val(); n != 0 {
					t.Errorf("%s: the refused acquire left a lease that ends in %v (-1ns is never)", resource, c.PTTL(t.Context(), "fencepost:{"+resource+"}:lease").Val())
				}
			}
		})
	}
}

// TestMissingRightsToRelease: a release that is refused has freed nothing.
func TestMissingRightsToRelease(t *testing.T) {
	for _, without := range []string{"del", "zrange", "zrem", "hdel", "set"} {
		t.Run(without, func(t *testing.T) {
			t.Parallel()
			s := startServer(t)
			other := s.issuer(t, s.addr)
			held := acquire(t, other, "r", "a")
			w, err := other.Watch(t.Context(), driver.Watch{Resource: "r", LeaseID: "waiter"}, func() {})
			testkit.Must(t, err)
			w.Stop()
			freed, err := restricted(t, s, without).Release(t.Context(), held)
			if freed || !errors.Is(err, guard.ErrSetup) {
				t.Errorf("%v, %v; want ErrSetup", freed, err)
			}
			if n := s.client(t, s.addr).Exists(t.Context(), "fencepost:{r}:lease").Val(); n != 1 {
				t.Error("the refused release freed the lease")
			}
		})
	}
}

// TestRefusedInAScript: the text with which Redis 6 and 7.0 refuse a command of a
// script has no code of its own.
func TestRefusedInAScript(t *testing.T) {
	for _, text := range []string{
		"ERR Error running script (call to f_05): @user_script:58: @user_script: 58: The user executing the script can't run this command or subcommand ",
		"ERR The user executing the script can't run this command or subcommand script: 05, on @user_script:58.",
		"NOPERM ACL failure in script: User u has no permissions to run the 'pexpire' command",
	} {
		i, err := redislock.New(func(_ context.Context, args ...any) (any, error) {
			if args[0] == "TIME" {
				return []any{"1", "0"}, nil
			}
			return nil, errors.New(text)
		}, &redislock.Options{InsecureEviction: true})
		testkit.Must(t, err)
		if _, err := i.Acquire(t.Context(), ask("r", "a")); !errors.Is(err, guard.ErrSetup) || errors.Is(err, guard.ErrOutcomeUnknown) {
			t.Errorf("%q: %v; want ErrSetup", text, err)
		}
	}
}

// TestSubscribingHangsOnce: a subscription that the server never confirms is given
// up, and a later watch subscribes again. What the first brings after that is
// ended.
func TestSubscribingHangsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		var calls, stopped atomic.Int64
		i, err := redislock.New(func(context.Context, ...any) (any, error) { return []any{"free", "1"}, nil },
			&redislock.Options{Subscribe: func(context.Context, string, func(string)) (func(), error) {
				if calls.Add(1) == 1 {
					<-hang
					return func() { stopped.Add(1) }, nil
				}
				return func() {}, nil
			}})
		testkit.Must(t, err)
		watch := func() error {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			w, err := i.Watch(ctx, driver.Watch{Resource: "r", LeaseID: "w"}, func() {})
			if err == nil {
				w.Stop()
			}
			return err
		}
		if err := watch(); !errors.Is(err, driver.ErrNoWatch) {
			t.Errorf("while the subscription hangs: %v; want ErrNoWatch", err)
		}
		time.Sleep(time.Minute)
		if err := watch(); err != nil || calls.Load() != 2 {
			t.Errorf("a minute later: %v after %d subscriptions", err, calls.Load())
		}
		close(hang)
		synctest.Wait()
		if stopped.Load() != 1 {
			t.Errorf("the subscription that came too late was ended %d times", stopped.Load())
		}
		testkit.Check(t, i.Close())
	})
}

// TestWatcherSubscribingHangs: a watcher's subscription that the server confirms
// after the watch was given up is ended.
func TestWatcherSubscribingHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		var stopped atomic.Int64
		i, err := redislock.New(func(context.Context, ...any) (any, error) { return []any{"free", "1"}, nil },
			&redislock.Options{Subscribe: func(context.Context, string, func(string)) (func(), error) {
				<-hang
				return func() { stopped.Add(1) }, nil
			}})
		testkit.Must(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		time.AfterFunc(time.Minute, func() { close(hang) })
		began := time.Now()
		if _, err := i.Watch(ctx, driver.Watch{Resource: "r"}, func() {}); !errors.Is(err, driver.ErrNoWatch) || time.Since(began) != time.Second {
			t.Errorf("after %v: %v; want ErrNoWatch after a second", time.Since(began), err)
		}
		time.Sleep(2 * time.Minute)
		if stopped.Load() != 1 {
			t.Errorf("the subscription that came too late was ended %d times", stopped.Load())
		}
	})
}

// TestAcquireHangs: an acquire without a response ends with Request.Timeout, and
// says whether it may have been granted.
func TestAcquireHangs(t *testing.T) {
	for name, test := range map[string]struct {
		answers int // how many commands get a response
		want    error
	}{
		"the clock": {0, guard.ErrUnavailable},
		"the lease": {1, guard.ErrOutcomeUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				answers := test.answers
				hang := make(chan struct{})
				i, err := redislock.New(func(context.Context, ...any) (any, error) {
					if answers--; answers < 0 {
						<-hang
					}
					return []any{"1", "0"}, nil // the time
				}, &redislock.Options{InsecureEviction: true})
				testkit.Must(t, err)
				defer close(hang)
				began := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				r := ask("r", "a")
				r.Timeout = time.Second
				if _, err := i.Acquire(ctx, r); !errors.Is(err, test.want) || time.Since(began) != r.Timeout {
					t.Errorf("after %v: %v; want %v after %v", time.Since(began), err, test.want, r.Timeout)
				}
			})
		})
	}
}

// TestMissingRightsToCut: a force unlock that is refused has cut nothing and recorded nothing, and
// done with all rights it passes the lease to who waits. The control is the right that it does not need.
func TestMissingRightsToCut(t *testing.T) {
	for _, without := range []string{"hmget", "exists", "del", "set", "hset", "pexpire", "zrange", "time", "zscore"} {
		t.Run(without, func(t *testing.T) {
			t.Parallel()
			s := startServer(t)
			other := s.issuer(t, s.addr)
			held := acquire(t, other, "r", "a")
			w, err := other.Watch(t.Context(), driver.Watch{Resource: "r", LeaseID: "waiter"}, func() {})
			testkit.Must(t, err)
			defer w.Stop()
			done, err := restricted(t, s, without).ForceUnlock(t.Context(), "r", "ada", "it hangs", &lockadmin.ForceUnlockOptions{RequestID: "INC-1"})
			renewed := issuertest.Renew(t, other, held)
			records := 0
			for _, err := range other.Audit(t.Context(), "", nil) {
				testkit.Must(t, err)
				records++
			}
			if without == "zscore" { // no script uses it
				if err != nil || done.Invalidated.Token <= held.Token || renewed.State != driver.Over || records != 1 {
					t.Errorf("control: %+v, %v, %+v, %d records", done, err, renewed, records)
				}
				return
			}
			if errors.Is(err, guard.ErrOutcomeUnknown) || !errors.Is(err, guard.ErrSetup) || renewed.State != driver.Extended || records != 0 {
				t.Errorf("%v, %+v, %d records; want ErrSetup and a lease that runs", err, renewed, records)
			}
		})
	}
}

// TestCutKeepsItsToken (P3): the counter has the token that a force unlock invalidated, also of a
// resource that never had a lease or whose counter was lost, and is as temporary as after a
// grant: else the next grant in the same moment would get that token again.
func TestCutKeepsItsToken(t *testing.T) {
	s := startServer(t)
	i, c := s.issuer(t, s.addr), s.client(t, s.addr)
	acquire(t, i, "held", "a")
	acquire(t, i, "lost", "a")
	testkit.Must(t, c.Del(t.Context(), "fencepost:{lost}:counter").Err())
	for _, resource := range []string{"held", "lost", "never"} {
		done, err := i.ForceUnlock(t.Context(), resource, "ada", "it hangs", nil)
		testkit.Must(t, err)
		counter := "fencepost:{" + resource + "}:counter"
		if got := c.Get(t.Context(), counter).Val(); got != done.Invalidated.Token.String() {
			t.Errorf("%s: the counter is %q, the invalidated token %v", resource, got, done.Invalidated.Token)
		}
		if kept := c.PTTL(t.Context(), counter).Val(); kept <= 0 {
			t.Errorf("%s: the counter is kept for %v", resource, kept)
		}
	}
}
