//go:build !race

package sqlfence

import (
	"context"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost-go/fencepost/internal/longtest"
	"github.com/fencepost-go/fencepost/internal/testkit"
)

// TestGoroutineLeftBehind: a callback that returns while a goroutine of its own uses the
// transaction makes a mistake, on which pgx may panic; but its connection is given back, and
// the pool can be closed. It is a data race inside of pgx, so the race detector is not for it.
func TestGoroutineLeftBehind(t *testing.T) {
	e := newEnvOf(t, "pgx")
	for range longtest.ByLength(40, 400) {
		f, err := openPgxOf(e)
		must(t, err)
		stop, stopped := make(chan struct{}), make(chan struct{})
		panicked := func() (p any) {
			defer func() { p = recover() }()
			f.DB.InTx(t.Context(), claimOf("r", 5), func(_ context.Context, tx pgx.Tx) error {
				started := make(chan struct{})
				go func() {
					defer close(stopped)
					defer func() { recover() }()
					for once := false; ; once = true {
						tx.Exec(context.Background(), "SELECT 1")
						if !once {
							close(started)
						}
						select {
						case <-stop:
							return
						default:
						}
					}
				}()
				<-started
				return nil
			})
			return nil
		}()
		if panicked != nil && fmt.Sprint(panicked) == "" {
			t.Error("a panic without a reason")
		}
		testkit.Eventually(t, "the connection to be given back", func() bool { return f.pool.Stat().AcquiredConns() == 0 })
		close(stop)
		testkit.Receive(t, "the goroutine's end", stopped)
		closed := make(chan struct{})
		go func() { f.pool.Close(); close(closed) }()
		testkit.Receive(t, "the pool's end", closed)
	}
}

func openPgxOf(e *env) (pgxFence, error) {
	config, err := pgx.ParseConfig(e.url)
	if err != nil {
		return pgxFence{}, err
	}
	s, err := openPgx(config, 2)
	if err != nil {
		return pgxFence{}, err
	}
	f, err := s.fence(&e.defaults)
	return f.(pgxFence), err
}
