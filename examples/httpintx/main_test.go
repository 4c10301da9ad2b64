package main

import (
	"bytes"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/httpfence"
	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/internal/testkit"
)

func TestFenced(t *testing.T) {
	testkit.CaptureDefault(t)
	t.Setenv("FENCEPOST_DATABASE_URL", pgtest.Database(t)) // else run starts a server of its own
	var out bytes.Buffer
	if err := run(t.Context(), true, &out); err != nil || !strings.HasSuffix(out.String(), " 0 of them stale\n") {
		t.Errorf("%v\n%s", err, &out)
	}
}

// The control: without the fence stale writes take effect.
func TestUnfenced(t *testing.T) {
	testkit.CaptureDefault(t)
	t.Setenv("FENCEPOST_DATABASE_URL", pgtest.Database(t)) // else run starts a server of its own
	var out bytes.Buffer
	if err := run(t.Context(), false, &out); err != nil || strings.HasSuffix(out.String(), " 0 of them stale\n") {
		t.Errorf("%v\n%s", err, &out)
	}
}

// A missing account is answered with 404, and gets no mark; the control gets
// one.
func TestNothingThere(t *testing.T) {
	testkit.CaptureDefault(t)
	pool := pgtest.Pool(t)
	s, err := newReplica(t.Context(), pool, true, func() {})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := pool.Exec(t.Context(), schema); err != nil {
		t.Fatal(err)
	}
	for account, want := range map[string]struct {
		status int
		mark   guard.Token
	}{"acme": {http.StatusOK, 7}, "nobody": {http.StatusNotFound, guard.NoToken}} {
		r := httptest.NewRequest("POST", "/accounts/"+account+"/entries", nil)
		r.Header.Set(httpfence.TokenHeader, "7")
		r.Header.Set(httpfence.LeaseHeader, "lease-7")
		r.Header.Set(httpfence.ResourceHeader, "account:"+account)
		w := httptest.NewRecorder()
		s.handler().ServeHTTP(w, r)
		mark, err := s.db.Mark(t.Context(), "account:"+account)
		if err != nil || w.Code != want.status || mark.Token != want.mark {
			t.Errorf("%s: %d %s, mark %v, %v", account, w.Code, w.Body, mark, err)
		}
		if want.status == http.StatusNotFound && !errors.Is(httpfence.ErrorFrom(w.Result()), guard.ErrNotFound) {
			t.Errorf("%s: %s", account, w.Body)
		}
	}
}
