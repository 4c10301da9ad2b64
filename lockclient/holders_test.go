package lockclient

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/internal/waiting"
)

// sight is what Holders yielded, and when.
type sight struct {
	token guard.Token
	err   error
	at    time.Duration
}

// follow collects what Holders yields, and how long the loop took.
func follow(ctx context.Context, c *Client, each func(sight) bool) (seen []sight, took time.Duration) {
	began := time.Now()
	for h, err := range c.Holders(ctx, "r") {
		s := sight{h.Claim.Token, err, time.Since(began)}
		if seen = append(seen, s); !each(s) {
			break
		}
	}
	return seen, time.Since(began)
}

func always(sight) bool { return true }

// TestHoldersLooksAgain: without a wake-up, Holders looks again after a while,
// when the lease has run out, when the clock is moved and when the client is
// closed. It tells each holder once, and ends its watches.
func TestHoldersLooksAgain(t *testing.T) {
	const changes = 100 * time.Millisecond // when the holder changes
	for name, test := range map[string]struct {
		poll        time.Duration
		remaining   time.Duration // of the lease
		wakes       bool
		steps       bool // at half past the change
		least, most time.Duration
	}{
		"two seconds":   {0, time.Hour, false, false, waiting.Look * 4 / 5, waiting.Look},
		"poll":          {10 * time.Second, time.Hour, false, false, 8 * time.Second, 10 * time.Second},
		"runs out":      {0, 300 * time.Millisecond, false, false, 301 * time.Millisecond, 301 * time.Millisecond},
		"woken":         {0, time.Hour, true, false, changes, changes},
		"a moved clock": {0, time.Hour, false, true, changes * 3 / 2, changes * 3 / 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				i := &answering{limits: driver.Limits{Poll: test.poll}}
				i.watch = func(_ context.Context, w driver.Watch, wake func()) (driver.Watching, error) {
					if w != (driver.Watch{Resource: "r"}) {
						t.Errorf("watches %+v", w)
					}
					held := &HeldError{Token: 1, Remaining: test.remaining}
					if time.Since(began) >= changes {
						held.Token, held.Remaining = 2, time.Hour
					} else if test.wakes {
						time.AfterFunc(changes, wake)
					}
					return driver.Watching{Held: held}, nil
				}
				client := i.client(t, nil)
				if test.steps {
					time.AfterFunc(changes*3/2, client.step)
				}
				seen, took := follow(t.Context(), client, func(s sight) bool {
					if s.token == 2 { // it is seen again several times
						time.AfterFunc(time.Minute, func() { client.Close(t.Context()) })
					}
					return true
				})
				if len(seen) != 3 || seen[0].token != 1 || seen[1].token != 2 || seen[1].at < test.least || seen[1].at > test.most {
					t.Fatalf("seen %+v", seen)
				}
				failure(t, seen[2].err, guard.ErrUnavailable, "r", ErrClosed)
				if took != seen[1].at+time.Minute {
					t.Errorf("closed after %v, noticed after %v", seen[1].at+time.Minute, took)
				}
				if i.stopped != len(i.watched) {
					t.Errorf("%d of %d watches were stopped", i.stopped, len(i.watched))
				}
			})
		})
	}
}

// TestHoldersIsLeft: the end of the context ends the loop at once and is no
// error. A loop that is left asks for nothing more.
func TestHoldersIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := &answering{}
		client := i.client(t, nil)
		i.watch = func(_ context.Context, _ driver.Watch, wake func()) (driver.Watching, error) {
			wake() // spurious, and twice
			wake()
			return driver.Watching{Held: &HeldError{Token: 1, Remaining: time.Hour}}, nil
		}
		seen, _ := follow(t.Context(), client, func(sight) bool { return false })
		if len(seen) != 1 || len(i.watched) != 1 || i.stopped != 1 {
			t.Errorf("left: seen %+v, watched %+v", seen, i.watched)
		}
		i.watch = func(context.Context, driver.Watch, func()) (driver.Watching, error) { return driver.Watching{}, nil }
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if seen, took := follow(ctx, client, always); len(seen) != 1 || took != time.Second || i.stopped != len(i.watched) {
			t.Errorf("ended: seen %+v, for %v", seen, took)
		}
		i.watch = nil // it fails
		before := len(i.watched)
		if seen, took := follow(t.Context(), client, func(sight) bool { return false }); len(seen) != 1 || took != 0 || len(i.watched) != before+1 {
			t.Errorf("left after an error: seen %+v, for %v", seen, took)
		}
		ending, end := context.WithCancel(t.Context())
		defer end()
		i.watch = func(context.Context, driver.Watch, func()) (driver.Watching, error) {
			end()
			return driver.Watching{}, errSimulated
		}
		if seen, took := follow(ending, client, always); len(seen) != 0 || took != 0 {
			t.Errorf("the context ends a watch: seen %+v, for %v", seen, took)
		}
	})
}

// TestHoldersFails: each failure is told, after it the holder is told again, and
// the pauses grow until it works again.
func TestHoldersFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const fails = 10 // then it works once, and fails again
		i := &answering{}
		n := 0
		i.watch = func(_ context.Context, _ driver.Watch, wake func()) (driver.Watching, error) {
			if n++; n%(fails+1) != 0 {
				return driver.Watching{}, errSimulated
			}
			wake()
			return driver.Watching{Held: &HeldError{Token: 1, Remaining: time.Hour}}, nil
		}
		client := i.client(t, nil)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		seen, _ := follow(ctx, client, func(s sight) bool { return s.token == 0 || s.at < 5*time.Second })
		for k, s := range seen {
			works := k%(fails+1) == fails
			if works != (s.err == nil) || works != (s.token == 1) || !works && !errors.Is(s.err, errSimulated) {
				t.Fatalf("%d: %+v", k, s)
			}
			if k == 0 {
				continue
			}
			pause := s.at - seen[k-1].at
			low, high := time.Duration(0), time.Duration(0) // after it worked
			if since := k % (fails + 1); since > 0 {        // after so many failures in a row
				high = min(250*time.Millisecond, 5*time.Millisecond<<(since-1))
				low = high / 2
			}
			if pause < low || pause > high {
				t.Errorf("%d: a pause of %v, want %v to %v", k, pause, low, high)
			}
		}
		if len(seen) < 3*(fails+1) {
			t.Errorf("seen %d", len(seen))
		}
	})
}
