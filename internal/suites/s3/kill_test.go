//go:build unix

package s3suite

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/longtest"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/s3fence"
)

// crashed records, for one object, the writers' results and what readers saw.
type crashed struct {
	mu       sync.Mutex
	verdicts map[string]error // by the body, which names the attempt
	highest  guard.Token      // that was acknowledged
	seen     map[string]guard.Token
}

func (c *crashed) note(body string, token guard.Token, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.verdicts[body] = err
	if err == nil {
		c.highest = max(c.highest, token)
	}
}

func (c *crashed) acknowledged() guard.Token {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.highest
}

// look reads the object and returns what is wrong with it, if anything: the
// acknowledged state, or a newer one, must be there. While the store is down it
// sees nothing.
func (c *crashed) look(ctx context.Context, o *s3fence.Objects, key string) (seen bool, err error) {
	before := c.acknowledged()
	object, err := o.Get(ctx, key)
	switch {
	case errors.As(err, new(*s3fence.DamagedError)):
		return false, err
	case errors.Is(err, guard.ErrNotFound) && before == guard.NoToken:
		return false, nil
	case errors.Is(err, guard.ErrUnavailable):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("after token %d was acknowledged: %w", before, err)
	}
	defer object.Body.Close()
	body, err := io.ReadAll(object.Body)
	if err != nil {
		return false, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen[string(body)] = object.Mark.Token
	if object.Mark.Token < before {
		return true, fmt.Errorf("the object is at token %d after %d was acknowledged", object.Mark.Token, before)
	}
	return true, nil
}

// wrong returns the verdicts that reads contradict: a write that was reported
// as refused, or not done, and is there.
func (c *crashed) wrong() (out []string) {
	for body := range c.seen {
		if err := c.verdicts[body]; err != nil && !errors.Is(err, guard.ErrOutcomeUnknown) {
			out = append(out, fmt.Sprintf("%s is there and was told: %v", body, err))
		}
	}
	return out
}

// The store is killed with kill -9 in the middle of writes and started again on
// its directory: no acknowledged write is lost, no older one comes back, and no
// verdict is wrong.
func TestP1StoreKilled(t *testing.T) {
	const keys, writers = 3, 4
	rounds := longtest.ByLength(5, 40)
	g := startGateway(t)
	client := gatewayClient(g, g.URL)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var wg sync.WaitGroup
	var objects [keys]*crashed
	var acknowledged, reads atomic.Int64
	name := func(i int) string { return fmt.Sprintf("export-%d.csv", i) }
	for i := range objects {
		c := &crashed{verdicts: map[string]error{}, seen: map[string]guard.Token{}}
		objects[i] = c
		var issued atomic.Int64
		for w := range writers {
			o := openSealed(t, client)
			wg.Go(func() {
				rng := rand.New(rand.NewPCG(uint64(i), uint64(w)))
				for n := 0; ctx.Err() == nil; n++ {
					token := guard.Token(issued.Add(1))
					time.Sleep(time.Duration(rng.IntN(2000)) * time.Microsecond)
					body := fmt.Sprintf("attempt %d of writer %d under %d %s", n, w, token, strings.Repeat(".", 2<<10))
					// Not ctx: a write in progress must end on its own.
					err := o.Put(t.Context(), claim(token), name(i), []byte(body), nil)
					if c.note(body, token, err); err == nil {
						acknowledged.Add(1)
					}
				}
			})
		}
		reader := openSealed(t, client)
		wg.Go(func() {
			for ctx.Err() == nil {
				seen, err := c.look(t.Context(), reader, name(i))
				if err != nil {
					t.Errorf("%s: %v", name(i), err)
					return
				}
				if seen {
					reads.Add(1)
				}
				time.Sleep(2 * time.Millisecond)
			}
		})
	}
	rng := rand.New(rand.NewPCG(5, 6))
	for range rounds {
		before := acknowledged.Load()
		testkit.Eventually(t, "writes to be acknowledged", func() bool { return acknowledged.Load() >= before+20 || t.Failed() })
		time.Sleep(time.Duration(rng.IntN(5000)) * time.Microsecond)
		g.Kill()
		time.Sleep(time.Duration(rng.IntN(50)) * time.Millisecond)
		g.Start()
	}
	stop()
	wg.Wait()
	reasons := map[guard.Reason]int{}
	for i, c := range objects {
		seen, err := c.look(t.Context(), openSealed(t, client), name(i))
		if err != nil || !seen {
			t.Errorf("%s in the end: seen: %v, %v", name(i), seen, err)
		}
		for _, w := range c.wrong() {
			t.Errorf("%s: %s", name(i), w)
		}
		for _, err := range c.verdicts {
			reasons[guard.ReasonOf(err)]++
		}
	}
	t.Logf("%d kills, %d writes acknowledged, %d reads, verdicts %v", rounds, acknowledged.Load(), reads.Load(), reasons)
}

// The control: it is noticed when an object reverts to an earlier state, as on
// a store that loses acknowledged writes.
func TestP1StoreKilledControl(t *testing.T) {
	g := startGateway(t)
	client := gatewayClient(g, g.URL)
	o := openSealed(t, client)
	c := &crashed{verdicts: map[string]error{}, seen: map[string]guard.Token{}}
	write := func(token guard.Token, body string) {
		c.note(body, token, o.Put(t.Context(), claim(token), key, []byte(body), nil))
	}
	write(5, "old")
	old, metadata := storedAs(t, client)
	write(6, "new")
	if seen, err := c.look(t.Context(), o, key); !seen || err != nil {
		t.Fatalf("seen: %v, %v", seen, err)
	}
	_, err := client.PutObject(t.Context(), &s3.PutObjectInput{
		Bucket: aws.String(bucket), Key: aws.String(key), Body: bytes.NewReader(old), Metadata: metadata,
	})
	testkit.Must(t, err)
	if _, err := c.look(t.Context(), o, key); err == nil {
		t.Error("a lost write was not noticed")
	}
	c.note("old", 5, guard.Unavailable("put", claim(5), nil))
	if len(c.wrong()) != 1 {
		t.Error("a wrong verdict was not noticed")
	}
}
