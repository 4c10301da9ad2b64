//go:build unix

package lockclient

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/process"
	"github.com/fencepost-go/fencepost/lockclient/pglock"

	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	processes      = 2
	databaseForKey = "FENCEPOST_LOCKCLIENT_DATABASE"
)

func init() { children["hold"] = holdUntilLost }

// TestStoppedProcess: holders that were stopped past their TTL learn of it from
// the first Valid after they continue, twenty out of twenty, and their
// successors were granted meanwhile.
func TestStoppedProcess(t *testing.T) {
	t.Parallel() // it waits for a TTL that a busy machine keeps
	const each = 10
	pool := migrated(t)
	client := newTestClient(t, pool, nil)
	var crew []*process.Worker
	before := map[string]guard.Token{}
	held := 0 // a busy machine may be too slow to renew one
	for p := range processes {
		holder := startChild(t, "hold", databaseForKey+"="+pool.Config().ConnString(), holdsVariable+"="+fmt.Sprint(p*each)+" "+fmt.Sprint(each)+" 3s")
		crew = append(crew, holder)
	}
	for _, holder := range crew {
		for range each {
			var resource string
			var token int64
			var valid bool
			if line := holder.Line(); scan(line, "held %s %d %t", &resource, &token, &valid) != nil {
				t.Fatalf("the holder says %q", line)
			}
			if valid {
				held++
			}
			before[resource] = guard.Token(token)
		}
		if !holder.Pause() {
			t.Fatal("a holder has ended")
		}
	}
	if held == 0 {
		t.Error("none was held before it was stopped")
	}
	var wg sync.WaitGroup
	successors := make(chan *Lease, processes*each)
	for resource, token := range before {
		wg.Go(func() {
			successor, err := client.Acquire(context.Background(), resource, &AcquireOptions{TTL: time.Hour})
			if err != nil || successor.Token() <= token {
				t.Errorf("%s: %v", resource, err)
				return
			}
			successors <- successor
		})
	}
	wg.Wait()
	for _, holder := range crew {
		holder.Resume()
	}
	no := 0
	for _, holder := range crew {
		for range each {
			if line := holder.Line(); strings.HasPrefix(line, "stopped ") && strings.HasSuffix(line, " false lease lost") {
				no++
			} else {
				t.Errorf("a holder says %q", line)
			}
		}
	}
	if no != processes*each {
		t.Errorf("%d of %d said no", no, processes*each)
	}
	for range before {
		if err := (<-successors).Release(t.Context()); err != nil {
			t.Errorf("a stopped holder took its successor's lease: %v", err)
		}
	}
}

// holdsVariable says which resources a child holds: the first number, how many,
// and the TTL.
const holdsVariable = "FENCEPOST_LOCKCLIENT_HOLDS"

// holdUntilLost is the child. SIGCONT tells each holder that it was stopped, and
// it calls Valid before anything else.
func holdUntilLost() error {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, os.Getenv(databaseForKey))
	if err != nil {
		return err
	}
	client, err := New(guard.Must(pglock.New(pool, nil)), "holder", nil)
	if err != nil {
		return err
	}
	var first, many int
	var lasts string
	if _, err := fmt.Sscan(os.Getenv(holdsVariable), &first, &many, &lasts); err != nil {
		return err
	}
	ttl, err := time.ParseDuration(lasts)
	if err != nil {
		return err
	}
	goesOn, continued := make(chan os.Signal, 1), make(chan struct{})
	signal.Notify(goesOn, syscall.SIGCONT)
	go func() {
		<-goesOn
		close(continued)
	}()
	var wg, held sync.WaitGroup
	held.Add(many)
	for i := range many {
		wg.Go(func() {
			resource := fmt.Sprintf("r%d", first+i)
			first := ""
			err := client.Hold(ctx, resource, &AcquireOptions{TTL: ttl}, func(ctx context.Context) error {
				lease := leaseFrom(ctx)
				held.Done()
				held.Wait() // each has its own before the parent may stop them
				fmt.Println("held", resource, lease.Token(), lease.Valid())
				select {
				case <-continued:
				case <-ctx.Done():
				}
				first = fmt.Sprint(lease.Valid())
				return nil
			})
			says := ""
			if errors.Is(err, ErrLeaseLost) {
				says = ErrLeaseLost.Error()
			}
			fmt.Println("stopped", resource, first, says)
		})
	}
	wg.Wait()
	return nil
}
