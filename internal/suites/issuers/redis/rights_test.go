package redis_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin"
	"github.com/fencepost-go/fencepost/lockclient/redislock"
)

// restricted is an issuer of a user who may do all but one command.
func restricted(t *testing.T, s *server, without string) *redislock.Issuer {
	t.Helper()
	if err := s.client(t, s.addr).Do(t.Context(), "ACL", "SETUSER", without, "on", ">secret", "~*", "&*", "+@all", "-"+without).Err(); err != nil {
		t.Fatal(err)
	}
	c := redis.NewClient(&redis.Options{Addr: s.addr, Username: without, Password: "secret", MaxRetries: -1})
	t.Cleanup(func() { c.Close() })
	i, err := redislock.New(doOf(c), &redislock.Options{Subscribe: subscribeOf(c)})
	if err != nil {
		t.Fatal(err)
	}
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
					if err != nil {
						t.Fatal(err)
					}
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
			if err != nil {
				t.Fatal(err)
			}
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
		if err != nil {
			t.Fatal(err)
		}
		if _, err := i.Acquire(t.Context(), ask("r", "a")); !errors.Is(err, guard.ErrSetup) || errors.Is(err, guard.ErrOutcomeUnknown) {
			t.Errorf("%q: %v; want ErrSetup", text, err)
		}
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
			if err != nil {
				t.Fatal(err)
			}
			defer w.Stop()
			done, err := restricted(t, s, without).ForceUnlock(t.Context(), "r", "ada", "it hangs", &lockadmin.ForceUnlockOptions{RequestID: "INC-1"})
			renewed := make([]driver.Renewed, 1)
			other.Renew(t.Context(), []driver.Renewal{{Claim: held, TTL: time.Minute}}, renewed)
			records := 0
			for _, err := range other.Audit(t.Context(), "", nil) {
				if records++; err != nil {
					t.Fatal(err)
				}
			}
			if without == "zscore" { // no script uses it
				if err != nil || done.Invalidated.Token <= held.Token || renewed[0].State != driver.Over || records != 1 {
					t.Errorf("control: %+v, %v, %+v, %d records", done, err, renewed[0], records)
				}
				return
			}
			if errors.Is(err, guard.ErrOutcomeUnknown) || !errors.Is(err, guard.ErrSetup) || renewed[0].State != driver.Extended || records != 0 {
				t.Errorf("%v, %+v, %d records; want ErrSetup and a lease that runs", err, renewed[0], records)
			}
		})
	}
}
