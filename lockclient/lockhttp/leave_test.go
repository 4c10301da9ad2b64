package lockhttp_test

import (
	"context"
	"errors"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/driver/memory"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin"
	"github.com/fencepost-go/fencepost/lockclient/lockhttp"
)

// distant is an issuer whose answers take a while, as over a network. It ends an
// exchange with its context.
type distant struct {
	counting
	answered func() // when a watch was
}

const trip = 30 * time.Millisecond

func (d *distant) Watch(ctx context.Context, w driver.Watch, wake func()) (driver.Watching, error) {
	time.Sleep(trip)
	if d.answered != nil {
		d.answered()
	}
	return d.counting.Watch(ctx, w, wake)
}

func (d *distant) Release(ctx context.Context, claim guard.Claim) (bool, error) {
	select {
	case <-time.After(trip):
		return d.Issuer.Release(ctx, claim)
	case <-ctx.Done():
		return false, guard.OutcomeUnknown("release", claim, context.Cause(ctx))
	}
}

// deaf is a connection whose reader has gone.
type deaf struct{ *httptest.ResponseRecorder }

func (deaf) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

// TestWatchesEnd: when nobody reads a stream any more, the watch at the issuer that
// was begun for it ends too, whenever the reader left.
func TestWatchesEnd(t *testing.T) {
	t.Parallel()
	for name, path := range map[string]string{
		"a waiter": "/v1/watch?resource=r&leaseId=L", "an onlooker": "/v1/watch?resource=r",
	} {
		testkit.Bubble(t, name, func(t *testing.T) {
			server := memory.NewServer()
			server.Steal("r", "holder", time.Hour)
			issuer := &distant{counting: counting{Issuer: server.Issuer()}}
			h := open(t, issuer, everybody, &lockhttp.Options{Timeout: usual})
			for _, leaves := range []string{"before the answer", "at the answer", "later"} {
				ctx, cancel := context.WithCancel(t.Context())
				issuer.answered = nil
				switch leaves {
				case "before the answer":
					time.AfterFunc(trip/2, cancel)
				case "at the answer":
					issuer.answered = cancel
				case "later":
					time.AfterFunc(time.Second, cancel)
				}
				h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, "GET", path, nil))
				cancel()
				time.Sleep(time.Second)
				if n := issuer.watching.Load(); n != 0 {
					t.Errorf("left %s: %d watches at the issuer go on", leaves, n)
				}
			}
			issuer.answered = nil
			h.ServeHTTP(deaf{httptest.NewRecorder()}, httptest.NewRequestWithContext(t.Context(), "GET", path, nil))
			time.Sleep(time.Second)
			if n := issuer.watching.Load(); n != 0 {
				t.Errorf("left before it was told anything: %d watches at the issuer go on", n)
			}
			testkit.Check(t, h.Close(t.Context()))
		})
	}
}

// cutting is an operators' API whose force unlock takes a while.
type cutting struct{ lockadmin.Admin }

func (cutting) ForceUnlock(ctx context.Context, resource, _, _ string, opts *lockadmin.ForceUnlockOptions) (lockadmin.ForceUnlocked, error) {
	invalidated := guard.Claim{Resource: resource, Token: 2, LeaseID: opts.RequestID}
	select {
	case <-time.After(trip):
		return lockadmin.ForceUnlocked{Invalidated: invalidated}, nil
	case <-ctx.Done():
		return lockadmin.ForceUnlocked{}, guard.OutcomeUnknown("force unlock", invalidated, context.Cause(ctx))
	}
}

// TestSentAndGone: a worker sends its release and exits without waiting for the
// answer, and an operator's browser goes away. What they sent is carried out: the
// lease is free, the token is invalidated and the mark is raised.
func TestSentAndGone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := memory.NewServer()
		claim := server.Steal("r", "worker", time.Hour)
		raised := guard.NoToken
		h, err := lockhttp.New(&distant{counting: counting{Issuer: server.Issuer()}}, everybody, &lockhttp.Options{
			Admin: cutting{},
			Raise: func(ctx context.Context, invalidated guard.Claim) error {
				select {
				case <-time.After(trip):
					raised = invalidated.Token
					return nil
				case <-ctx.Done():
					return context.Cause(ctx)
				}
			},
		})
		testkit.Must(t, err)
		send := func(method, path, body string, patience time.Duration) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			r := httptest.NewRequestWithContext(ctx, method, path, strings.NewReader(body))
			r.Header.Set("Content-Type", "application/json")
			h.ServeHTTP(httptest.NewRecorder(), r)
		}
		send("DELETE", "/v1/locks/"+claim.LeaseID+"?resource=r&fencingToken="+claim.Token.String(), "", trip/2)
		if held := server.Holder("r"); held != nil {
			t.Errorf("the release was received and given up: %v", held)
		}
		for what, patience := range map[string]time.Duration{"the force unlock": trip / 2, "the raise": trip * 3 / 2} {
			raised = guard.NoToken
			send("POST", "/v1/resources/r/force-unlock", `{"actorId":"ada","reason":"it hangs"}`, patience)
			if raised != 2 {
				t.Errorf("the browser went away during %s: the mark is not raised", what)
			}
		}
		testkit.Check(t, h.Close(t.Context()))
	})
}
