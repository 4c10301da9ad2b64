package main

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/httpfence"
	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/internal/testkit"
)

func TestStory(t *testing.T) {
	testkit.CaptureDefault(t)
	t.Setenv("FENCEPOST_DATABASE_URL", pgtest.Database(t)) // else run starts a server of its own
	var out bytes.Buffer
	if err := run(t.Context(), "", &out); err != nil || !strings.HasSuffix(out.String(), "token 11: balance 15\n") {
		t.Errorf("%v\n%s", err, &out)
	}
}

func TestServe(t *testing.T) {
	testkit.CaptureDefault(t)
	t.Setenv("FENCEPOST_DATABASE_URL", pgtest.Database(t)) // else run starts a server of its own
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out := &interrupt{cancel: cancel}
	if err := run(ctx, "127.0.0.1:0", out); err != nil || !strings.HasPrefix(out.String(), "curl") {
		t.Errorf("%v\n%s", err, out)
	}
	if err := run(t.Context(), "256.0.0.1:0", out); err == nil {
		t.Error("a bad address was taken")
	}
}

// interrupt ends the program once it has said something.
type interrupt struct {
	bytes.Buffer
	cancel func()
}

func (i *interrupt) Write(b []byte) (int, error) {
	defer i.cancel()
	return i.Buffer.Write(b)
}

// TestOvertaken: a request is admitted, a newer holder comes, the request
// writes. The fenced transaction refuses it; the control, the same statement
// in a plain transaction, does not.
func TestOvertaken(t *testing.T) {
	testkit.CaptureDefault(t)
	for _, fenced := range []bool{true, false} {
		s, err := newService(t.Context(), pgtest.Pool(t))
		if err != nil {
			t.Fatal(err)
		}
		do := func(path, token string) *httptest.ResponseRecorder {
			r := httptest.NewRequest("POST", path, nil)
			r.Header.Set(httpfence.TokenHeader, token)
			r.Header.Set(httpfence.LeaseHeader, "lease-"+token)
			r.Header.Set(httpfence.ResourceHeader, "account:"+strings.Split(path, "/")[2])
			w := httptest.NewRecorder()
			s.handler().ServeHTTP(w, r)
			return w
		}
		s.between = func(r *http.Request) {
			claim, _ := guard.ClaimFrom(r.Context())
			if claim.Token != 10 || claim.Resource != "account:acme" {
				return
			}
			if w := do("/accounts/acme/raise", "11"); w.Code != http.StatusNoContent {
				t.Errorf("raise: %d %s", w.Code, w.Body)
			}
			if !fenced {
				err := pgx.BeginFunc(r.Context(), s.pool, func(tx pgx.Tx) error {
					_, err := deposit(r.Context(), tx, "acme", 5)
					return err
				})
				if err != nil {
					t.Error(err)
				}
			}
		}
		if w := do("/accounts/acme/deposits/5", "10"); w.Code != http.StatusPreconditionFailed || !strings.Contains(w.Body.String(), "problem/stale") {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		r := httptest.NewRequest("GET", "/accounts/acme", nil)
		w := httptest.NewRecorder()
		s.handler().ServeHTTP(w, r)
		want := "balance 0"
		if !fenced {
			want = "balance 5"
		}
		if w.Body.String() != want {
			t.Errorf("fenced %v: %s, want %s", fenced, w.Body, want)
		}
		if w := do("/accounts/none/deposits/5", "10"); w.Code != http.StatusNotFound {
			t.Errorf("unknown account: %d", w.Code)
		}
		if mark, err := s.db.Mark(t.Context(), "account:none"); err != nil || mark != (guard.Mark{}) {
			t.Errorf("an unknown account has the mark %+v, %v", mark, err)
		}
	}
}
