package pglease

import (
	"context"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient/driver"
)

// TestTurnInLine: a process that is not named first looks after the lease has
// been kept for those before it, and is woken if it is still free then and nobody
// has come. The controls are not woken.
func TestTurnInLine(t *testing.T) {
	const me, never = "me", time.Duration(-1)
	r := Topic("r")
	for name, test := range map[string]struct {
		payloads []string
		held     bool
		woken    time.Duration
	}{
		"nobody is named":                        {[]string{r + " "}, false, 0},
		"named first":                            {[]string{r + " " + me + " other"}, false, 0},
		"second":                                 {[]string{r + " dead " + me}, false, keepFor},
		"third":                                  {[]string{r + " dead gone " + me}, false, 2 * keepFor},
		"second, then first":                     {[]string{r + " dead " + me, r + " " + me}, false, 0},
		"released again, and later in the queue": {[]string{r + " dead " + me, r + " one two three four five " + me}, false, 5 * keepFor},
		"control: the lease was taken":           {[]string{r + " dead " + me}, true, never},
		"control: another resource":              {[]string{Topic("s") + " " + me}, false, never},
	} {
		testkit.Bubble(t, name, func(t *testing.T) {
			looked := 0
			l := newListener(&Issuer{process: me}, true)
			l.held = func(context.Context, driver.Watch) (*driver.HeldError, error) {
				looked++
				if test.held {
					return &driver.HeldError{Resource: "r"}, nil
				}
				return nil, nil
			}
			began, woken := time.Now(), never
			s := l.subscribe(t.Context(), "r", "waiter's", func() {
				if woken == never {
					woken = time.Since(began)
				}
			})
			for _, payload := range test.payloads {
				l.heard(payload)
			}
			time.Sleep(time.Minute)
			l.wg.Wait()
			if woken != test.woken || looked > 1 {
				t.Errorf("woken after %v, want %v (-1 is never); it looked %d times", woken, test.woken, looked)
			}
			l.unsubscribe(s)
			l.close()
		})
	}
}
