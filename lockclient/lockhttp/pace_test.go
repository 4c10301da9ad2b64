package lockhttp_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/lockhttp"
)

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestRetryAfter: after a proxy's 429 or 503 nothing is sent until the moment that it
// names, or for a fifth of a second, and for five seconds at most. What would be too
// late then was certainly not sent. The control is an answer that asks for no pause.
func TestRetryAfter(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		status int
		after  string // Retry-After
		pause  time.Duration
	}{
		{503, "2", 2 * time.Second},
		{429, "3", 3 * time.Second},
		{503, "", 200 * time.Millisecond},
		{503, "soon", 200 * time.Millisecond},
		{429, "0", 200 * time.Millisecond},
		{429, "86400", 5 * time.Second},
		{503, "Sat, 01 Jan 2000 00:00:04 GMT", 4 * time.Second}, // the bubble begins in 2000
		{500, "2", 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			sent := 0
			i, err := lockhttp.NewIssuer("http://locks", &http.Client{Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
				resp := &http.Response{StatusCode: test.status, Status: "refused", Header: http.Header{}, Request: r, Body: io.NopCloser(strings.NewReader("busy"))}
				if r.URL.Path == "/v1/time" {
					resp.StatusCode, resp.Body = 200, io.NopCloser(strings.NewReader(`{"serverTime":"2000-01-01T00:00:00Z"}`))
					return resp, nil
				}
				sent++
				resp.Header.Set("Retry-After", test.after)
				return resp, nil
			})})
			if err != nil {
				t.Fatal(err)
			}
			claim := guard.Claim{Resource: "r", Token: 1, LeaseID: "a"}
			began := time.Now()
			if _, err := i.Release(t.Context(), claim); !errors.Is(err, guard.ErrOutcomeUnknown) || sent != 1 {
				t.Fatalf("%v after %d requests", err, sent)
			}
			hurry, cancel := context.WithTimeout(t.Context(), test.pause)
			defer cancel()
			if _, err := i.Release(hurry, claim); test.pause > 0 && (!errors.Is(err, guard.ErrUnavailable) || sent != 1 || time.Since(began) != 0) {
				t.Errorf("%d %q: in a hurry: %v after %d requests and %v", test.status, test.after, err, sent, time.Since(began))
			}
			for op, call := range map[string]func() error{
				"acquire": func() error {
					_, err := i.Acquire(t.Context(), driver.Request{Resource: "r", Owner: "o", LeaseID: "a", TTL: time.Minute, Timeout: time.Minute})
					return err
				},
				"watch": func() error {
					_, err := i.Watch(t.Context(), driver.Watch{Resource: "r"}, func() {})
					return err
				},
			} {
				began, before := time.Now(), sent
				if test.status == 503 && strings.HasSuffix(test.after, "GMT") {
					break // it has passed by the second call
				}
				if err := call(); err == nil || sent != before+1 {
					t.Errorf("%d %q: %s: %v, %d requests", test.status, test.after, op, err, sent-before)
				}
				if took := time.Since(began); took < test.pause || took > test.pause*5/4 {
					t.Errorf("%d %q: %s was sent after %v, want %v", test.status, test.after, op, took, test.pause)
				}
			}
		})
	}
}
