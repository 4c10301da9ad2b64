package lockhttp_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/driver/memory"
	"github.com/fencepost-go/fencepost/lockclient/internal/leasetest"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin"
	"github.com/fencepost-go/fencepost/lockclient/lockhttp"
	"github.com/fencepost-go/fencepost/lockclient/pglock"
)

// raw sends the bytes of a request as a client in another language writes them. The
// lines end with LF; %HOST% and %TOKEN% are filled in.
func raw(t testing.TB, base, token, head, body string) response {
	t.Helper()
	address := strings.TrimPrefix(base, "http://")
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	text := strings.NewReplacer("%HOST%", address, "%TOKEN%", token).Replace(strings.TrimSpace(head))
	if body != "" {
		text += fmt.Sprintf("\nContent-Length: %d", len(body))
	}
	io.WriteString(conn, strings.ReplaceAll(text, "\n", "\r\n")+"\r\n\r\n"+body)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	return read(t, resp)
}

// The calls of a worker in JavaScript (Node's fetch) and in Java (java.net.http), as
// they are on the wire.
const (
	jsHead = `
Host: %HOST%
connection: keep-alive
authorization: Bearer %TOKEN%
accept: */*
accept-language: *
sec-fetch-mode: cors
user-agent: node
accept-encoding: identity`
	javaHead = `
Connection: Upgrade, HTTP2-Settings
Host: %HOST%
HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA
Upgrade: h2c
User-Agent: Java-http-client/21.0.2
Authorization: Bearer %TOKEN%`
	isJSON = "\nContent-Type: application/json"
)

// TestArticlesAPI: the calls of the articles on fencing tokens work as they are written
// there: acquire with resource, ownerId and ttlSeconds, renew and release by the lease
// ID alone, renew also without a body, and a refused acquire is 409 with who holds it.
func TestArticlesAPI(t *testing.T) {
	t.Parallel()
	onPostgreSQL := func(t *testing.T) driver.Issuer {
		issuer, err := pglock.New(leasetest.Migrated(t), &pglock.Options{OpTimeout: testkit.Patience, LockTimeout: testkit.Patience / 2})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { issuer.Close() })
		return issuer
	}
	inMemory := func(*testing.T) driver.Issuer { return memory.NewServer().Issuer() }
	for name, c := range map[string]struct {
		head   string
		issuer func(*testing.T) driver.Issuer
	}{
		"JavaScript, memory": {jsHead, inMemory}, "Java, memory": {javaHead, inMemory},
		"JavaScript, PostgreSQL": {jsHead, onPostgreSQL}, "Java, PostgreSQL": {javaHead, onPostgreSQL},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			head := c.head
			web, _ := serve(t, c.issuer(t), people, nil)
			const resource = "acme:billing-close:2026-04"
			acquire := func(owner string) response {
				return raw(t, web.URL, "acme-1", "POST /v1/locks/acquire HTTP/1.1"+head+isJSON, `{"resource":"`+resource+`","ownerId":"`+owner+`","ttlSeconds":30}`)
			}
			granted := acquire("worker-1")
			id := granted.str("leaseId")
			if granted.status != 200 || granted.body["acquired"] != true || id == "" || granted.body["fencingToken"] != float64(1) || granted.str("token") != "1" || granted.str("expiresAt") == "" {
				t.Fatalf("acquire: %d %s", granted.status, granted.text)
			}

			refused := acquire("worker-2")
			holder, _ := refused.body["holder"].(map[string]any)
			if refused.status != 409 || refused.body["acquired"] != false || holder["ownerId"] != "worker-1" || holder["expiresAt"] == nil ||
				refused.header.Get("Content-Type") != "application/json" {
				t.Errorf("refused: %d %s", refused.status, refused.text)
			}

			// In this order: a renewal without a TTL has the grant's, not the last one's.
			for _, want := range []struct {
				what, head, body string
				ttl              float64
			}{
				{"with a TTL", head + isJSON, `{"ttlSeconds": 60}`, 60},
				{"without body", head + "\nContent-Length: 0", "", 30},
				{"empty JSON", head + isJSON + "\nContent-Length: 0", "", 30},
				{"empty object", head + isJSON, `{}`, 30},
			} {
				got := raw(t, web.URL, "acme-1", "POST /v1/locks/"+id+"/renew HTTP/1.1"+want.head, want.body)
				if got.status != 200 || got.str("state") != "extended" || got.body["ttlSeconds"] != want.ttl || got.body["fencingToken"] != float64(1) || got.str("resource") != resource {
					t.Errorf("renew %s: %d %s", want.what, got.status, got.text)
				}
			}

			released := raw(t, web.URL, "acme-1", "DELETE /v1/locks/"+id+" HTTP/1.1"+head, "")
			if released.status != 200 || released.body["released"] != true {
				t.Errorf("release: %d %s", released.status, released.text)
			}
			for what, got := range map[string]response{
				"released twice": raw(t, web.URL, "acme-1", "DELETE /v1/locks/"+id+" HTTP/1.1"+head, ""),
				"renewed after":  raw(t, web.URL, "acme-1", "POST /v1/locks/"+id+"/renew HTTP/1.1"+head+isJSON, `{"ttlSeconds": 60}`),
			} {
				if got.status != 404 || got.problem() != "lease_over" {
					t.Errorf("%s: %d %s", what, got.status, got.text)
				}
			}
			if next := acquire("worker-2"); next.status != 200 || next.str("token") != "2" {
				t.Errorf("after the release: %d %s", next.status, next.text)
			}
			if health := raw(t, web.URL, "", "GET /health HTTP/1.1\nHost: %HOST%", ""); health.status != 200 {
				t.Errorf("health: %d %s", health.status, health.text)
			}
		})
	}
}

// TestByIDChecks: what a request names beside the lease ID must be the lease's, and an
// identity finds no lease that it may not name.
func TestByIDChecks(t *testing.T) {
	t.Parallel()
	server := memory.NewServer()
	a, _ := serve(t, server.Issuer(), people, nil)
	b, _ := serve(t, server.Issuer(), people, nil) // did not grant it
	const resource = "acme:billing-close:1"
	got := ask(t, a.URL, "acme-1", "POST", "/v1/locks/acquire", `{"resource":"`+resource+`","ttlSeconds":60}`)
	id := got.str("leaseId")
	for _, url := range []string{a.URL, b.URL} {
		for _, c := range []struct {
			who, method, path, body string
			status                  int
			problem                 string
		}{
			{"acme-1", "POST", id + "/renew", `{"resource":"acme:billing-close:2"}`, 404, "lease_over"},
			{"acme-1", "POST", id + "/renew", `{"fencingToken":2}`, 404, "lease_over"},
			{"acme-1", "POST", id + "/renew", `{"resource":"` + resource + `","fencingToken":2}`, 404, "lease_over"},
			{"acme-1", "POST", id + "/renew", `{"resource":"umbrella:billing-close:1"}`, 403, "forbidden"},
			{"acme-1", "POST", "another/renew", `{"ttlSeconds":60}`, 404, "lease_over"},
			{"umbrella-1", "POST", id + "/renew", `{"ttlSeconds":60}`, 404, "lease_over"},
			{"umbrella-1", "DELETE", id, ``, 404, "lease_over"},
			{"acme-1", "DELETE", id + "?fencingToken=2", ``, 404, "lease_over"},
		} {
			if got := ask(t, url, c.who, c.method, "/v1/locks/"+c.path, c.body); got.status != c.status || got.problem() != c.problem {
				t.Errorf("%s %s %s: %d %s", c.method, c.path, c.body, got.status, got.text)
			}
		}
		for _, body := range []string{``, `{"ttlSeconds":60}`, `{"resource":"` + resource + `"}`, `{"fencingToken":1}`, `{"fencingToken":"1","resource":"` + resource + `"}`} {
			if got := ask(t, url, "acme-1", "POST", "/v1/locks/"+id+"/renew", body); got.status != 200 || got.body["ttlSeconds"] != float64(60) {
				t.Errorf("%q: %d %s", body, got.status, got.text)
			}
		}
	}
	if held := server.Holder(resource); held == nil || held.LeaseID != id {
		t.Fatalf("a refused request freed it: %v", held)
	}

	// An ID that a client uses twice means no single lease.
	for _, n := range []string{"3", "4"} {
		if got := ask(t, a.URL, "acme-1", "POST", "/v1/locks/acquire", `{"resource":"acme:billing-close:`+n+`","leaseId":"own","ttlSeconds":60}`); got.status != 200 {
			t.Fatal(got.text)
		}
	}
	for _, url := range []string{a.URL, b.URL} {
		if got := ask(t, url, "acme-1", "POST", "/v1/locks/own/renew", `{"ttlSeconds":60}`); got.status != 400 || got.str("field") != "resource" {
			t.Errorf("two leases: %d %s", got.status, got.text)
		}
	}
	if got := ask(t, b.URL, "acme-1", "POST", "/v1/locks/own/renew", `{"resource":"acme:billing-close:3"}`); got.status != 400 || got.str("field") != "ttlSeconds" {
		t.Errorf("no TTL is known: %d %s", got.status, got.text)
	}
}

// blindIssuer cannot find a lease by its ID.
type blindIssuer struct {
	driver.Issuer
	driver.Clock
}

func blind(s *memory.Server) driver.Issuer {
	issuer := s.Issuer()
	return blindIssuer{issuer, issuer}
}

// TestByIDWithoutFinder: a server finds what it granted itself; of the rest, an issuer
// that cannot find leases says which field is missing.
func TestByIDWithoutFinder(t *testing.T) {
	t.Parallel()
	server := memory.NewServer()
	a, _ := serve(t, blind(server), everybody, nil)
	b, _ := serve(t, blind(server), everybody, nil)
	id := ask(t, a.URL, "", "POST", "/v1/locks/acquire", `{"resource":"r","ttlSeconds":60}`).str("leaseId")
	if got := ask(t, b.URL, "", "POST", "/v1/locks/"+id+"/renew", ""); got.status != 400 || got.str("field") != "resource" || !strings.Contains(got.str("detail"), "cannot find") {
		t.Errorf("%d %s", got.status, got.text)
	}
	if got := ask(t, b.URL, "", "DELETE", "/v1/locks/"+id, ""); got.status != 400 || got.str("field") != "resource" {
		t.Errorf("%d %s", got.status, got.text)
	}
	if got := ask(t, b.URL, "", "POST", "/v1/locks/"+id+"/renew", `{"resource":"r"}`); got.status != 400 || got.str("field") != "fencingToken" {
		t.Errorf("%d %s", got.status, got.text)
	}
	if got := ask(t, b.URL, "", "POST", "/v1/locks/"+id+"/renew", `{"resource":"r","fencingToken":1}`); got.status != 200 {
		t.Errorf("%d %s", got.status, got.text)
	}
	if got := ask(t, a.URL, "", "DELETE", "/v1/locks/"+id, ""); got.status != 200 {
		t.Errorf("%d %s", got.status, got.text)
	}
	for _, c := range []struct{ verb, path, query, body string }{ // it is over now
		{"POST", "/v1/locks/" + id + "/renew", "", `{"resource":"r","fencingToken":1}`},
		{"DELETE", "/v1/locks/" + id, "?resource=r", ""},
	} {
		if got := ask(t, a.URL, "", c.verb, c.path, ""); got.status != 400 || got.str("field") != "resource" || !strings.Contains(got.str("detail"), "as one that runs") {
			t.Errorf("%s: %d %s", c.verb, got.status, got.text)
		}
		if got := ask(t, a.URL, "", c.verb, c.path+c.query, c.body); got.status != 404 || got.problem() != "lease_over" {
			t.Errorf("%s with the resource: %d %s", c.verb, got.status, got.text)
		}
	}
}

// TestRemembersWhatRuns: a renewal or a release under another token than the lease's does
// not make the server forget the lease, which it could not find again.
func TestRemembersWhatRuns(t *testing.T) {
	t.Parallel()
	web, _ := serve(t, blind(memory.NewServer()), everybody, nil)
	id := ask(t, web.URL, "", "POST", "/v1/locks/acquire", `{"resource":"r","ttlSeconds":60}`).str("leaseId")
	for _, c := range []struct{ verb, path, body string }{
		{"POST", "/v1/locks/" + id + "/renew", `{"resource":"r","fencingToken":9}`},
		{"DELETE", "/v1/locks/" + id + "?resource=r&fencingToken=9", ""},
	} {
		if got := ask(t, web.URL, "", c.verb, c.path, c.body); got.status != 404 || got.problem() != "lease_over" {
			t.Errorf("%s under another token: %d %s", c.verb, got.status, got.text)
		}
		if got := ask(t, web.URL, "", "POST", "/v1/locks/"+id+"/renew", ""); got.status != 200 {
			t.Errorf("after a %s under another token: %d %s", c.verb, got.status, got.text)
		}
	}
}

// finder counts the leases that are looked for.
type finder struct {
	*memory.Issuer
	finds *atomic.Int64
}

func (f finder) Find(ctx context.Context, leaseID string) ([]guard.Claim, error) {
	f.finds.Add(1)
	return f.Issuer.Find(ctx, leaseID)
}

// TestFoundOnce: a server looks for a lease that another one granted when it first
// renews it, and knows it from then on, so that neither the issuer nor the identity's
// limit pays for each renewal.
func TestFoundOnce(t *testing.T) {
	t.Parallel()
	server, finds := memory.NewServer(), new(atomic.Int64)
	a, _ := serve(t, server.Issuer(), everybody, nil)
	b, _ := serve(t, finder{server.Issuer(), finds}, everybody, nil)
	for _, own := range []string{"", `,"leaseId":"own"`} {
		finds.Store(0)
		id := ask(t, a.URL, "", "POST", "/v1/locks/acquire", `{"resource":"r`+strconv.Itoa(len(own))+`","ttlSeconds":60`+own+`}`).str("leaseId")
		for range 3 {
			if got := ask(t, b.URL, "", "POST", "/v1/locks/"+id+"/renew", `{"ttlSeconds":60}`); got.status != 200 {
				t.Errorf("%d %s", got.status, got.text)
			}
		}
		if got := ask(t, b.URL, "", "DELETE", "/v1/locks/"+id, ""); got.status != 200 {
			t.Errorf("%d %s", got.status, got.text)
		}
		if n := finds.Load(); n != 1 {
			t.Errorf("%s was looked for %d times", id, n)
		}
	}
}

// TestLookUpsAreLimited: anybody can make up a lease ID, so looking for one that the
// server does not know counts as an acquire; what it knows costs nothing.
func TestLookUpsAreLimited(t *testing.T) {
	t.Parallel()
	server, finds := memory.NewServer(), new(atomic.Int64)
	var allowed atomic.Bool
	web, _ := serve(t, finder{server.Issuer(), finds}, func(*http.Request) (*lockhttp.Identity, error) {
		return &lockhttp.Identity{Subject: "x", AllResources: true, Limits: lockhttp.Limits{Acquire: allowed.Load}}, nil
	}, nil)
	allowed.Store(true)
	id := ask(t, web.URL, "", "POST", "/v1/locks/acquire", `{"resource":"r","ttlSeconds":60}`).str("leaseId")
	allowed.Store(false)
	for _, method := range []string{"POST /v1/locks/made-up/renew", "DELETE /v1/locks/made-up"} {
		verb, path, _ := strings.Cut(method, " ")
		if got := ask(t, web.URL, "", verb, path, ""); got.status != 429 || finds.Load() != 0 {
			t.Errorf("%s: %d %s, %d look-ups", method, got.status, got.text, finds.Load())
		}
	}
	for _, method := range []string{"POST /v1/locks/" + id + "/renew", "DELETE /v1/locks/" + id} {
		verb, path, _ := strings.Cut(method, " ")
		if got := ask(t, web.URL, "", verb, path, ""); got.status != 200 {
			t.Errorf("%s: %d %s", method, got.status, got.text)
		}
	}
}

// TestByIDOnPostgreSQL: any server of one database renews and releases a lease by its
// ID alone, and the articles' names hold in the records.
func TestByIDOnPostgreSQL(t *testing.T) {
	t.Parallel()
	pool := leasetest.Migrated(t)
	operator, err := lockadmin.New(pool, &lockadmin.Options{OpTimeout: testkit.Patience, Logger: testkit.Logger(t)})
	if err != nil {
		t.Fatal(err)
	}
	var logged strings.Builder
	var urls []string
	for range 2 {
		issuer, err := pglock.New(pool, &pglock.Options{OpTimeout: testkit.Patience, LockTimeout: testkit.Patience / 2})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { issuer.Close() })
		web, _ := serve(t, issuer, everybody, &lockhttp.Options{Admin: operator, Logger: slog.New(slog.NewJSONHandler(&logged, nil))})
		urls = append(urls, web.URL)
	}
	got := ask(t, urls[0], "", "POST", "/v1/locks/acquire", `{"resource":"r","ownerId":"worker-1","ttlSeconds":60}`)
	id := got.str("leaseId")
	var line map[string]any
	if err := json.Unmarshal([]byte(logged.String()), &line); err != nil || line["event"] != "lock_acquired" || line["resource"] != "r" || line["ownerId"] != "worker-1" || line["leaseId"] != id || line["fencingToken"] != "1" {
		t.Errorf("logged %s", logged.String())
	}
	for _, body := range []string{``, `{"ttlSeconds":90}`} {
		if got := ask(t, urls[1], "", "POST", "/v1/locks/"+id+"/renew", body); got.status != 200 || got.str("token") != "1" || body == "" && got.body["ttlSeconds"] != float64(60) {
			t.Errorf("another server renews %q: %d %s", body, got.status, got.text)
		}
	}
	lock := ask(t, urls[1], "", "GET", "/v1/locks/r", "")
	for _, name := range []string{"resource", "ownerId", "leaseId", "fencingToken", "expiresAt", "createdAt"} {
		if lock.body[name] == nil {
			t.Errorf("the lock record has no %s: %s", name, lock.text)
		}
	}
	if got := ask(t, urls[1], "", "DELETE", "/v1/locks/"+id, ""); got.status != 200 {
		t.Errorf("another server releases: %d %s", got.status, got.text)
	}
	for _, url := range urls {
		if got := ask(t, url, "", "POST", "/v1/locks/"+id+"/renew", ""); got.status != 404 {
			t.Errorf("after the release: %d %s", got.status, got.text)
		}
	}
	ask(t, urls[0], "", "POST", "/v1/locks/r/force-unlock", `{"actorId":"ada","reason":"it hangs"}`)
	records, _ := ask(t, urls[0], "", "GET", "/v1/audit", "").body["records"].([]any)
	if len(records) != 1 {
		t.Fatalf("%v", records)
	}
	record := records[0].(map[string]any)
	if record["action"] != "FORCE_UNLOCK" || record["resource"] != "r" || record["actorId"] != "ada" || record["reason"] != "it hangs" || record["createdAt"] == nil {
		t.Errorf("%v", record)
	}
}

// TestRefusedByOlderServer: a server that answers a refusal with 200 is understood, and
// a gateway's own 409 is not taken for one.
func TestRefusedByOlderServer(t *testing.T) {
	t.Parallel()
	server := memory.NewServer()
	inner := open(t, server.Issuer(), everybody, nil)
	defer inner.Close(context.Background())
	server.Steal("r", "somebody", time.Hour)
	for _, c := range []struct {
		status int
		body   string // "" is the server's own
		reason guard.Reason
	}{
		{200, "", guard.ReasonOf(&driver.HeldError{})},
		{409, "", guard.ReasonOf(&driver.HeldError{})},
		{409, `{"error":"conflict"}`, guard.ReasonOutcomeUnknown},
		{409, `{}`, guard.ReasonOutcomeUnknown},
	} {
		web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			if r.URL.Path == "/v1/time" {
				inner.ServeHTTP(w, r)
				return
			}
			body := c.body
			if body == "" {
				text, _ := io.ReadAll(r.Body)
				body = record(inner, "POST", r.URL.Path, "", string(text)).Body.String()
			}
			w.WriteHeader(c.status)
			io.WriteString(w, body)
		}))
		defer web.Close()
		_, err := connect(t, web.URL).Acquire(t.Context(), driver.Request{Resource: "r", LeaseID: "L", Owner: "o", TTL: time.Minute, Timeout: time.Minute})
		if guard.ReasonOf(err) != c.reason {
			t.Errorf("%d %s: %v", c.status, c.body, err)
		}
	}
}
