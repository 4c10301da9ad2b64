package lockhttp_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/driver/drivertest"
	"github.com/fencepost-go/fencepost/lockclient/driver/memory"
	"github.com/fencepost-go/fencepost/lockclient/internal/leasetest"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin/admintest"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin/pgadmin"
	"github.com/fencepost-go/fencepost/lockclient/lockhttp"
	"github.com/fencepost-go/fencepost/lockclient/pglock"
)

const problemPrefix = "tag:fencepost-go.github.io,2026:problem/"

// response is an answer that was read.
type response struct {
	to     string // the request
	status int
	header http.Header
	text   string
	body   map[string]any
}

func (r response) problem() string {
	name, _ := r.body["type"].(string)
	return strings.TrimPrefix(name, problemPrefix)
}

func (r response) str(name string) string {
	s, _ := r.body[name].(string)
	return s
}

// want fails the test unless the response has the status and, if one is given, the problem.
func (r response) want(t testing.TB, status int, problem ...string) response {
	t.Helper()
	if r.status != status || len(problem) > 0 && r.problem() != problem[0] {
		t.Errorf("%.300s: %d %s, want %d %v", r.to, r.status, r.text, status, problem)
	}
	return r
}

// ask sends a request as the identity that the token names.
func ask(t testing.TB, base, token, method, path, body string) response {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, base+path, strings.NewReader(body))
	testkit.Must(t, err)
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	got := send(t, r)
	got.to = fmt.Sprintf("%s %s by %q with %s", method, path, token, body)
	return got
}

func send(t testing.TB, r *http.Request) response {
	t.Helper()
	resp, err := http.DefaultClient.Do(r)
	testkit.Must(t, err)
	defer resp.Body.Close()
	return read(t, resp)
}

func read(t testing.TB, resp *http.Response) response {
	t.Helper()
	text, err := io.ReadAll(resp.Body)
	testkit.Must(t, err)
	got := response{status: resp.StatusCode, header: resp.Header, text: string(text)}
	_ = json.Unmarshal(text, &got.body) // not every answer is JSON
	return got
}

// invalidated is the token of the claim that a force unlock returns.
func (r response) invalidated() string {
	claim, _ := r.body["invalidated"].(map[string]any)
	token, _ := claim["token"].(string)
	return token
}

var closes = guard.Must(guard.NewTemplate("{tenant}:billing-close:{period}"))

// people are the identities of most tests, by their tokens.
func people(r *http.Request) (*lockhttp.Identity, error) {
	token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	id := &lockhttp.Identity{Subject: token, Templates: []*guard.Template{closes}}
	switch token {
	case "acme-1", "acme-2":
		id.Tenant = "acme"
	case "acme-ops":
		id.Tenant, id.Operator = "acme", true
	case "umbrella-1":
		id.Tenant = "umbrella"
	case "umbrella-ops":
		id.Tenant, id.Operator = "umbrella", true
	case "root":
		id.AllResources, id.Operator = true, true
	case "named":
		id.Tenant, id.Owner = "acme", "named"
	case "store down":
		return nil, guard.Unavailable("authenticate", guard.Claim{}, io.ErrUnexpectedEOF)
	default:
		return nil, guard.Invalid("token", token, "is unknown")
	}
	return id, nil
}

// record returns the response of a handler that is called directly.
func record(h http.Handler, method, path, token, body string) response {
	return recordUnder(context.Background(), h, method, path, token, body)
}

// recordUnder is record for a client that goes away when ctx ends.
func recordUnder(ctx context.Context, h http.Handler, method, path, token, body string) response {
	r := httptest.NewRequestWithContext(ctx, method, path, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Authorization", "Bearer "+token)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	got := response{to: fmt.Sprintf("%s %s by %q with %s", method, path, token, body), status: w.Code, header: w.Header(), text: w.Body.String()}
	_ = json.Unmarshal(w.Body.Bytes(), &got.body)
	return got
}

func decode(t testing.TB, text string, v any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), v); err != nil {
		t.Errorf("%v: %s", err, text)
	}
}

// everybody trusts every caller.
func everybody(*http.Request) (*lockhttp.Identity, error) {
	return &lockhttp.Identity{Subject: "test", AllResources: true, Operator: true}, nil
}

// usual is the default of [lockhttp.Options.Timeout], for tests in a bubble.
const usual = 1500 * time.Millisecond

// open returns a lock server that logs to the test and, unless opts say otherwise, waits for
// its issuer for as long as a slow machine needs.
func open(t testing.TB, issuer driver.Issuer, who lockhttp.Authenticate, opts *lockhttp.Options) *lockhttp.Server {
	t.Helper()
	o := lockhttp.Options{Timeout: testkit.Patience, ReadyWithin: testkit.Patience, Logger: testkit.Logger(t)}
	if opts != nil {
		o = *opts
		o.Timeout = cmp.Or(o.Timeout, testkit.Patience)
		o.ReadyWithin = cmp.Or(o.ReadyWithin, testkit.Patience)
		o.Logger = cmp.Or(o.Logger, testkit.Logger(t))
	}
	o.ShowHolders = true // TestHoldersAreHidden has the default
	return guard.Must(lockhttp.New(issuer, who, &o))
}

// serve runs a lock server as from open for the test's duration.
func serve(t testing.TB, issuer driver.Issuer, who lockhttp.Authenticate, opts *lockhttp.Options) (*httptest.Server, *lockhttp.Server) {
	t.Helper()
	handler := open(t, issuer, who, opts)
	server := httptest.NewServer(handler)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
		defer cancel()
		testkit.Check(t, handler.Close(ctx))
		server.Close()
	})
	return server, handler
}

// connect returns the Go client, with connections of its own.
func connect(t testing.TB, url string) driver.Issuer {
	t.Helper()
	i := guard.Must(lockhttp.NewIssuer(url, &http.Client{Transport: &http.Transport{}}))
	t.Cleanup(func() { i.Close() })
	return i
}

func harness(server *httptest.Server) drivertest.Harness {
	return drivertest.Harness{
		Issuer: func(t testing.TB) driver.Issuer { return connect(t, server.URL) },
		Network: func(t testing.TB) (driver.Issuer, drivertest.Network) {
			proxy := drivertest.NewProxy(t, "tcp", server.Listener.Addr().String())
			return connect(t, "http://"+proxy.Addr()), proxy
		},
	}
}

// TestConformanceOnMemory: the client and the server together are an issuer.
func TestConformanceOnMemory(t *testing.T) {
	t.Parallel()
	drivertest.Run(t, func(t *testing.T) drivertest.Harness {
		memory := memory.NewServer()
		server, _ := serve(t, memory.Issuer(), everybody, nil)
		h := harness(server)
		h.Pass = memory.Move
		h.Purge = func(testing.TB) {} // it keeps every resource
		return h
	})
}

// TestConformanceOnPostgreSQL: likewise, with two servers on one database.
func TestConformanceOnPostgreSQL(t *testing.T) {
	t.Parallel()
	drivertest.Run(t, func(t *testing.T) drivertest.Harness {
		pool := leasetest.Migrated(t)
		var servers []*httptest.Server
		for range 2 {
			issuer := leasetest.Patient(guard.Must(pglock.New(pool, nil)))
			t.Cleanup(func() { issuer.Close() })
			server, _ := serve(t, issuer, everybody, nil)
			servers = append(servers, server)
		}
		h := harness(servers[0])
		next := 0
		h.Issuer = func(t testing.TB) driver.Issuer {
			next++
			return connect(t, servers[next%2].URL)
		}
		h.TTL = time.Minute
		// The server's clock cannot be moved, so its leases are shortened.
		h.Pass = func(d time.Duration) {
			_, err := pool.Exec(t.Context(), `UPDATE fencepost.leases SET acquired_at = acquired_at - $1::bigint * interval '1 microsecond',
				expires_at = expires_at - $1::bigint * interval '1 microsecond' WHERE resource <> ''`, d.Microseconds())
			testkit.Check(t, err)
		}
		h.Purge = func(t testing.TB) {
			operator, err := pgadmin.New(pool, &pgadmin.Options{OpTimeout: testkit.Patience, Logger: testkit.Logger(t)})
			testkit.Must(t, err)
			time.Sleep(2 * time.Millisecond)
			if _, err := operator.Purge(t.Context(), &lockadmin.PurgeOptions{OlderThan: time.Millisecond}); err != nil {
				t.Fatal(err)
			}
		}
		return h
	})
}

// as is a client with a token.
type as string

func (token as) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+string(token))
	return http.DefaultTransport.RoundTrip(r)
}

// TestAdmin runs the suite of the operators' calls on a lock server of PostgreSQL, as an
// operator of all resources. A tenant's operator is refused what is another's, and a server
// without operators' calls says so.
func TestAdmin(t *testing.T) {
	t.Parallel()
	issuer, operator, _ := postgres(t, 4)
	server, _ := serve(t, issuer, people, &lockhttp.Options{Admin: operator, Timeout: testkit.Patience})
	to := func(url, token string) *lockhttp.Admin {
		return guard.Must(lockhttp.NewAdmin(url, &http.Client{Transport: as(token)}))
	}
	client := guard.Must(lockhttp.NewIssuer(server.URL, &http.Client{Transport: as("root")}))
	t.Cleanup(func() { client.Close() })
	admintest.Run(t, admintest.Engine{Admin: to(server.URL, "root"), Issuer: client})

	for token, resource := range map[string]string{"umbrella-ops": "acme:billing-close:2026-04", "acme-1": "acme:billing-close:2026-04", "nobody": "acme:billing-close:2026-04"} {
		_, err := to(server.URL, token).ForceUnlock(t.Context(), resource, "ada", "mischief", nil)
		if !errors.Is(err, fs.ErrPermission) || !errors.Is(err, guard.ErrSetup) {
			t.Errorf("%s cuts %s: %v", token, resource, err)
		}
	}
	// What concerns every resource is refused to an operator of some.
	for _, request := range [][3]string{{"POST", "/v1/advance", `{"fencingToken":5}`}, {"GET", "/v1/epoch", ""}, {"POST", "/v1/epoch/raise", `{}`}, {"POST", "/v1/purge", `{}`}} {
		for token, want := range map[string]int{"acme-ops": 403, "acme-1": 403, "root": 200} {
			if got := ask(t, server.URL, token, request[0], request[1], request[2]); got.status != want {
				t.Errorf("%s, %s: %d %s", token, request[1], got.status, got.text)
			}
		}
	}
	if got := ask(t, server.URL, "acme-1", "POST", "/v1/resources/acme:billing-close:2026-04/advance", `{"fencingToken":5}`); got.status != 403 {
		t.Errorf("a worker advances: %+v", got)
	}
	bare, _ := serve(t, memory.NewServer().Issuer(), people, nil)
	var says *lockadmin.UnsupportedError
	if _, err := to(bare.URL, "root").ForceUnlock(t.Context(), "r", "ada", "it hangs", nil); !errors.As(err, &says) {
		t.Errorf("a server without operators' calls: %v", err)
	}
	if _, err := to(bare.URL, "root").RaiseEpoch(t.Context()); !errors.As(err, &says) {
		t.Errorf("a server without operators' calls: %v", err)
	}
}

// TestEmptyPages: a page without rows is an empty list and not null, which no reader goes through.
func TestEmptyPages(t *testing.T) {
	t.Parallel()
	issuer, operator, _ := postgres(t, 4)
	server, _ := serve(t, issuer, people, &lockhttp.Options{Admin: operator})
	for path, empty := range map[string]string{"/v1/locks": `"locks":[]`, "/v1/audit": `"records":[]`} {
		if got := ask(t, server.URL, "acme-ops", "GET", path, ""); !strings.Contains(got.text, empty) {
			t.Errorf("%s: %s", path, got.text)
		}
	}
}
