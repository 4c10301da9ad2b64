package lockserver

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/gorillamux"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/guard/proof"
	"github.com/fencepost-go/fencepost/httpfence"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/s3fence"
	"github.com/fencepost-go/fencepost/s3fence/s3test"
	"github.com/fencepost-go/fencepost/sqlfence"
	"github.com/fencepost-go/fencepost/sqlfence/sqladmin"
)

// wrote is a worker's report of one round.
type wrote struct {
	Token, LeaseID string
	Held           bool
	HTTP, SQL, S3  string
}

// worker is a program that holds a lease.
type worker struct {
	in  io.WriteCloser
	out *bufio.Reader
	cmd *exec.Cmd
}

func (w *worker) next(t *testing.T) (got wrote) {
	t.Helper()
	line, err := w.out.ReadString('\n')
	if err != nil || json.Unmarshal([]byte(line), &got) != nil {
		t.Fatalf("%v %s", err, line)
	}
	return got
}

// TestWorkers: a worker in Python and one in Node hold the same lease in turn,
// write to a service that verifies their proofs, a table and an object, and are refused by all three once
// the other has taken over. Go reads what they stored.
func TestWorkers(t *testing.T) {
	url, handler, pool, _ := serve(t)
	db, err := sqlfence.Pgx(pool, nil)
	testkit.Must(t, err)
	if _, err := pool.Exec(t.Context(), `CREATE SCHEMA billing; CREATE TABLE billing.closes (tenant text, period text, note text NOT NULL, PRIMARY KEY (tenant, period))`); err != nil {
		t.Fatal(err)
	}
	if err := sqladmin.Pgx(pool).InstallTrigger(t.Context(), sqladmin.Trigger{
		Table: []string{"billing", "closes"}, Resource: closes, Columns: map[string]string{"tenant": "tenant", "period": "period"},
	}); err != nil {
		t.Fatal(err)
	}
	resource := func(r *http.Request) (string, error) { return closes.Name("demo", r.PathValue("period")) }
	keys, err := proof.NewKeys(t.Context(), proof.Static(signingKey.Public()), nil)
	testkit.Must(t, err)
	verify := proof.NewVerifier(keys).Hook(func(*http.Request) (string, error) { return "demo", nil })
	fence, err := httpfence.New(db, resource, &httpfence.Options{Verify: verify})
	testkit.Must(t, err)
	service := http.NewServeMux()
	service.Handle("PUT /demo/closes/{period}", fence.Admit(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })))
	service.Handle("/", handler)
	web := httptest.NewServer(service)
	defer web.Close()
	store := s3test.New(t, nil)
	store.CreateBucket("bucket")
	format, err := filepath.Abs("../../../s3fence/testdata/fencepost_s3.py")
	testkit.Must(t, err)
	start := func(owner string, args ...string) *worker {
		path, err := exec.LookPath(args[0])
		if err != nil {
			t.Fatalf("this test needs %s, which .ci/setup servers installs: %v", args[0], err)
		}
		cmd := exec.CommandContext(t.Context(), path, args[1:]...)
		cmd.Stderr = os.Stderr
		cmd.Env = append(os.Environ(), "URL="+web.URL, "TOKEN=demo-worker", "RESOURCE=demo:billing-close:2026-04", "PERIOD=2026-04", "OWNER="+owner,
			"DATABASE_URL="+pool.Config().ConnString(), "S3_URL="+store.URL()+"/bucket/closes/2026-04", "FENCEPOST_S3="+format, "TTL=600", "PYTHONDONTWRITEBYTECODE=1")
		in, err := cmd.StdinPipe()
		testkit.Must(t, err)
		out, err := cmd.StdoutPipe()
		testkit.Must(t, err)
		testkit.Must(t, cmd.Start())
		return &worker{in, bufio.NewReader(out), cmd}
	}
	expect := func(what string, got wrote, word string) {
		t.Helper()
		if got.HTTP != word || got.SQL != word || got.S3 != word {
			t.Errorf("%s: %+v, want %s", what, got, word)
		}
	}
	programs := map[string][]string{
		"python": {"python3", "../../../examples/lockserver/workers/worker.py"},
		"node":   {"node", "../../../examples/lockserver/workers/worker.mjs"},
	}
	var last guard.Token
	for _, order := range [][2]string{{"python", "node"}, {"node", "python"}} {
		old := start(order[0], programs[order[0]]...)
		first := old.next(t)
		expect(order[0], first, "written")
		fmt.Fprintln(old.in, "second")
		expect(order[0]+" again", old.next(t), "written")
		// The lease is lost, as if it had expired during a pause.
		post(t, url, "demo-worker", "/v1/locks/release", fmt.Sprintf(`{"resource":"demo:billing-close:2026-04","leaseId":%q,"fencingToken":%q}`, first.LeaseID, first.Token))
		young := start(order[1], programs[order[1]]...)
		next := young.next(t)
		expect(order[1], next, "written")
		fmt.Fprintln(old.in, "late")
		expect(order[0]+" after its successor", old.next(t), "stale")
		fmt.Fprintln(young.in, "on")
		expect(order[1]+" goes on", young.next(t), "written")
		for _, w := range []*worker{old, young} {
			w.in.Close()
			testkit.Check(t, w.cmd.Wait())
		}
		older, newer := guard.Must(guard.ParseToken(first.Token)), guard.Must(guard.ParseToken(next.Token))
		if older <= last || newer <= older {
			t.Errorf("tokens %v, %v, %v", last, older, newer)
		}
		last = newer
		want := "on of " + order[1]
		var note string
		if err := pool.QueryRow(t.Context(), `SELECT note FROM billing.closes`).Scan(&note); err != nil || note != want {
			t.Errorf("the table has %q, %v", note, err)
		}
		if got := stored(t, store); got != want {
			t.Errorf("the object has %q", got)
		}
	}
}

// stored is what s3fence reads from the object.
func stored(t *testing.T, store *s3test.Server) string {
	t.Helper()
	bucket, err := s3fence.Open(t.Context(), store.Client(), "bucket", nil)
	testkit.Must(t, err)
	objects, err := bucket.Objects(s3fence.Sealed, &s3fence.ObjectsOptions{InsecureAnyResource: true})
	testkit.Must(t, err)
	got, err := objects.Get(t.Context(), "closes/2026-04")
	testkit.Must(t, err)
	defer got.Body.Close()
	text, err := io.ReadAll(got.Body)
	testkit.Must(t, err)
	return string(text)
}

func post(t *testing.T, url, token, path, body string) string {
	t.Helper()
	return send(t, url, token, path, body, http.StatusOK)
}

// send posts a body and wants a status.
func send(t *testing.T, url, token, path, body string, status int) string {
	t.Helper()
	r, _ := http.NewRequest("POST", url+path, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Authorization", "Bearer "+token)
	resp, err := http.DefaultClient.Do(r)
	testkit.Must(t, err)
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != status {
		t.Fatalf("%s: %s %s %v", path, resp.Status, answer, err)
	}
	return string(answer)
}

// TestForgedForms: the page has no cookie of its own, and a request that a form of another
// site can send, with whatever cookie, cuts nothing. The control is the same as JSON.
func TestForgedForms(t *testing.T) {
	url, _, _, _ := serve(t)
	post(t, url, "demo-worker", "/v1/locks/acquire", `{"resource":"demo:billing-close:1","leaseId":"L","ttlSeconds":900}`)
	for _, kind := range []string{"application/x-www-form-urlencoded", "text/plain", "multipart/form-data", ""} {
		r, _ := http.NewRequest("POST", url+"/v1/resources/demo:billing-close:1/force-unlock", strings.NewReader(`{"actorId":"ada","reason":"x"}`))
		r.Header.Set("Content-Type", kind)
		r.Header.Set("Authorization", "Bearer demo-ops") // as of a hook that takes a cookie
		resp, err := http.DefaultClient.Do(r)
		testkit.Must(t, err)
		resp.Body.Close()
		if resp.StatusCode != http.StatusUnsupportedMediaType || len(resp.Cookies()) > 0 {
			t.Errorf("%q: %s, cookies %v", kind, resp.Status, resp.Cookies())
		}
	}
	if got := post(t, url, "demo-worker", "/v1/locks/L/renew", `{"resource":"demo:billing-close:1","fencingToken":1,"ttlSeconds":900}`); !strings.Contains(got, "extended") {
		t.Errorf("the lease: %s", got)
	}
	if got := post(t, url, "demo-ops", "/v1/resources/demo:billing-close:1/force-unlock", `{"actorId":"ada","reason":"x"}`); !strings.Contains(got, `"raised":true`) {
		t.Errorf("as JSON: %s", got)
	}
}

// TestDescription: the document that the server returns is valid, and every
// operation's requests and answers match it, refusals included.
func TestDescription(t *testing.T) {
	_, handler, _, _ := serve(t)
	get := func(path string) []byte {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		return w.Body.Bytes()
	}
	doc, err := openapi3.NewLoader().LoadFromData(get("/openapi.json"))
	testkit.Must(t, err)
	testkit.Must(t, doc.Validate(t.Context()))
	// Fields may be added to responses; here every field that there is must be described.
	closed := false
	for _, schema := range doc.Components.Schemas {
		if schema.Value.Type.Is("object") {
			schema.Value.AdditionalProperties = openapi3.BoolSchema{Has: &closed}
		}
	}
	router, err := gorillamux.NewRouter(doc)
	testkit.Must(t, err)
	seen := map[string]bool{}
	const demo, r = "demo-ops", "demo:billing-close:1"
	var token, lease string
	// ask sends a request and checks both sides against the document.
	ask := func(who, method, path, body string, status int, wellFormed bool) string {
		t.Helper()
		body = strings.NewReplacer("TOKEN", token, "LEASE", lease).Replace(body)
		path = strings.NewReplacer("TOKEN", token, "LEASE", lease).Replace(path)
		req := httptest.NewRequest(method, path, strings.NewReader(body))
		req.Header.Set("Authorization", "Bearer "+who)
		if body != "" {
			req.Header.Set("Content-Type", "application/json")
		}
		ctx := t.Context()
		if strings.HasPrefix(path, "/v1/watch") {
			var cancel context.CancelFunc
			ctx, cancel = context.WithCancel(ctx)
			defer cancel()
			req = req.WithContext(ctx)
			w := &firstWrite{ResponseRecorder: httptest.NewRecorder(), then: cancel}
			handler.ServeHTTP(w, req)
			if w.Code != status || w.Header().Get("Content-Type") != "text/event-stream" {
				t.Errorf("%s %s: %d %v", method, path, w.Code, w.Header())
			}
			if route, _, err := router.FindRoute(req); err != nil {
				t.Errorf("%s %s: %v", method, path, err)
			} else {
				seen[route.Operation.OperationID] = true
			}
			return ""
		}
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, req)
		answer := w.Body.String()
		if w.Code != status {
			t.Errorf("%s %s %s: %d, want %d: %s", method, path, body, w.Code, status, answer)
		}
		again := httptest.NewRequest(method, path, strings.NewReader(body))
		again.Header = req.Header
		id, requestErr, answerErr := matches(router, again, w.Result())
		seen[id] = true
		if (requestErr == nil) != wellFormed {
			t.Errorf("%s %s %s: the document says of the request: %v", method, path, body, requestErr)
		}
		if answerErr != nil {
			t.Errorf("%s %s %s: the document says of the answer %s: %v", method, path, body, answer, answerErr)
		}
		return answer
	}
	part := func(answer, name string) string {
		_, rest, _ := strings.Cut(answer, `"`+name+`":"`)
		text, _, _ := strings.Cut(rest, `"`)
		return text
	}
	got := ask(demo, "POST", "/v1/locks/acquire", `{"resource":"`+r+`","ttlSeconds":600,"ownerId":"a","metadata":"m","waitSeconds":0.5,"waiting":true,"notAfter":"2100-01-01T00:00:00Z"}`, 200, true)
	token, lease = part(got, "token"), part(got, "leaseId")
	ask(demo, "POST", "/v1/locks/acquire", `{"resource":"`+r+`","ttlSeconds":600}`, 409, true)
	ask("demo-worker", "POST", "/v1/locks/acquire", `{"resource":"`+r+`","ttlSeconds":600}`, 409, true)
	ask(demo, "POST", "/v1/locks/LEASE/renew", `{"ttlSeconds":600}`, 200, true)
	ask(demo, "POST", "/v1/locks/LEASE/renew", "", 200, true)
	ask(demo, "POST", "/v1/locks/LEASE/renew", `{"resource":"`+r+`","fencingToken":TOKEN,"ttlSeconds":600}`, 200, true)
	ask(demo, "POST", "/v1/locks/renew", `{"leaseId":"LEASE","resource":"`+r+`","fencingToken":"TOKEN","ttlSeconds":600}`, 200, true)
	ask(demo, "GET", "/v1/locks?prefix=demo&limit=1&state=held", "", 200, true)
	ask(demo, "GET", "/v1/resources/"+r, "", 200, true)
	ask("demo-worker", "GET", "/v1/resources/"+r, "", 200, true)
	ask(demo, "POST", "/v1/resources/"+r+"/force-unlock", `{"actorId":"ada","reason":"x","leaseId":"LEASE"}`, 200, true)
	ask(demo, "POST", "/v1/resources/"+r+"/force-unlock", `{"actorId":"ada","reason":"x","leaseId":"LEASE"}`, 409, true)
	ask(demo, "POST", "/v1/locks/LEASE/renew", `{"resource":"`+r+`","fencingToken":"TOKEN","ttlSeconds":600}`, 404, true)
	ask(demo, "POST", "/v1/locks/renew", `{"leaseId":"x","resource":"umbrella:billing-close:1","fencingToken":"1","ttlSeconds":600}`, 403, true)
	ask(demo, "GET", "/v1/audit?limit=5", "", 200, true)
	got = ask(demo, "POST", "/v1/locks/acquire", `{"resource":"`+r+`","ttlSeconds":600}`, 200, true)
	token, lease = part(got, "token"), part(got, "leaseId")
	ask(demo, "DELETE", "/v1/locks/LEASE?resource="+r+"&fencingToken=TOKEN", "", 200, true)
	ask(demo, "DELETE", "/v1/locks/LEASE?resource="+r, "", 404, true)
	ask(demo, "POST", "/v1/locks/release", `{"resource":"`+r+`","leaseId":"LEASE"}`, 404, true)
	ask(demo, "POST", "/v1/locks/acquire", `{"resource":"`+r+`","leaseId":"LEASE","ttlSeconds":600}`, 410, true)
	ask(demo, "GET", "/v1/resources/demo:billing-close:none", "", 404, true)
	ask(demo, "POST", "/v1/resources/"+r+"/advance", `{"fencingToken":"5"}`, 200, true)
	ask("demo-worker", "POST", "/v1/resources/"+r+"/advance", `{"fencingToken":5}`, 403, true)
	ask(demo, "POST", "/v1/advance", `{"fencingToken":5}`, 403, true)
	ask("root-ops", "POST", "/v1/advance", `{"fencingToken":5}`, 200, true)
	ask("root-ops", "GET", "/v1/epoch", "", 200, true)
	ask("root-ops", "POST", "/v1/epoch/raise", "", 200, true)
	ask("root-ops", "POST", "/v1/purge", `{"olderThanSeconds":3600,"batch":10,"lockTimeoutSeconds":0.1}`, 200, true)
	ask(demo, "GET", "/v1/time", "", 200, true)
	ask("", "GET", "/health", "", 200, true)
	ask("", "GET", "/readyz", "", 200, true)
	ask("", "GET", "/openapi.json", "", 200, true)
	ask(demo, "GET", "/v1/watch?resource="+r, "", 200, true)
	// The server does not allow what the document does not allow.
	ask("umbrella-1", "GET", "/v1/resources/"+r, "", 403, true)
	ask("nobody", "GET", "/v1/locks", "", 401, true)
	ask(demo, "POST", "/v1/locks/acquire", `{"resource":"`+r+`"}`, 400, false)
	ask(demo, "POST", "/v1/locks/acquire", `{"resource":"`+r+`","ttlSeconds":"600"}`, 400, false)
	ask(demo, "POST", "/v1/locks/acquire", `{"resource":"`+r+`","ttlSeconds":600,"ttl":1}`, 400, false)
	ask(demo, "POST", "/v1/locks/renew", `{"resource":"`+r+`"}`, 400, false)
	ask(demo, "POST", "/v1/locks/LEASE/renew", `{"resource":"`+r+`","fencingToken":"01","ttlSeconds":600}`, 400, false)
	ask(demo, "DELETE", "/v1/locks/LEASE", "", 404, true)
	ask(demo, "GET", "/v1/locks?state=lost", "", 400, false)
	ask(demo, "GET", "/v1/locks?limit=1001", "", 400, false)
	ask(demo, "GET", "/v1/locks?limit=0", "", 400, false)

	for path, item := range doc.Paths.Map() {
		for method, operation := range item.Operations() {
			if !seen[operation.OperationID] {
				t.Errorf("%s %s was not tried", method, path)
			}
		}
	}
	// The control: another answer does not match.
	req := httptest.NewRequest("GET", "/v1/time", nil)
	for _, spoiled := range []string{`{}`, `{"serverTime":5}`, `{"serverTime":"2026-01-01T00:00:00Z","x":1}`} {
		resp := &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewBufferString(spoiled))}
		if _, _, err := matches(router, req, resp); err == nil {
			t.Errorf("accepted: %s", spoiled)
		}
	}
}

// matches returns how a request and its answer violate the document.
func matches(router routers.Router, r *http.Request, resp *http.Response) (id string, request, answer error) {
	route, params, err := router.FindRoute(r)
	if err != nil {
		return "", err, err
	}
	in := &openapi3filter.RequestValidationInput{
		Request: r, PathParams: params, Route: route,
		Options: &openapi3filter.Options{AuthenticationFunc: openapi3filter.NoopAuthenticationFunc},
	}
	request = openapi3filter.ValidateRequest(r.Context(), in)
	answer = openapi3filter.ValidateResponse(r.Context(), &openapi3filter.ResponseValidationInput{
		RequestValidationInput: in, Status: resp.StatusCode, Header: resp.Header, Body: resp.Body,
		Options: &openapi3filter.Options{IncludeResponseStatus: true},
	})
	if answer == nil && resp.Header.Get("Content-Type") == "" {
		answer = fmt.Errorf("there is no Content-Type")
	}
	return route.Operation.OperationID, request, answer
}

// firstWrite ends a stream after its first write.
type firstWrite struct {
	*httptest.ResponseRecorder
	then func()
}

func (f *firstWrite) Write(b []byte) (int, error) {
	defer f.then()
	return f.ResponseRecorder.Write(b)
}
