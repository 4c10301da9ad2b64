package main

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/guard/proof"
	"github.com/fencepost-go/fencepost/httpfence"
	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/lockclient/lockhttp"
)

// A note that cannot be stored is the client's mistake, and the answer says so.
func TestBadNotes(t *testing.T) {
	key := proof.NewPrivateKey()
	var who identities
	token := who.add(lockhttp.Identity{Subject: "worker", Tenant: "acme", Templates: templates, Audience: audience("acme")})
	s, err := newServer(t.Context(), pgtest.Pool(t), who.authenticate, key)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	signer, err := proof.NewSigner(key, nil)
	if err != nil {
		t.Fatal(err)
	}
	claim := guard.Claim{Resource: "acme:billing-close:2026-04", Token: 1, LeaseID: "a"}
	signed, err := signer.Sign(claim, audience("acme"), time.Now().Add(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	for note, status := range map[string]int{
		"": 204, strings.Repeat("x", 1000): 204, "größer": 204,
		strings.Repeat("x", 1001): 413, "a\x00b": 400, "a\xffb": 400,
	} {
		r := httptest.NewRequest("PUT", "/demo/closes/2026-04", strings.NewReader(note))
		r.Header.Set("Authorization", "Bearer "+token)
		r.Header.Set(httpfence.TokenHeader, claim.Token.String())
		r.Header.Set(httpfence.LeaseHeader, claim.LeaseID)
		r.Header.Set(httpfence.ResourceHeader, httpfence.Encode(claim.Resource))
		r.Header.Set(proof.Header, signed)
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		if w.Code != status || status == http.StatusBadRequest && !strings.Contains(w.Body.String(), "note") {
			t.Errorf("%.10q, %d bytes: %d %s, want %d", note, len(note), w.Code, w.Body, status)
		}
	}
}
