package lockclient_test

import (
	"context"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/lockclient"
	"github.com/fencepost-go/fencepost/lockclient/internal/conform"
)

// TestConformance runs on PostgreSQL what locktest runs in memory.
func TestConformance(t *testing.T) {
	pool := pgtest.Pool(t)
	if err := lockclient.Migrate(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	newClient := func(t *testing.T, owner string) *lockclient.Client {
		c, err := lockclient.New(pool, owner, &lockclient.Options{OpTimeout: time.Minute, LockTimeout: 30 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		return c
	}
	for _, c := range conform.Cases() {
		t.Run(c.Name, func(t *testing.T) {
			if _, err := pool.Exec(t.Context(), "TRUNCATE fencepost.leases"); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			h := conform.Harness{
				A: newClient(t, "a"), B: newClient(t, "b"),
				Cut: func(resource string) {
					_, err := pool.Exec(ctx, "UPDATE fencepost.leases SET lease_id = NULL, token = token + 1 WHERE resource = $1", resource)
					if err != nil {
						t.Error(err)
					}
				},
			}
			moveA, moveB := h.A.Movable(), h.B.Movable()
			h.Pass = func(d time.Duration) { // the server's clock stands still, so its leases come nearer
				_, err := pool.Exec(ctx, `UPDATE fencepost.leases SET acquired_at = acquired_at - $1::bigint * interval '1 microsecond',
					expires_at = expires_at - $1::bigint * interval '1 microsecond'`, d.Microseconds())
				if err != nil {
					t.Error(err)
				}
				moveA(d)
				moveB(d)
			}
			h.Wire = wire(t, h.A)
			h.Awaited = func(resource string) (awaited bool) {
				err := pool.QueryRow(ctx, "SELECT coalesce(max(wake_until) > clock_timestamp(), false) FROM fencepost.leases WHERE resource = $1", resource).Scan(&awaited)
				if err != nil {
					t.Error(err)
				}
				return awaited
			}
			if err := c.Check(ctx, h); err != nil {
				t.Error(err)
			}
		})
	}
}

func wire(t *testing.T, c *lockclient.Client) func(string, guard.Claim) bool {
	return func(op string, claim guard.Claim) bool {
		taken, err := c.Wire(op, claim)
		if err != nil {
			t.Error(err)
		}
		return taken
	}
}
