package lockhttp_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver/memory"
	"github.com/fencepost-go/fencepost/lockclient/lockhttp"
)

// TestForeignAnswer: JSON with the status 200 that a gateway sends of its own
// confirms nothing.
func TestForeignAnswer(t *testing.T) {
	for _, body := range []string{`{}`, `{"status":"maintenance"}`, `{"released":false}`} {
		gateway := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			io.WriteString(w, body)
		}))
		defer gateway.Close()
		freed, err := connect(t, gateway.URL).Release(t.Context(), guard.Claim{Resource: "r", LeaseID: "L", Token: 1})
		if freed || guard.ReasonOf(err) != guard.ReasonOutcomeUnknown {
			t.Errorf("%s: freed: %v, %v", body, freed, err)
		}
	}
}

// TestListedOnce: a lock that two of an identity's templates match is listed once,
// also if a template before them cannot match the prefix.
func TestListedOnce(t *testing.T) {
	id := &lockhttp.Identity{Subject: "a", Tenant: "acme"}
	for _, template := range []string{"shared:{x}:{y}", "{tenant}:billing-close:{period}", "{tenant}:{kind}:{period}"} {
		id.Templates = append(id.Templates, guard.Must(guard.NewTemplate(template)))
	}
	issuer, operator, _ := postgres(t, 4)
	web, _ := serve(t, issuer, func(*http.Request) (*lockhttp.Identity, error) { return id, nil }, &lockhttp.Options{Admin: operator, Timeout: time.Minute})
	for _, resource := range []string{"acme:billing-close:1", "acme:payroll:1"} {
		if got := ask(t, web.URL, "", "POST", "/v1/locks/acquire", `{"resource":"`+resource+`","ttlSeconds":600}`); got.status != 200 {
			t.Fatal(got.text)
		}
	}
	for _, prefix := range []string{"", "acme", "acme:billing-close"} {
		for _, limit := range []int{1, 100} {
			listed := map[string]int{}
			for after, pages := "", 0; pages < 10; pages++ {
				got := ask(t, web.URL, "", "GET", fmt.Sprintf("/v1/locks?prefix=%s&limit=%d&after=%s", prefix, limit, after), "")
				if got.status != 200 {
					t.Fatal(got.text)
				}
				for _, l := range got.body["locks"].([]any) {
					listed[l.(map[string]any)["resource"].(string)]++
				}
				if after = got.str("next"); after == "" {
					break
				}
			}
			if listed["acme:billing-close:1"] != 1 || listed["acme:payroll:1"] > 1 {
				t.Errorf("%q, %d at a time: %v", prefix, limit, listed)
			}
		}
	}
}

// TestIDInUse: the refusal of a lease ID that another holder uses names the field
// as it is called on the wire.
func TestIDInUse(t *testing.T) {
	server := memory.NewServer()
	web, _ := serve(t, server.Issuer(), everybody, nil)
	claim := server.Steal("r", "a", time.Minute)
	got := ask(t, web.URL, "", "POST", "/v1/locks/acquire", `{"resource":"r","ownerId":"b","ttlSeconds":10,"leaseId":"`+claim.LeaseID+`"}`)
	if got.status != 400 || got.str("field") != "leaseId" || strings.Contains(got.str("detail"), "LeaseID") {
		t.Errorf("%s", got.text)
	}
}
