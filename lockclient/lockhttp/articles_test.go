package lockhttp_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
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
	"github.com/fencepost-go/fencepost/lockclient/internal/leasetest"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin/pgadmin"
	"github.com/fencepost-go/fencepost/lockclient/lockhttp"
	"github.com/fencepost-go/fencepost/lockclient/pglock"
)

// raw sends the bytes of a request as a client in another language writes them. The
// lines end with LF; %HOST% and %TOKEN% are filled in.
func raw(t testing.TB, base, token, head, body string) response {
	t.Helper()
	address := strings.TrimPrefix(base, "http://")
	conn, err := net.Dial("tcp", address)
	testkit.Must(t, err)
	defer conn.Close()
	text := strings.NewReplacer("%HOST%", address, "%TOKEN%", token).Replace(strings.TrimSpace(head))
	if body != "" {
		text += fmt.Sprintf("\nContent-Length: %d", len(body))
	}
	io.WriteString(conn, strings.ReplaceAll(text, "\n", "\r\n")+"\r\n\r\n"+body)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	testkit.Must(t, err)
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
		issuer := leasetest.Patient(guard.Must(pglock.New(leasetest.Migrated(t), nil)))
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

// TestByIDChecks: by the ID alone of a lease, any server renews and releases it for
// whoever may name its resource. What else the request names must be the lease's. A
// client's own ID does not name the resource.
func TestByIDChecks(t *testing.T) {
	t.Parallel()
	server := memory.NewServer()
	a, _ := serve(t, server.Issuer(), people, nil)
	b, _ := serve(t, server.Issuer(), people, nil) // did not grant it
	const resource = "acme:billing-close:1"
	got := ask(t, a.URL, "acme-1", "POST", "/v1/locks/acquire", `{"resource":"`+resource+`","ttlSeconds":600}`)
	id := got.str("leaseId")
	ask(t, a.URL, "acme-1", "POST", "/v1/locks/acquire", `{"resource":"acme:billing-close:3","leaseId":"own","ttlSeconds":600}`).want(t, 200)
	for _, url := range []string{a.URL, b.URL} {
		for _, c := range []struct {
			who, method, path, body string
			status                  int
			problem, field          string
		}{
			{"acme-1", "POST", id + "/renew", `{"resource":"acme:billing-close:2"}`, 404, "lease_over", ""},
			{"acme-1", "POST", id + "/renew", `{"fencingToken":2}`, 404, "lease_over", ""},
			{"acme-1", "POST", id + "/renew", `{"resource":"umbrella:billing-close:1"}`, 403, "forbidden", ""},
			{"umbrella-1", "POST", id + "/renew", `{"ttlSeconds":600}`, 403, "forbidden", ""},
			{"umbrella-1", "DELETE", id, ``, 403, "forbidden", ""},
			{"acme-1", "DELETE", id + "?fencingToken=2", ``, 404, "lease_over", ""},
			{"acme-1", "POST", "own/renew", `{"ttlSeconds":600}`, 400, "invalid", "resource"},
			{"acme-1", "POST", "own/renew", `{"resource":"acme:billing-close:3"}`, 400, "invalid", "ttlSeconds"},
			{"acme-1", "DELETE", "own", "", 400, "invalid", "resource"},
		} {
			if got := ask(t, url, c.who, c.method, "/v1/locks/"+c.path, c.body); got.status != c.status || got.problem() != c.problem || got.str("field") != c.field {
				t.Errorf("%s %s %s: %d %s", c.method, c.path, c.body, got.status, got.text)
			}
		}
		for _, who := range []string{"acme-1", "acme-2"} { // another subject of the tenant
			for _, body := range []string{``, `{"ttlSeconds":600}`, `{"resource":"` + resource + `"}`, `{"fencingToken":1}`, `{"fencingToken":"1","resource":"` + resource + `"}`} {
				if got := ask(t, url, who, "POST", "/v1/locks/"+id+"/renew", body); got.status != 200 || got.body["ttlSeconds"] != float64(600) {
					t.Errorf("%s %q: %d %s", who, body, got.status, got.text)
				}
			}
		}
	}
	if held := server.Holder(resource); held == nil || held.LeaseID != id {
		t.Fatalf("a refused request freed it: %v", held)
	}
	ask(t, b.URL, "acme-2", "DELETE", "/v1/locks/"+id, "").want(t, 200)
}

// TestP8ReleasedByID: a lease ID is spent by a release that names it alone, so that a copy
// of the acquire, which a proxy repeats, is not granted. The control is a release with its
// token, after which it is.
func TestP8ReleasedByID(t *testing.T) {
	t.Parallel()
	web, _ := serve(t, memory.NewServer().Issuer(), everybody, nil)
	for query, want := range map[string]int{"": 410, "?resource=r": 410, "?fencingToken=TOKEN": 200} {
		granted := ask(t, web.URL, "", "POST", "/v1/locks/acquire", `{"resource":"r","ttlSeconds":600}`)
		id := granted.str("leaseId")
		ask(t, web.URL, "", "DELETE", "/v1/locks/"+id+strings.Replace(query, "TOKEN", granted.str("token"), 1), "").want(t, 200)
		got := ask(t, web.URL, "", "POST", "/v1/locks/acquire", `{"resource":"r","leaseId":"`+id+`","ttlSeconds":600}`)
		if got.status != want {
			t.Errorf("repeated after a release%s: %d %s", query, got.status, got.text)
		}
		if got.status == 200 {
			ask(t, web.URL, "", "DELETE", "/v1/locks/"+id, "")
		}
	}
}

// TestByIDWithoutLooks: on an issuer that cannot look at a lease a renewal needs the token.
func TestByIDWithoutLooks(t *testing.T) {
	t.Parallel()
	web, _ := serve(t, noWatch{memory.NewServer().Issuer(), driver.ErrNoWatch}, everybody, nil)
	id := ask(t, web.URL, "", "POST", "/v1/locks/acquire", `{"resource":"r","ttlSeconds":600}`).str("leaseId")
	if got := ask(t, web.URL, "", "POST", "/v1/locks/"+id+"/renew", ""); got.status != 400 || got.str("field") != "fencingToken" {
		t.Errorf("%d %s", got.status, got.text)
	}
	ask(t, web.URL, "", "POST", "/v1/locks/"+id+"/renew", `{"fencingToken":1}`).want(t, 200)
	if got := ask(t, web.URL, "", "DELETE", "/v1/locks/"+id, ""); got.status != 200 {
		t.Errorf("%d %s", got.status, got.text)
	}
}

// TestByIDOnPostgreSQL: any server of one database renews and releases a lease by its
// ID alone, and the articles' names hold in the records.
func TestByIDOnPostgreSQL(t *testing.T) {
	t.Parallel()
	pool := leasetest.Migrated(t)
	operator, err := pgadmin.New(pool, &pgadmin.Options{OpTimeout: testkit.Patience, Logger: testkit.Logger(t)})
	testkit.Must(t, err)
	var logged leasetest.Text
	var urls []string
	for range 2 {
		issuer := leasetest.Patient(guard.Must(pglock.New(pool, nil)))
		t.Cleanup(func() { issuer.Close() })
		web, _ := serve(t, issuer, everybody, &lockhttp.Options{Admin: operator, Logger: slog.New(slog.NewJSONHandler(&logged, nil))})
		urls = append(urls, web.URL)
	}
	got := ask(t, urls[0], "", "POST", "/v1/locks/acquire", `{"resource":"r","ownerId":"worker-1","ttlSeconds":60}`)
	id := got.str("leaseId")
	testkit.Eventually(t, "the line of the grant", func() bool { return strings.Contains(logged.String(), "lock_acquired") })
	var line map[string]any
	if err := json.Unmarshal([]byte(logged.String()), &line); err != nil || line["event"] != "lock_acquired" || line["resource"] != "r" || line["ownerId"] != "worker-1" || line["leaseId"] != id || line["fencingToken"] != "1" {
		t.Errorf("logged %s", logged.String())
	}
	for _, body := range []string{``, `{"ttlSeconds":90}`} {
		if got := ask(t, urls[1], "", "POST", "/v1/locks/"+id+"/renew", body); got.status != 200 || got.str("token") != "1" || body == "" && got.body["ttlSeconds"] != float64(60) {
			t.Errorf("another server renews %q: %d %s", body, got.status, got.text)
		}
	}
	lock := ask(t, urls[1], "", "GET", "/v1/resources/r", "")
	for _, name := range []string{"resource", "ownerId", "leaseId", "fencingToken", "expiresAt", "createdAt"} {
		if lock.body[name] == nil {
			t.Errorf("the lock record has no %s: %s", name, lock.text)
		}
	}
	ask(t, urls[1], "", "DELETE", "/v1/locks/"+id, "").want(t, 200)
	for _, url := range urls {
		ask(t, url, "", "POST", "/v1/locks/"+id+"/renew", "").want(t, 404)
	}
	ask(t, urls[0], "", "POST", "/v1/resources/r/force-unlock", `{"actorId":"ada","reason":"it hangs"}`)
	records, _ := ask(t, urls[0], "", "GET", "/v1/audit", "").body["records"].([]any)
	if len(records) != 1 {
		t.Fatalf("%v", records)
	}
	record := records[0].(map[string]any)
	if record["action"] != "FORCE_UNLOCK" || record["resource"] != "r" || record["actorId"] != "test" || record["reason"] != `it hangs (in the name of ada)` || record["createdAt"] == nil {
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
				body = record(inner, "POST", r.URL.Path, "", string(text)).text
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
		ask(t, web.URL, "", "POST", "/v1/locks/acquire", `{"resource":"`+resource+`","ttlSeconds":600}`).want(t, 200)
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
	ask(t, web.URL, "", "POST", "/v1/locks/acquire", lease).want(t, 200)
	web, _ = serve(t, noWatch{memory.NewServer().Issuer(), fmt.Errorf("%w: %w", driver.ErrNoWatch, io.ErrUnexpectedEOF)}, everybody, nil)
	ask(t, web.URL, "", "GET", "/v1/resources/r", "").want(t, 503)
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
	synctest.Test(t, func(t *testing.T) {
		server := memory.NewServer()
		issuer := &keeping{Issuer: server.Issuer()}
		ready := func(what string, want int) {
			t.Helper()
			h := open(t, issuer, everybody, &lockhttp.Options{Timeout: usual})
			defer h.Close(t.Context())
			if got := record(h, "GET", "/readyz", "", ""); got.status != want {
				t.Errorf("%s: %d %s", what, got.status, got.text)
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
			record(h, "GET", "/readyz", "", "").want(t, want)
			time.Sleep(1100 * time.Millisecond) // an answer is reused for a second
		}
		if held := server.Holder("fencepost-readyz"); held != nil {
			t.Errorf("it is left behind: %v", held)
		}
	})
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
			if got := record(h, "GET", "/readyz", "", ""); got.status != c.status {
				t.Errorf("%+v: %d %s", c, got.status, got.text)
			}
			testkit.Check(t, h.Close(t.Context()))
		}
	})
}
