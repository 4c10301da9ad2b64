//go:build unix

package lockclient

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

func init() { children["hold"] = holdUntilLost }

// TestStoppedProcess: a holder that was stopped past its TTL learns it from the
// first Valid after it goes on, ten times of ten, and its successor was granted
// meanwhile.
func TestStoppedProcess(t *testing.T) {
	pool := migrated(t)
	holder := startChild(t, "hold", databaseForKey+"="+pool.Config().ConnString())
	client := newTestClient(t, pool, &Options{PollInterval: 10 * time.Millisecond})
	for round := range 10 {
		holder.say(t, "acquire")
		var before int64
		if line := holder.line(t); scan(line, "held %d true", &before) != nil {
			t.Fatalf("round %d: the holder says %q", round, line)
		}
		if err := holder.Process.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		successor, err := client.Acquire(t.Context(), "r", &AcquireOptions{TTL: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		if int64(successor.Token()) <= before {
			t.Errorf("round %d: token %v after %d", round, successor.Token(), before)
		}
		if err := holder.Process.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		if line := holder.line(t); line != "stopped false lease lost" {
			t.Errorf("round %d: the holder says %q", round, line)
		}
		if err := successor.Release(t.Context()); err != nil {
			t.Errorf("round %d: the stopped holder took its successor's lease: %v", round, err)
		}
	}
}

// holdUntilLost is the child. It notices that it was stopped by the time that a
// short sleep took, and asks Valid before anything else.
func holdUntilLost() error {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, os.Getenv(databaseForKey))
	if err != nil {
		return err
	}
	client, err := New(pool, "holder", nil)
	if err != nil {
		return err
	}
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		err := client.Hold(ctx, "r", &HoldOptions{TTL: 300 * time.Millisecond}, func(ctx context.Context) error {
			lease := leaseFrom(ctx)
			last := time.Now() // before the line that makes the parent stop it
			fmt.Println("held", lease.Token(), lease.Valid())
			for {
				time.Sleep(time.Millisecond)
				now := time.Now()
				// The successor waits for at least the TTL less the renewal
				// interval, 200 ms, while this process is stopped.
				if now.Sub(last) > 150*time.Millisecond {
					fmt.Print("stopped ", lease.Valid(), " ")
					return nil
				}
				if last = now; ctx.Err() != nil {
					fmt.Print("lost without being stopped ")
					return nil
				}
			}
		})
		var says string
		if err != nil && strings.Contains(err.Error(), ErrLeaseLost.Error()) {
			says = ErrLeaseLost.Error()
		}
		fmt.Println(says)
	}
	return nil
}
