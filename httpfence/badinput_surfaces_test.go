package httpfence

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/fencepost-go/fencepost/guard"
)

// guardedBy are the ways to guard a handler. The last one's answer is the
// fence's own.
var guardedBy = map[string]func(*service, http.Handler) http.Handler{
	"Admit": (*service).admit,
	"InTx": func(s *service, next http.Handler) http.Handler {
		return s.fence.InTx(next)
	},
	"Check": func(s *service, next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if _, err := s.fence.Check(r); err != nil {
				s.fence.Reject(w, r, err)
				return
			}
			next.ServeHTTP(w, r)
		})
	},
	"Raise": func(s *service, _ http.Handler) http.Handler {
		return http.HandlerFunc(s.fence.Raise)
	},
}

// TestBadInputAtEverySurface: whatever guards the handler, a malformed request
// gets the same answer, and neither a handler nor a store nor a transaction
// hears of it. That a good one gets through is the control.
func TestBadInputAtEverySurface(t *testing.T) {
	for surface, guarded := range guardedBy {
		if surface == "Admit" {
			continue // TestBadInputNeverReachesTheHandler
		}
		t.Run(surface, func(t *testing.T) {
			s := newServiceAt(t, guarded, ChiParam("id"), nil)
			for _, c := range badInputs {
				if a := s.raw(t, c.request); a.status != c.status || a.reason() != c.reason {
					t.Errorf("%s: status %d, problem %q; want %d, %q\n%s", c.name, a.status, a.reason(), c.status, c.reason, a.body)
				}
			}
			if s.invoked.Load() != 0 || s.store.calls() != 0 {
				t.Errorf("%d invocations, %d calls of the store", s.invoked.Load(), s.store.calls())
			}
			if a := s.raw(t, rawPost(goodPath, "X-Fencing-Token: 5")); a.status >= 300 || s.store.calls() != 1 {
				t.Errorf("a good request: %d, %d calls of the store: %s", a.status, s.store.calls(), a.body)
			}
			if s.invoked.Load() != 1 && surface != "Raise" {
				t.Errorf("a good request: %d invocations", s.invoked.Load())
			}
		})
	}
}

// TestBadResourceFunc: a resource function that fails or returns no name, over
// a socket and for every way to guard a handler.
func TestBadResourceFunc(t *testing.T) {
	for _, c := range []struct {
		name   string
		value  string
		err    error
		status int
		reason string
	}{
		{"returns nothing", "", nil, 400, "invalid"},
		{"returns a newline", "a\nb", nil, 400, "invalid"},
		{"returns bytes that are not UTF-8", "a\xff", nil, 400, "invalid"},
		{"returns 513 bytes", strings.Repeat("x", 513), nil, 400, "invalid"},
		{"fails with invalid", "r", fmt.Errorf("period: %w", guard.ErrInvalid), 400, "invalid"},
		{"fails with not found", "r", fmt.Errorf("account: %w", guard.ErrNotFound), 404, "not_found"},
		{"fails with unavailable", "r", guard.Unavailable("look up", guard.Claim{}, errors.New("down")), 503, "unavailable"},
		{"fails with stale", "r", guard.ErrStale, 500, "other"},
		{"fails otherwise", "r", errors.New("no identity"), 500, "other"},
		{"is cancelled", "r", context.Canceled, 500, "other"},
	} {
		for surface, guarded := range guardedBy {
			t.Run(c.name+"/"+surface, func(t *testing.T) {
				s := newServiceAt(t, guarded, func(*http.Request) (string, error) { return c.value, c.err }, nil)
				a := s.raw(t, rawPost(goodPath, "X-Fencing-Token: 5"))
				if a.status != c.status || a.reason() != c.reason {
					t.Errorf("status %d, problem %q; want %d, %q\n%s", a.status, a.reason(), c.status, c.reason, a.body)
				}
				if s.invoked.Load() != 0 || s.store.calls() != 0 {
					t.Errorf("%d invocations, %d calls of the store", s.invoked.Load(), s.store.calls())
				}
			})
		}
	}
}
