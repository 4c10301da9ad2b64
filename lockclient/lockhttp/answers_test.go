package lockhttp_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/driver/memory"
	"github.com/fencepost-go/fencepost/lockclient/lockhttp"
)

// TestForeignAnswer: JSON with the status 200 that a gateway sends of its own
// confirms nothing.
func TestForeignAnswer(t *testing.T) {
	t.Parallel()
	for _, body := range []string{`{}`, `{"status":"maintenance"}`, `{"released":false}`, `{"released":true}`, `{"released":true,"resource":"r","leaseId":"another"}`} {
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
	t.Parallel()
	id := &lockhttp.Identity{Subject: "a", Tenant: "acme"}
	for _, template := range []string{"shared:{x}:{y}", "{tenant}:billing-close:{period}", "{tenant}:{kind}:{period}"} {
		id.Templates = append(id.Templates, guard.Must(guard.NewTemplate(template)))
	}
	issuer, operator, _ := postgres(t, 4)
	web, _ := serve(t, issuer, func(*http.Request) (*lockhttp.Identity, error) { return id, nil }, &lockhttp.Options{Admin: operator})
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
	t.Parallel()
	server := memory.NewServer()
	web, _ := serve(t, server.Issuer(), everybody, nil)
	claim := server.Steal("r", "a", time.Minute)
	got := ask(t, web.URL, "", "POST", "/v1/locks/acquire", `{"resource":"r","ownerId":"b","ttlSeconds":600,"leaseId":"`+claim.LeaseID+`"}`)
	if got.status != 400 || got.str("field") != "leaseId" || strings.Contains(got.str("detail"), "LeaseID") {
		t.Errorf("%s", got.text)
	}
}

// noWatch is an issuer that cannot report changes, as redislock without
// Options.Subscribe.
type noWatch struct {
	*memory.Issuer
	err error
}

func (n noWatch) Watch(context.Context, driver.Watch, func()) (driver.Watching, error) {
	return driver.Watching{}, n.err
}

// TestNoNotifications: an issuer that works and reports no changes is not called
// unavailable. One whose notifications have failed is, since that passes.
func TestNoNotifications(t *testing.T) {
	t.Parallel()
	web, _ := serve(t, noWatch{memory.NewServer().Issuer(), driver.ErrNoWatch}, everybody, nil)
	if got := ask(t, web.URL, "", "GET", "/v1/resources/r", ""); got.status != 501 || got.problem() != "unsupported" || got.header.Get("Retry-After") != "" {
		t.Errorf("%d %s", got.status, got.text)
	}
	if _, err := connect(t, web.URL).Watch(t.Context(), driver.Watch{Resource: "r"}, func() {}); !errors.Is(err, driver.ErrNoWatch) {
		t.Errorf("the client's watch: %v", err)
	}
	lease := `{"resource":"r","leaseId":"L","ttlSeconds":600}`
	if got := ask(t, web.URL, "", "POST", "/v1/locks/acquire", lease); got.status != 200 {
		t.Errorf("%s", got.text)
	}
	web, _ = serve(t, noWatch{memory.NewServer().Issuer(), fmt.Errorf("%w: %w", driver.ErrNoWatch, io.ErrUnexpectedEOF)}, everybody, nil)
	if got := ask(t, web.URL, "", "GET", "/v1/resources/r", ""); got.status != 503 {
		t.Errorf("%d %s", got.status, got.text)
	}
}

// keeping is an issuer that releases nothing while it is told so.
type keeping struct {
	*memory.Issuer
	releases bool
}

func (k *keeping) Release(ctx context.Context, claim guard.Claim) (bool, error) {
	if !k.releases {
		return false, guard.Unavailable("release", claim, io.ErrUnexpectedEOF)
	}
	return k.Issuer.Release(ctx, claim)
}

// TestReadyWrites: the server is ready if something can be written at the issuer,
// which a refusal by somebody else's lease does not show.
func TestReadyWrites(t *testing.T) {
	t.Parallel()
	synctest.Test(t, readyWrites)
}

func readyWrites(t *testing.T) {
	server := memory.NewServer()
	issuer := &keeping{Issuer: server.Issuer()}
	ready := func(what string, want int) {
		t.Helper()
		h := open(t, issuer, everybody, &lockhttp.Options{Timeout: usual})
		defer h.Close(t.Context())
		if got := record(h, "GET", "/readyz", "", ""); got.Code != want {
			t.Errorf("%s: %d %s", what, got.Code, got.Body)
		}
	}
	server.Steal("fencepost-readyz", "somebody", time.Hour)
	ready("held by somebody", 503)
	server.Expire("fencepost-readyz")
	server.Steal("fencepost-readyz", "readyz", time.Second)
	ready("held by another server's probe", 200)
	server.Expire("fencepost-readyz")

	h := open(t, issuer, everybody, &lockhttp.Options{Timeout: usual})
	defer h.Close(t.Context())
	for n, want := range []int{503, 503, 200, 200} {
		issuer.releases = n >= 2
		if got := record(h, "GET", "/readyz", "", ""); got.Code != want {
			t.Errorf("releases: %v: %d %s", issuer.releases, got.Code, got.Body)
		}
		time.Sleep(1100 * time.Millisecond) // an answer is reused for a second
	}
	if held := server.Holder("fencepost-readyz"); held != nil {
		t.Errorf("it is left behind: %v", held)
	}
}

// hesitant is an issuer whose acquires take a time.
type hesitant struct {
	driver.Issuer
	by time.Duration
}

func (h *hesitant) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	time.Sleep(h.by)
	return h.Issuer.Acquire(ctx, r)
}

// TestReadyWithin: a server whose issuer responds, but too slowly, is not ready; by default that
// is half a second.
func TestReadyWithin(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			takes, within time.Duration
			status        int
		}{{400 * time.Millisecond, 0, 200}, {600 * time.Millisecond, 0, 503}, {600 * time.Millisecond, time.Second, 200}} {
			h := guard.Must(lockhttp.New(&hesitant{memory.NewServer().Issuer(), c.takes}, everybody, &lockhttp.Options{ReadyWithin: c.within, Logger: slog.New(slog.DiscardHandler)}))
			if got := record(h, "GET", "/readyz", "", ""); got.Code != c.status {
				t.Errorf("%+v: %d %s", c, got.Code, got.Body)
			}
			testkit.Check(t, h.Close(t.Context()))
		}
	})
}
