//go:build long

package lockclient

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/internal/input"
	"github.com/fencepost-go/fencepost/lockclient/pglock"

	"github.com/jackc/pgx/v5/pgxpool"
)

// issued is every token that was acknowledged, by resource.
type issued struct {
	mu       sync.Mutex
	count    int
	tokens   map[string]map[guard.Token]bool
	highest  map[string]guard.Token // acknowledged before the last kill
	repeated []string
}

func (i *issued) note(resource string, token guard.Token) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.count++
	if i.tokens[resource] == nil {
		i.tokens[resource] = map[guard.Token]bool{}
	}
	if i.tokens[resource][token] {
		i.repeated = append(i.repeated, fmt.Sprintf("%s: token %v twice", resource, token))
	} else if token <= i.highest[resource] {
		i.repeated = append(i.repeated, fmt.Sprintf("%s: token %v, and %v before the kill", resource, token, i.highest[resource]))
	}
	i.tokens[resource][token] = true
}

func (i *issued) killed() {
	i.mu.Lock()
	defer i.mu.Unlock()
	for resource, tokens := range i.tokens {
		for token := range tokens {
			i.highest[resource] = max(i.highest[resource], token)
		}
	}
}

// underKills makes workers take tokens from issue, on a server that by default
// does not wait for the disk and to which nothing else writes, kills it
// repeatedly, and returns what was acknowledged. It stops early at the first
// repeated token. issue returns 0 if nothing was acknowledged.
func underKills(t *testing.T, rounds int, issue func(ctx context.Context, pool *pgxpool.Pool) func(resource string) guard.Token) *issued {
	t.Helper()
	server := forgetful(t)
	pool := dial(t, server.URL(), func(c *pgxpool.Config) { c.MaxConns = 12 })
	if err := pglock.Migrate(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	take := issue(t.Context(), pool)
	all := &issued{tokens: map[string]map[guard.Token]bool{}, highest: map[string]guard.Token{}}
	killed := 0
	for range rounds {
		holdBack(t, pool)
		stop := make(chan struct{})
		enough := all.count + 60
		var workers sync.WaitGroup
		for w := range 8 {
			workers.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					resource := fmt.Sprint("r", w%4)
					if token := take(resource); token != guard.NoToken {
						all.note(resource, token)
					} else {
						time.Sleep(time.Duration(rand.IntN(2000)) * time.Microsecond)
					}
				}
			})
		}
		eventually(t, "there is something to lose", func() bool {
			all.mu.Lock()
			defer all.mu.Unlock()
			return all.count >= enough || len(all.repeated) > 0
		})
		time.Sleep(time.Duration(rand.IntN(20)) * time.Millisecond)
		err := server.Kill()
		close(stop)
		workers.Wait()
		if err != nil {
			t.Fatal(err)
		}
		all.killed()
		if err := server.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		pool.Reset()
		if killed++; len(all.repeated) > 0 {
			break
		}
		mustExec(t, pool, "UPDATE fencepost.leases SET lease_id = NULL, expires_at = clock_timestamp() WHERE resource <> ''")
	}
	t.Logf("%d tokens acknowledged over %d kills, %d repeated or lower", all.count, killed, len(all.repeated))
	return all
}

// TestLongNoTokenTwiceOverKills is P3 across kill -9 of a server whose default is
// synchronous_commit = off, under load: no token is acknowledged twice, and none
// after a kill is as low as one from before. With the raise removed from the
// statement all are, since the first kill loses everything.
func TestLongNoTokenTwiceOverKills(t *testing.T) {
	all := underKills(t, 20, func(ctx context.Context, pool *pgxpool.Pool) func(string) guard.Token {
		client := newTestClient(t, pool, &Options{OpTimeout: time.Second})
		return func(resource string) guard.Token {
			lease, err := client.TryAcquire(ctx, resource, &AcquireOptions{TTL: time.Minute})
			if err != nil {
				return guard.NoToken
			}
			lease.Release(ctx)
			return lease.Token()
		}
	})
	for _, problem := range all.repeated[:min(len(all.repeated), 10)] {
		t.Error(problem)
	}
	if all.count < 100 {
		t.Errorf("only %d tokens", all.count)
	}
	control := underKills(t, 2, func(ctx context.Context, pool *pgxpool.Pool) func(string) guard.Token {
		alter(t, pool, "acquire", "IN ('off', 'local')", "IN ('none')")
		return func(resource string) (token guard.Token) {
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			id := input.NewLeaseID()
			if pool.QueryRow(ctx, grantSQL, grantArgs(resource, id, time.Minute)...).Scan((*int64)(&token)) != nil {
				return guard.NoToken
			}
			pool.Exec(ctx, "UPDATE fencepost.leases SET lease_id = NULL WHERE resource = $1 AND lease_id = $2", resource, id)
			return token
		}
	})
	if len(control.repeated) == 0 {
		t.Error("control: the kills lose nothing on this server")
	}
}
