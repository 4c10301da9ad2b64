package lockclient_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient"
	"github.com/fencepost-go/fencepost/lockclient/driver/memory"
)

// terms runs lead with an issuer whose every token is stale at the resource, in
// terms of a length, and returns how many there were and how long it all took.
func terms(t *testing.T, length, limit time.Duration) (n int, took time.Duration, err error) {
	client, err := lockclient.New(memory.NewServer().Issuer(), "worker", nil)
	testkit.Must(t, err)
	defer client.Close(context.Background())
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	start := time.Now()
	err = lead(ctx, client, "leader", func(ctx context.Context) error {
		n++
		if n > 1000 {
			return errors.New("lead spins")
		}
		time.Sleep(length)
		return guard.ErrStale
	})
	return n, time.Since(start), err
}

// If the mark is ahead of the issuer, each new token is stale, too: lead must
// neither spin nor hide it.
func TestMarkAhead(t *testing.T) {
	testkit.CaptureDefault(t)
	synctest.Test(t, func(t *testing.T) {
		n, took, err := terms(t, 0, time.Hour)
		if n != 5 || took < 10*time.Second || !errors.Is(err, guard.ErrStale) {
			t.Errorf("%d terms in %s, then %v", n, took, err)
		}
	})
}

// A leader that is overtaken from time to time goes on.
func TestOvertakenNowAndThen(t *testing.T) {
	testkit.CaptureDefault(t)
	synctest.Test(t, func(t *testing.T) {
		n, took, err := terms(t, 10*time.Minute, 24*time.Hour)
		if n < 100 || took < 24*time.Hour || err != nil {
			t.Errorf("%d terms in %s, then %v", n, took, err)
		}
	})
}
