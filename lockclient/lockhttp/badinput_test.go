package lockhttp_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/driver/memory"
	"github.com/fencepost-go/fencepost/lockclient/lockhttp"

	"github.com/go-chi/chi/v5"
)

// TestBadInput is the table of what is refused: the status, the problem type and
// the field that the answer names. The table in the package's documentation
// lists the same by kind. No refused request leaves a lease.
func TestBadInput(t *testing.T) {
	t.Parallel()
	server := memory.NewServer()
	web, _ := serve(t, server.Issuer(), people, nil)
	granted := ask(t, web.URL, "acme-1", "POST", "/v1/locks/acquire", `{"resource":"acme:billing-close:2026-01","leaseId":"L","ttlSeconds":60}`)
	if granted.status != 200 || granted.str("token") != "1" {
		t.Fatalf("%+v", granted)
	}
	other := ask(t, web.URL, "umbrella-1", "POST", "/v1/locks/acquire", `{"resource":"umbrella:billing-close:1","leaseId":"U","ttlSeconds":60}`)
	expired := ask(t, web.URL, "acme-1", "POST", "/v1/locks/acquire", `{"resource":"acme:billing-close:expired","leaseId":"E","ttlSeconds":60}`)
	released := ask(t, web.URL, "acme-1", "POST", "/v1/locks/acquire", `{"resource":"acme:billing-close:released","leaseId":"R","ttlSeconds":60}`)
	if gone := ask(t, web.URL, "acme-1", "DELETE", "/v1/locks/R?resource=acme:billing-close:released", ""); gone.status != 200 || released.status+expired.status+other.status != 600 {
		t.Fatalf("%+v", gone)
	}
	server.Expire("acme:billing-close:expired")

	const a, lock = "acme-1", "acme:billing-close:bad"
	acquire := func(members string) string {
		return `{"resource":"` + lock + `","ttlSeconds":600` + members + `}`
	}
	for _, c := range []struct {
		name, token, method, path, body string
		status                          int
		problem, field                  string
	}{
		{"no credentials", "", "POST", "/v1/locks/acquire", acquire(""), 401, "unauthenticated", ""},
		{"forged credentials", "acme-1x", "POST", "/v1/locks/acquire", acquire(""), 401, "unauthenticated", ""},
		{"credentials cannot be checked", "store down", "POST", "/v1/locks/acquire", acquire(""), 503, "unavailable", ""},
		{"another's ownerId", "named", "POST", "/v1/locks/acquire", acquire(`,"ownerId":"acme-1"`), 403, "forbidden", ""},
		{"another tenant's resource", a, "POST", "/v1/locks/acquire", `{"resource":"umbrella:billing-close:1","ttlSeconds":600}`, 403, "forbidden", ""},
		{"another tenant's resource that is free", a, "POST", "/v1/locks/acquire", `{"resource":"umbrella:billing-close:none","ttlSeconds":600}`, 403, "forbidden", ""},
		{"no template's resource", a, "POST", "/v1/locks/acquire", `{"resource":"acme:other:1","ttlSeconds":600}`, 403, "forbidden", ""},
		{"a tenant that begins like one's own", a, "POST", "/v1/locks/acquire", `{"resource":"acme2:billing-close:1","ttlSeconds":600}`, 403, "forbidden", ""},
		{"a tenant in other letters", a, "POST", "/v1/locks/acquire", `{"resource":"Acme:billing-close:1","ttlSeconds":600}`, 403, "forbidden", ""},
		{"no JSON", a, "POST", "/v1/locks/acquire", `resource=x`, 400, "invalid", "body"},
		{"cut short", a, "POST", "/v1/locks/acquire", acquire("")[:20], 400, "invalid", "body"},
		{"a list", a, "POST", "/v1/locks/acquire", `[]`, 400, "invalid", "body"},
		{"two objects", a, "POST", "/v1/locks/acquire", acquire("") + `{}`, 400, "invalid", "body"},
		{"an unknown field", a, "POST", "/v1/locks/acquire", acquire(`,"ttl":5`), 400, "invalid", "body"},
		{"a field in capitals", a, "POST", "/v1/locks/acquire", acquire(`,"OwnerId":"x"`), 400, "invalid", "body"},
		{"a field twice", a, "POST", "/v1/locks/acquire", acquire(`,"ttlSeconds":5`), 400, "invalid", "ttlSeconds"},
		{"not UTF-8", a, "POST", "/v1/locks/acquire", acquire(",\"ownerId\":\"\xff\""), 400, "invalid", "body"},
		{"half a surrogate pair", a, "POST", "/v1/locks/acquire", acquire(`,"ownerId":"\ud800"`), 400, "invalid", "ownerId"},
		{"half a surrogate pair beside what it becomes", a, "POST", "/v1/locks/acquire", acquire(`,"ownerId":"\\ufffd\ud800"`), 400, "invalid", "ownerId"},
		{"a number for a text", a, "POST", "/v1/locks/acquire", acquire(`,"ownerId":7`), 400, "invalid", "ownerId"},
		{"no resource", a, "POST", "/v1/locks/acquire", `{"ttlSeconds":600}`, 400, "invalid", "resource"},
		{"a control character", a, "POST", "/v1/locks/acquire", `{"resource":"acme:billing-close:a\n","ttlSeconds":600}`, 400, "invalid", "resource"},
		{"a long resource", a, "POST", "/v1/locks/acquire", `{"resource":"acme:billing-close:` + strings.Repeat("x", 512) + `","ttlSeconds":600}`, 400, "invalid", "resource"},
		{"a long owner", a, "POST", "/v1/locks/acquire", acquire(`,"ownerId":"` + strings.Repeat("x", 129) + `"`), 400, "invalid", "ownerId"},
		{"a long lease ID", a, "POST", "/v1/locks/acquire", acquire(`,"leaseId":"` + strings.Repeat("x", 129) + `"`), 400, "invalid", "leaseId"},
		{"long metadata", a, "POST", "/v1/locks/acquire", acquire(`,"metadata":"` + strings.Repeat("x", 1001) + `"`), 400, "invalid", "metadata"},
		{"no TTL", a, "POST", "/v1/locks/acquire", `{"resource":"` + lock + `"}`, 400, "invalid", "ttlSeconds"},
		{"a TTL of zero", a, "POST", "/v1/locks/acquire", `{"resource":"` + lock + `","ttlSeconds":0}`, 400, "invalid", "ttlSeconds"},
		{"a short TTL", a, "POST", "/v1/locks/acquire", `{"resource":"` + lock + `","ttlSeconds":0.01}`, 400, "invalid", "ttlSeconds"},
		{"a long TTL", a, "POST", "/v1/locks/acquire", `{"resource":"` + lock + `","ttlSeconds":86401}`, 400, "invalid", "ttlSeconds"},
		{"a negative TTL", a, "POST", "/v1/locks/acquire", `{"resource":"` + lock + `","ttlSeconds":-1}`, 400, "invalid", "ttlSeconds"},
		{"a TTL as text", a, "POST", "/v1/locks/acquire", `{"resource":"` + lock + `","ttlSeconds":"30"}`, 400, "invalid", "ttlSeconds"},
		{"a long wait", a, "POST", "/v1/locks/acquire", acquire(`,"waitSeconds":61`), 400, "invalid", "waitSeconds"},
		{"no time", a, "POST", "/v1/locks/acquire", acquire(`,"notAfter":"now"`), 400, "invalid", "notAfter"},
		{"too late", a, "POST", "/v1/locks/acquire", acquire(`,"notAfter":"2026-01-01T00:00:00Z"`), 412, "late", ""},
		{"too late by two thousand years", a, "POST", "/v1/locks/acquire", acquire(`,"notAfter":"0001-01-01T00:00:00Z"`), 412, "late", ""},
		{"a spent lease ID", a, "POST", "/v1/locks/acquire", `{"resource":"acme:billing-close:released","leaseId":"R","ttlSeconds":600}`, 410, "lease_spent", ""},
		{"a lease ID that another holder uses", "acme-2", "POST", "/v1/locks/acquire", `{"resource":"acme:billing-close:2026-01","leaseId":"L","ttlSeconds":600}`, 400, "invalid", "leaseId"},
		{"too large", a, "POST", "/v1/locks/acquire", acquire(`,"metadata":"` + strings.Repeat("x", 600<<10) + `"`), 413, "too_large", ""},
		{"a query where none is", a, "POST", "/v1/locks/acquire?x=1", acquire(""), 400, "invalid", "query"},

		{"renewing an unknown lease", a, "POST", "/v1/locks/X/renew", `{"resource":"acme:billing-close:2026-01","fencingToken":"1","ttlSeconds":600}`, 404, "lease_over", ""},
		{"renewing under another token", a, "POST", "/v1/locks/L/renew", `{"resource":"acme:billing-close:2026-01","fencingToken":"2","ttlSeconds":600}`, 404, "lease_over", ""},
		{"renewing what never was", a, "POST", "/v1/locks/L/renew", `{"resource":"acme:billing-close:never","fencingToken":1,"ttlSeconds":600}`, 404, "lease_over", ""},
		{"renewing after expiry", a, "POST", "/v1/locks/E/renew", `{"resource":"acme:billing-close:expired","fencingToken":1,"ttlSeconds":600}`, 404, "lease_over", ""},
		{"renewing another tenant's lease", a, "POST", "/v1/locks/U/renew", `{"resource":"umbrella:billing-close:1","fencingToken":"1","ttlSeconds":600}`, 403, "forbidden", ""},
		{"a token as a fraction", a, "POST", "/v1/locks/L/renew", `{"resource":"acme:billing-close:2026-01","fencingToken":1.0,"ttlSeconds":600}`, 400, "invalid", "fencingToken"},
		{"a token with a sign", a, "POST", "/v1/locks/L/renew", `{"resource":"acme:billing-close:2026-01","fencingToken":"+1","ttlSeconds":600}`, 400, "invalid", "fencingToken"},
		{"a token of zero", a, "POST", "/v1/locks/L/renew", `{"resource":"acme:billing-close:2026-01","fencingToken":0,"ttlSeconds":600}`, 400, "invalid", "fencingToken"},
		{"renewing without a lease ID", a, "POST", "/v1/locks/renew", `{"resource":"acme:billing-close:2026-01","fencingToken":1,"ttlSeconds":600}`, 400, "invalid", "leaseId"},
		{"renewing for no time", a, "POST", "/v1/locks/renew", `{"leaseId":"L","ttlSeconds":0}`, 400, "invalid", "ttlSeconds"},
		{"a list where an object is", a, "POST", "/v1/locks/renew", `{"renewals":[{"leaseId":"L"}]}`, 400, "invalid", "body"},
		{"a limit of none", "acme-ops", "GET", "/v1/audit?limit=0", "", 400, "invalid", "limit"},
		{"a state that is none", a, "GET", "/v1/locks?state=lost", "", 400, "invalid", "state"},

		{"released twice", a, "DELETE", "/v1/locks/R?resource=acme:billing-close:released", "", 404, "lease_over", ""},
		{"releasing an unknown lease", a, "DELETE", "/v1/locks/X?resource=acme:billing-close:2026-01&fencingToken=1", "", 404, "lease_over", ""},
		{"releasing under another token", a, "DELETE", "/v1/locks/L?resource=acme:billing-close:2026-01&fencingToken=2", "", 404, "lease_over", ""},
		{"releasing another tenant's lease", a, "DELETE", "/v1/locks/U?resource=umbrella:billing-close:1", "", 403, "forbidden", ""},
		{"releasing another's with one's own resource", a, "DELETE", "/v1/locks/U?resource=acme:billing-close:2026-01&fencingToken=1", "", 404, "lease_over", ""},
		{"releasing a client's own ID alone", a, "DELETE", "/v1/locks/U", "", 400, "invalid", "resource"},
		{"what the probe of readiness holds", "root", "POST", "/v1/locks/acquire", `{"resource":"fencepost-readyz","ttlSeconds":60}`, 403, "forbidden", ""},
		{"a body in the path's place", a, "POST", "/v1/locks/L/renew", `[`, 400, "invalid", "body"},
		{"a lease ID in the path and in the body", a, "POST", "/v1/locks/L/renew", `{"leaseId":"L"}`, 400, "invalid", "leaseId"},
		{"no UTF-8 in the path", a, "DELETE", "/v1/locks/%FF", "", 400, "invalid", "leaseId"},
		{"no UTF-8 in the query", a, "DELETE", "/v1/locks/L?resource=acme:billing-close:%FF", "", 400, "invalid", "resource"},
		{"a resource twice", a, "DELETE", "/v1/locks/L?resource=a&resource=b", "", 400, "invalid", "resource"},
		{"a body where the fields are in the query", a, "DELETE", "/v1/locks/L", `{"resource":"z","fencingToken":99}`, 400, "invalid", "body"},
		{"a body of a look", a, "GET", "/v1/resources/acme:billing-close:2026-01", `{"resource":"z","fencingToken":99}`, 400, "invalid", "body"},
		{"a bad token in the query", a, "DELETE", "/v1/locks/L?resource=acme:billing-close:2026-01&fencingToken=01", "", 400, "invalid", "fencingToken"},

		{"another tenant's lock", a, "GET", "/v1/resources/umbrella:billing-close:1", "", 403, "forbidden", ""},
		{"another tenant's lock, spelled otherwise", a, "GET", "/v1/resources/%75mbrella:billing-close:1", "", 403, "forbidden", ""},
		{"a slash in the path is no tenant", a, "GET", "/v1/resources/acme%2Fumbrella:billing-close:1", "", 403, "forbidden", ""},
		{"a path that goes on", a, "GET", "/v1/resources/acme:billing-close:1/x", "", 404, "not_found", ""},
		{"an unknown path", a, "GET", "/v2/locks", "", 404, "not_found", ""},
		{"an unknown method", a, "PUT", "/v1/locks/acquire", "{}", 405, "method_not_allowed", ""},
		{"watching another tenant's", a, "GET", "/v1/watch?resource=umbrella:billing-close:1&leaseId=U", "", 403, "forbidden", ""},
		{"listing where nothing can", a, "GET", "/v1/locks", "", 501, "unsupported", ""},
		{"force-unlock without the right", a, "POST", "/v1/resources/acme:billing-close:2026-01/force-unlock", `{"actorId":"ada","reason":"x"}`, 403, "forbidden", ""},
		{"force-unlock of another tenant's lock", "umbrella-ops", "POST", "/v1/resources/acme:billing-close:2026-01/force-unlock", `{"actorId":"ada","reason":"x"}`, 403, "forbidden", ""},
		{"the audit without the right", a, "GET", "/v1/audit", "", 403, "forbidden", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := ask(t, web.URL, c.token, c.method, c.path, c.body)
			if got.status != c.status || got.problem() != c.problem || got.str("field") != c.field {
				t.Errorf("%d %s for %q, want %d %s for %q\n%s", got.status, got.problem(), got.str("field"), c.status, c.problem, c.field, got.text)
			}
			if got.header.Get("Content-Type") != "application/problem+json" || got.body["status"] != float64(c.status) || got.str("title") == "" || got.str("detail") == "" {
				t.Errorf("%v %s", got.header, got.text)
			}
			if c.status == 401 && got.header.Get("WWW-Authenticate") == "" || c.status == 503 && got.header.Get("Retry-After") == "" || c.status == 405 && got.header.Get("Allow") == "" {
				t.Errorf("a header is missing: %v", got.header)
			}
			if strings.Contains(got.str("detail"), "LeaseID") {
				t.Errorf("it names a field otherwise than on the wire: %s", got.text)
			}
			if strings.Contains(got.text, "\n ") || strings.Contains(c.problem, "forbidden") && strings.Contains(got.text, "umbrella") {
				t.Errorf("the answer tells what it was asked: %s", got.text)
			}
		})
	}
	for resource, last := range map[string]guard.Token{lock: 0, "umbrella:billing-close:none": 0, "acme:billing-close:2026-01": 1, "umbrella:billing-close:1": 1} {
		if server.Last(resource) != last {
			t.Errorf("%s is at %v, not %v: a refused request was carried out", resource, server.Last(resource), last)
		}
	}
	if h := server.Holder("acme:billing-close:2026-01"); h == nil || h.LeaseID != "L" {
		t.Errorf("the lease is gone: %+v", h)
	}
	r, _ := http.NewRequest("POST", web.URL+"/v1/locks/acquire", strings.NewReader(acquire("")))
	r.Header.Set("Authorization", "Bearer acme-1")
	r.Header.Set("Content-Type", "text/plain")
	send(t, r).want(t, 415, "unsupported_media_type")
}

// TestWholeTexts: what half a surrogate pair would become is a character like others.
func TestWholeTexts(t *testing.T) {
	t.Parallel()
	web, _ := serve(t, memory.NewServer().Issuer(), everybody, nil)
	for whole, want := range map[string]string{`\\ufffd`: `\ufffd`, `\ufffd`: "\ufffd", `\\\ufffd`: "\\\ufffd", "\ufffd": "\ufffd", `\ud83d\ude00`: "\U0001f600"} {
		if got := ask(t, web.URL, "", "POST", "/v1/locks/acquire", `{"resource":"r`+whole+`","leaseId":"L","ttlSeconds":600}`); got.str("resource") != "r"+want {
			t.Errorf("%s: %d %s", whole, got.status, got.text)
		}
	}
}

// TestNamesInPaths: an escaped path means one name, whoever escapes it.
func TestNamesInPaths(t *testing.T) {
	t.Parallel()
	web, _ := serve(t, memory.NewServer().Issuer(), everybody, nil)
	for n, c := range []struct{ name, path string }{
		{"a", "%61"}, {"a/b", "a%2Fb"}, {"a/b/../c", "a%2Fb%2F..%2Fc"}, {"%2F", "%252F"}, {"a b+c", "a%20b+c"}, {"ä:é", "%C3%A4:é"}, {"a?b#c", "a%3Fb%23c"},
	} {
		for _, kind := range []string{"resource", "lease ID"} {
			resource, lease, inPath := fmt.Sprintf("r%d-%s", n, c.name), fmt.Sprintf("l%d-%s", n, c.name), fmt.Sprintf("l%d-%s", n, c.path)
			body := fmt.Sprintf(`{"resource":%q,"leaseId":%q,"ttlSeconds":600}`, resource, lease)
			got := ask(t, web.URL, "", "POST", "/v1/locks/acquire", body)
			if got.status != 200 {
				t.Fatalf("%s: %+v", c.name, got)
			}
			if kind == "resource" {
				got = ask(t, web.URL, "", "GET", fmt.Sprintf("/v1/resources/r%d-%s", n, c.path), "")
				if got.status != 200 || got.str("resource") != resource || got.str("leaseId") != lease {
					t.Errorf("%s as %s: %+v", c.name, c.path, got)
				}
				continue
			}
			got = ask(t, web.URL, "", "POST", "/v1/locks/"+inPath+"/renew", fmt.Sprintf(`{"resource":%q,"fencingToken":%q,"ttlSeconds":600}`, resource, got.str("token")))
			if got.status != 200 || got.str("leaseId") != lease {
				t.Errorf("%s as %s: %+v", c.name, c.path, got)
			}
			if got = ask(t, web.URL, "", "DELETE", "/v1/locks/"+inPath+"?resource="+strings.NewReplacer("%", "%25", "#", "%23", "?", "%3F", "+", "%2B", " ", "%20").Replace(resource), ""); got.status != 200 {
				t.Errorf("releasing %s as %s: %+v", c.name, c.path, got)
			}
		}
	}
}

// TestMounted: below another chi router the server takes only its own names of a path. A
// method that a path does not have is refused with those that it has, there too.
func TestMounted(t *testing.T) {
	t.Parallel()
	h, outer := open(t, memory.NewServer().Issuer(), everybody, nil), chi.NewRouter()
	outer.Mount("/{resource}/locks", h)
	for _, c := range []struct{ method, path, body string }{
		{"GET", "/v1/time", ""},
		{"POST", "/v1/locks/acquire", `{"resource":"r","leaseId":"L","ttlSeconds":600}`},
		{"GET", "/v1/resources/r", ""},
		{"POST", "/v1/locks/L/renew", `{"resource":"r","ttlSeconds":600}`},
		{"DELETE", "/v1/locks/L?resource=r", ""},
	} {
		record(outer, c.method, "/outer/locks"+c.path, "", c.body).want(t, 200)
	}
	for path, handler := range map[string]http.Handler{"/v1/locks": h, "/outer/locks/v1/locks": outer} {
		if got := record(handler, "PUT", path, "", "").want(t, 405); got.header.Get("Allow") != "GET" {
			t.Errorf("%s: Allow %v", path, got.header["Allow"])
		}
	}
}

// TestConstruction: New and NewIssuer return static mistakes as errors.
func TestConstruction(t *testing.T) {
	t.Parallel()
	issuer := memory.NewServer().Issuer()
	for name, err := range map[string]error{
		"no issuer":     second(lockhttp.New(nil, everybody, nil)),
		"no identities": second(lockhttp.New(issuer, nil, nil)),
		"ready within":  second(lockhttp.New(issuer, everybody, &lockhttp.Options{ReadyWithin: -1})),
		"timeout":       second(lockhttp.New(issuer, everybody, &lockhttp.Options{Timeout: -1})),
		"wait":          second(lockhttp.New(issuer, everybody, &lockhttp.Options{MaxWait: 48 * time.Hour})),
		"no URL":        second(lockhttp.NewIssuer("locks:80", nil)),
		"a password":    second(lockhttp.NewIssuer("http://a:b@locks", nil)),
		"a query":       second(lockhttp.NewIssuer("http://locks?x=1", nil)),
	} {
		if guard.ReasonOf(err) != guard.ReasonInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := lockhttp.NewIssuer("https://locks/mounted/here/", nil); err != nil {
		t.Error(err)
	}
}

func second[T any](_ T, err error) error { return err }

// failed is an issuer all of whose calls end with one error.
type failed struct {
	*memory.Issuer
	err error
}

func (f failed) Acquire(context.Context, driver.Request) (driver.Grant, error) {
	return driver.Grant{}, f.err
}

func (f failed) Renew(_ context.Context, _ []driver.Renewal, results []driver.Renewed) {
	for n := range results {
		results[n].Err = f.err
	}
}

func (f failed) Release(context.Context, guard.Claim) (bool, error) { return false, f.err }

func (f failed) Watch(context.Context, driver.Watch, func()) (driver.Watching, error) {
	return driver.Watching{}, f.err
}

// TestP6ErrorsOverHTTP: each error of an issuer is one status and one problem for the
// clients in other languages, which reveal none of its text, and the Go client makes the
// same error of it: of each call, and of each renewal of a batch.
func TestP6ErrorsOverHTTP(t *testing.T) {
	t.Parallel()
	claim, other := guard.Claim{Resource: "r", LeaseID: "L", Token: 1}, guard.Claim{Resource: "s", LeaseID: "L", Token: 1}
	cause := errors.New("inner workings")
	for _, c := range []struct {
		err        error
		status     int
		problem    string
		retryAfter string
		reason     guard.Reason // that the Go client sees
		watch      guard.Reason // of a watch, which writes nothing
	}{
		{guard.OutcomeUnknown("x", claim, cause), 500, "outcome_unknown", "", guard.ReasonOutcomeUnknown, guard.ReasonUnavailable},
		{fmt.Errorf("%w: %w", guard.ErrMarkAhead, cause), 503, "issuer_behind", "", guard.ReasonMarkAhead, guard.ReasonMarkAhead},
		{guard.Setup("x", claim, cause), 500, "setup", "", guard.ReasonSetup, guard.ReasonSetup},
		{guard.Unavailable("x", claim, cause), 503, "unavailable", "1", guard.ReasonUnavailable, guard.ReasonUnavailable},
		{cause, 500, "internal", "", guard.ReasonOutcomeUnknown, guard.ReasonUnavailable},
	} {
		web, _ := serve(t, failed{memory.NewServer().Issuer(), c.err}, everybody, nil)
		client := connect(t, web.URL)
		for _, request := range []struct{ method, path, body string }{
			{"POST", "/v1/locks/acquire", `{"resource":"r","leaseId":"L","ttlSeconds":600}`},
			{"POST", "/v1/locks/acquire", `{"resource":"r","leaseId":"L","ttlSeconds":600,"waitSeconds":60}`},
			{"POST", "/v1/locks/L/renew", `{"resource":"r","fencingToken":1,"ttlSeconds":600}`},
			{"DELETE", "/v1/locks/L?resource=r&fencingToken=1", ""},
		} {
			got := ask(t, web.URL, "", request.method, request.path, request.body)
			if got.status != c.status || got.problem() != c.problem || strings.Contains(got.text, cause.Error()) || got.header.Get("Retry-After") != c.retryAfter {
				t.Errorf("%v: %s %s: %d %s", c.err, request.method, request.path, got.status, got.text)
			}
		}
		_, acquired := client.Acquire(t.Context(), driver.Request{Resource: "r", LeaseID: "L", Owner: "o", TTL: time.Minute, Timeout: time.Minute})
		_, released := client.Release(t.Context(), claim)
		_, watched := client.Watch(t.Context(), driver.Watch{Resource: "r"}, func() {})
		var one [1]driver.Renewed
		var two [2]driver.Renewed
		client.Renew(t.Context(), []driver.Renewal{{Claim: claim, TTL: time.Minute}}, one[:])
		client.Renew(t.Context(), []driver.Renewal{{Claim: claim, TTL: time.Minute}, {Claim: other, TTL: time.Minute}}, two[:])
		for what, err := range map[string]error{
			"acquire": acquired, "release": released, "renew": one[0].Err, "renew the first": two[0].Err, "renew the second": two[1].Err,
		} {
			if guard.ReasonOf(err) != c.reason {
				t.Errorf("%v: %s: the client says %v", c.err, what, err)
			}
		}
		if guard.ReasonOf(watched) != c.watch {
			t.Errorf("%v: watch: the client says %v", c.err, watched)
		}
	}
	// Readiness and credentials that cannot be checked have the same types.
	web, _ := serve(t, failed{memory.NewServer().Issuer(), guard.ErrMarkAhead}, everybody, nil)
	ask(t, web.URL, "", "GET", "/readyz", "").want(t, 503, "issuer_behind")
	lacking := func(*http.Request) (*lockhttp.Identity, error) {
		return nil, guard.Setup("look up", guard.Claim{}, cause)
	}
	web, _ = serve(t, memory.NewServer().Issuer(), lacking, nil)
	ask(t, web.URL, "", "POST", "/v1/locks/acquire", `{"resource":"r","ttlSeconds":600}`).want(t, 500, "setup")
}

// TestVerdictsOfClient: the Go client's good renewals are carried out although one is
// forbidden and one is out of bounds, and the longest names fit into a request.
func TestVerdictsOfClient(t *testing.T) {
	t.Parallel()
	server := memory.NewServer()
	web, _ := serve(t, server.Issuer(), func(*http.Request) (*lockhttp.Identity, error) {
		return &lockhttp.Identity{Subject: "a", Tenant: "acme", Templates: []*guard.Template{closes}, Limits: lockhttp.Limits{MaxTTL: time.Hour}}, nil
	}, nil)
	client := connect(t, web.URL)
	var renewals []driver.Renewal
	for n := range client.Limits().Batch {
		name := fmt.Sprintf("acme:billing-close:%03d", n)
		name += strings.Repeat("<", guard.MaxResourceLen-len(name)) // six bytes in JSON
		renewals = append(renewals, driver.Renewal{Claim: server.Steal(name, "a", time.Minute), TTL: 10 * time.Minute})
	}
	renewals[2].TTL = 2 * time.Hour
	renewals[5].Claim = server.Steal("umbrella:billing-close:5", "u", time.Minute)
	results := make([]driver.Renewed, len(renewals))
	client.Renew(t.Context(), renewals, results)
	for n, got := range results {
		switch n {
		case 2:
			if !errors.Is(got.Err, guard.ErrInvalid) || !errors.Is(got.Err, guard.ErrUnavailable) {
				t.Errorf("out of bounds: %+v", got)
			}
		case 5:
			if got.State != driver.Unknown || !errors.Is(got.Err, guard.ErrSetup) {
				t.Errorf("forbidden: %+v", got)
			}
		default:
			if got.State != driver.Extended {
				t.Errorf("%d: %+v", n, got)
			}
		}
	}
}

// explained is an issuer that knows who ended each lease.
type explained struct{ *memory.Issuer }

func (explained) Why(_ context.Context, claim guard.Claim) error {
	if claim.Token == guard.NoToken {
		return nil // of no lease
	}
	return &driver.ForceUnlockedError{Actor: "ada", Reason: "it hangs", At: time.Unix(1, 0)}
}

// TestWhyOfClient: the Go client knows who cut a lease from the renewal or the release that
// finds it over, whether the server signs or not, and of no other lease.
func TestWhyOfClient(t *testing.T) {
	t.Parallel()
	who := func(*http.Request) (*lockhttp.Identity, error) {
		return &lockhttp.Identity{Subject: "a", AllResources: true, Audience: "ledger"}, nil
	}
	for what, opts := range map[string]*lockhttp.Options{"signed": {Signer: &signer{}}, "not signed": nil} {
		server := memory.NewServer()
		web, _ := serve(t, explained{server.Issuer()}, who, opts)
		client := connect(t, web.URL)
		why := func(claim guard.Claim) error { return client.(driver.Explainer).Why(t.Context(), claim) }
		for _, resource := range []string{"renewed", "released"} {
			request := driver.Request{Resource: resource, LeaseID: "L", Owner: "o", TTL: time.Minute, Timeout: time.Minute}
			g, err := client.Acquire(t.Context(), request)
			testkit.Must(t, err)
			claim := guard.Claim{Resource: resource, Token: g.Token, LeaseID: "L"}
			if err := why(claim); err != nil {
				t.Errorf("%s, %s: while it runs: %v", what, resource, err)
			}
			server.Expire(resource)
			server.Steal(resource, "another", time.Minute)
			if resource == "renewed" {
				var renewed [1]driver.Renewed
				client.Renew(t.Context(), []driver.Renewal{{Claim: claim, TTL: time.Minute}}, renewed[:])
				if renewed[0].State != driver.Over {
					t.Errorf("%s: %+v", what, renewed)
				}
			} else {
				if freed, err := client.Release(t.Context(), claim); freed || err != nil {
					t.Errorf("%s: %t %v", what, freed, err)
				}
			}
			var cut *driver.ForceUnlockedError
			if err := why(claim); !errors.As(err, &cut) || cut.Actor != "ada" || cut.Reason != "it hangs" || cut.At.Unix() != 1 {
				t.Errorf("%s, %s: %v", what, resource, err)
			}
			claim.Token++
			if err := why(claim); err != nil {
				t.Errorf("%s, %s: of another lease: %v", what, resource, err)
			}
		}
	}
}

// bounded is an issuer that grants only TTLs within its bounds.
type bounded struct {
	*memory.Issuer
	limits driver.Limits
	asked  atomic.Int64
}

func (b *bounded) Limits() driver.Limits { return b.limits }
func (b *bounded) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	b.asked.Store(int64(r.TTL))
	return b.Issuer.Acquire(ctx, r)
}

// TestReadyTTL: the lease that /readyz acquires is one that the issuer grants.
func TestReadyTTL(t *testing.T) {
	t.Parallel()
	const s = time.Second
	for _, c := range []struct{ low, high, step, want time.Duration }{
		{0, 0, 0, 10 * s}, {0, 5 * s, 0, 5 * s}, {15 * s, 60 * s, 0, 15 * s}, {0, 0, 4 * s, 8 * s}, {0, 0, 20 * s, 20 * s},
		{6 * s, 0, 6 * s, 6 * s}, {1, 3 * s, s, 3 * s}, {0, 2500 * time.Millisecond, s, 2 * s}, {0, 0, time.Microsecond, 10 * s},
	} {
		issuer := &bounded{Issuer: memory.NewServer().Issuer(), limits: driver.Limits{MinTTL: c.low, MaxTTL: c.high, TTLStep: c.step}}
		web, _ := serve(t, issuer, everybody, nil)
		if got := ask(t, web.URL, "", "GET", "/readyz", ""); got.status != 200 || time.Duration(issuer.asked.Load()) != c.want {
			t.Errorf("%+v: %d, with a TTL of %v", c, got.status, time.Duration(issuer.asked.Load()))
		}
	}
}

// TestHeldForDecades: a refusal is read as one however long the lease lasts.
func TestHeldForDecades(t *testing.T) {
	t.Parallel()
	server := memory.NewServer()
	web, _ := serve(t, server.Issuer(), everybody, nil)
	client := connect(t, web.URL)
	server.Steal("r", "x", 100*365*24*time.Hour)
	_, err := client.Acquire(t.Context(), driver.Request{Resource: "r", LeaseID: "L", Owner: "o", TTL: time.Minute, Timeout: time.Minute})
	if held, is := errors.AsType[*driver.HeldError](err); !is || held.Remaining < 10*365*24*time.Hour {
		t.Errorf("%v", err)
	}
	watching, err := client.Watch(t.Context(), driver.Watch{Resource: "r"}, func() {})
	testkit.Must(t, err)
	watching.Stop()
}

// TestFieldsOfAForceUnlock: what the operators' call finds wrong has its name on the wire.
func TestFieldsOfAForceUnlock(t *testing.T) {
	t.Parallel()
	issuer, operator, _ := postgres(t, 4)
	web, _ := serve(t, issuer, everybody, &lockhttp.Options{Admin: operator})
	for _, resource := range []string{"r", "s"} {
		ask(t, web.URL, "", "POST", "/v1/locks/acquire", `{"resource":"`+resource+`","ttlSeconds":600}`)
	}
	for _, c := range [][3]string{
		{"r", `{"actorId":"a\u0007","reason":"x"}`, "actorId"},
		{"r", `{"actorId":" ","reason":"x"}`, "actorId"},
		{"r", `{"actorId":"a","reason":"x\u0007"}`, "reason"},
		{"r", `{"actorId":"a","reason":"x","leaseId":"\u0007"}`, "leaseId"},
		{"r", `{"actorId":"a","reason":"x","requestId":"\u0007"}`, "requestId"},
		{"r", `{"actorId":"a","reason":"x","requestId":"once"}`, ""},
		{"s", `{"actorId":"a","reason":"x","requestId":"once"}`, "requestId"},
	} {
		if got := ask(t, web.URL, "", "POST", "/v1/resources/"+c[0]+"/force-unlock", c[1]); got.str("field") != c[2] {
			t.Errorf("%s: %d for %q, want %q: %s", c[1], got.status, got.str("field"), c[2], got.text)
		}
	}
}

// TestPageIsAClient: the page is the same for everybody, runs no script but its own, and
// identifies nobody; what it shows comes from requests that do.
func TestPageIsAClient(t *testing.T) {
	t.Parallel()
	web, _ := serve(t, memory.NewServer().Issuer(), people, nil)
	for path, part := range map[string]string{"/ui": `src="ui/page.js"`, "/ui?": "fencectl marks raise RESOURCE TOKEN --lease-id ID", // and not how to cut the next holder
		"/ui/page.js": "use strict", "/ui/page.css": "color-scheme"} {
		got := ask(t, web.URL, "", "GET", path, "")
		policy := got.header.Get("Content-Security-Policy")
		if got.status != 200 || !strings.Contains(got.text, part) || !strings.HasPrefix(policy, "default-src 'none'; script-src 'self';") || got.header.Get("Set-Cookie") != "" {
			t.Errorf("%s: %d %v %s", path, got.status, got.header, got.text)
		}
	}
	r, _ := http.NewRequest("GET", web.URL+"/v1/time", nil)
	r.AddCookie(&http.Cookie{Name: "fencepost_page", Value: "YWNtZS0x"})
	send(t, r).want(t, 401)
}
