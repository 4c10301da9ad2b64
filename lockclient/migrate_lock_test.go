package lockclient

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient/internal/pglease"
	"github.com/fencepost-go/fencepost/lockclient/pglock"

	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"
)

// refusing returns a pool on a server that refuses every statement with code,
// in the bubble's time, and counts the statements.
func refusing(t *testing.T, code string) (*pgxpool.Pool, *atomic.Int64) {
	t.Helper()
	config, err := pgxpool.ParseConfig("postgres://u@127.0.0.1/d?sslmode=disable")
	testkit.Must(t, err)
	var asked atomic.Int64
	config.ConnConfig.DialFunc = func(context.Context, string, string) (net.Conn, error) {
		client, server := net.Pipe()
		go func() {
			defer server.Close()
			b := pgproto3.NewBackend(server, server)
			if _, err := b.ReceiveStartupMessage(); err != nil {
				return
			}
			b.Send(&pgproto3.AuthenticationOk{})
			for {
				b.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
				if b.Flush() != nil {
					return
				}
				m, err := b.Receive()
				if _, ok := m.(*pgproto3.Query); err != nil || !ok {
					return
				}
				asked.Add(1)
				b.Send(&pgproto3.ErrorResponse{Severity: "ERROR", Code: code, Message: "simulated"})
			}
		}()
		return client, nil
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	testkit.Must(t, err)
	t.Cleanup(pool.Close)
	return pool, &asked
}

// TestMigrateRepeats: a migration that a lock prevents is repeated for some
// seconds, until its context ends at the latest. Nothing else is repeated.
func TestMigrateRepeats(t *testing.T) {
	for name, test := range map[string]struct {
		code        string
		within      time.Duration // 0 is without a limit
		tries       [2]int64
		least, most time.Duration
	}{
		"a lock":                        {"55P03", 0, [2]int64{21, 21}, 1900 * time.Millisecond, 4 * time.Second},
		"a lock, and the context ends":  {"55P03", time.Second, [2]int64{7, 14}, time.Second, time.Second},
		"no right to create the schema": {"42501", 0, [2]int64{1, 1}, 0, 0},
	} {
		want := guard.ErrUnavailable
		if test.code == "42501" {
			want = guard.ErrSetup
		}
		testkit.Bubble(t, name, func(t *testing.T) {
			pool, asked := refusing(t, test.code)
			ctx := t.Context()
			if test.within > 0 {
				limited, cancel := context.WithTimeout(ctx, test.within)
				defer cancel()
				ctx = limited
			}
			began := time.Now()
			err := pglock.Migrate(ctx, pool)
			took := time.Since(began)
			if pg := pglease.Error(err); !errors.Is(err, want) || pg == nil || pg.Code != test.code {
				t.Errorf("got %v", err)
			}
			if n := asked.Load(); n < test.tries[0] || n > test.tries[1] || took < test.least || took > test.most {
				t.Errorf("%d tries in %v", n, took)
			}
		})
	}
}
