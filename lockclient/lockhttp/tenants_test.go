package lockhttp_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/longtest"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/driver/memory"
	"github.com/fencepost-go/fencepost/lockclient/internal/leasetest"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin/pgadmin"
	"github.com/fencepost-go/fencepost/lockclient/lockhttp"
	"github.com/fencepost-go/fencepost/lockclient/pglock"

	"github.com/jackc/pgx/v5/pgxpool"
)

// postgres is an issuer on a database of its own, with its operators' calls.
func postgres(t testing.TB, conns int32) (driver.Issuer, *pgadmin.Operator, *pgxpool.Pool) {
	t.Helper()
	pool := leasetest.Migrated(t)
	config := pool.Config()
	config.MaxConns = conns
	config.ConnConfig.RuntimeParams["application_name"] = "lockserver"
	own, err := pgxpool.NewWithConfig(t.Context(), config)
	testkit.Must(t, err)
	issuer := leasetest.Patient(guard.Must(pglock.New(own, &pglock.Options{RenewConns: 1})))
	operator, err := pgadmin.New(own, &pgadmin.Options{OpTimeout: testkit.Patience, Logger: testkit.Logger(t)})
	testkit.Must(t, err)
	t.Cleanup(func() { issuer.Close(); own.Close() })
	return issuer, operator, pool
}

// TestTenants: lists, pages, the audit and refusals show an identity its own
// resources and no trace of others, and the lease IDs of other holders only to
// identities that may see them.
func TestTenants(t *testing.T) {
	t.Parallel()
	issuer, operator, _ := postgres(t, 4)
	web, _ := serve(t, issuer, people, &lockhttp.Options{Admin: operator})
	for n := range 7 {
		for _, tenant := range []string{"acme", "umbrella"} {
			body := fmt.Sprintf(`{"resource":"%s:billing-close:%d","leaseId":"%s-%d","metadata":"of %s","ttlSeconds":600}`, tenant, n, tenant, n, tenant)
			ask(t, web.URL, tenant+"-1", "POST", "/v1/locks/acquire", body).want(t, 200)
		}
	}
	names := func(token, query string) (names []string) {
		for after := ""; ; {
			got := ask(t, web.URL, token, "GET", "/v1/locks?limit=3"+query+"&after="+after, "")
			if got.status != 200 {
				t.Fatalf("%+v", got)
			}
			if strings.HasPrefix(token, "acme") && strings.Contains(got.text, "umbrella") {
				t.Errorf("%s sees %s", token, got.text)
			}
			if token == "acme-2" && (strings.Contains(got.text, "leaseId") || strings.Contains(got.text, "oken")) {
				t.Errorf("%s sees the holders' leases: %s", token, got.text)
			}
			for _, l := range got.body["locks"].([]any) {
				names = append(names, l.(map[string]any)["resource"].(string))
			}
			if after = got.str("next"); after == "" {
				return names
			}
		}
	}
	var all []string
	for n := range 7 {
		all = append(all, fmt.Sprintf("acme:billing-close:%d", n))
	}
	for query, want := range map[string][]string{
		"": all, "&prefix=acme": all, "&prefix=acme:billing-close": all, "&prefix=acme:billing-close:3": {all[3]},
		"&prefix=umbrella": nil, "&prefix=acme:b": nil, "&prefix=*": nil, "&prefix=acme:billing-close:*": nil, "&state=free": nil, "&state=held": all,
	} {
		if got := names("acme-2", query); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%q lists %q, want %q", query, got, want)
		}
	}
	if got := names("root", ""); len(got) != 14 {
		t.Errorf("root sees %q", got)
	}
	// What exists and what does not are answered alike.
	there := ask(t, web.URL, "acme-1", "GET", "/v1/resources/umbrella:billing-close:1", "")
	nowhere := ask(t, web.URL, "acme-1", "GET", "/v1/resources/umbrella:billing-close:none", "")
	delete(there.body, "serverTime")
	delete(nowhere.body, "serverTime")
	if fmt.Sprint(there.body) != fmt.Sprint(nowhere.body) || there.status != 403 {
		t.Errorf("%+v\n%+v", there, nowhere)
	}
	// The refusal of a lease of the same tenant says who has it, and no more.
	refused := ask(t, web.URL, "acme-2", "POST", "/v1/locks/acquire", `{"resource":"acme:billing-close:1","ttlSeconds":600}`)
	if holder, _ := refused.body["holder"].(map[string]any); holder["ownerId"] != "acme-1" || holder["metadata"] != "of acme" || holder["leaseId"] != nil || holder["token"] != nil {
		t.Errorf("%+v", refused)
	}

	unlock := func(token string) response {
		return ask(t, web.URL, token, "POST", "/v1/resources/acme:billing-close:1/force-unlock", `{"actorId":"ada","reason":"it hangs","leaseId":"acme-1"}`)
	}
	for _, token := range []string{"acme-1", "umbrella-ops"} {
		if got := unlock(token); got.status != 403 {
			t.Errorf("%s: %+v", token, got)
		}
	}
	cut := unlock("acme-ops")
	if cut.status != 200 || cut.body["raised"] != false || cut.invalidated() != "2" || cut.str("leaseId") != "acme-1" {
		t.Fatalf("%+v", cut)
	}
	unlock("acme-ops").want(t, 409, "lease_changed")
	for _, token := range []string{`,"fencingToken":"1"`, ""} {
		got := ask(t, web.URL, "acme-1", "POST", "/v1/locks/acme-1/renew", `{"resource":"acme:billing-close:1","ttlSeconds":600`+token+`}`)
		why, _ := got.body["forceUnlocked"].(map[string]any)
		if got.status != 404 || got.problem() != "lease_over" || why["actorId"] != "acme-ops" || why["reason"] != `it hangs (in the name of ada)` || why["createdAt"] == nil {
			t.Errorf("the cut holder's renewal: %+v", got)
		}
	}
	for token, records := range map[string]int{"acme-ops": 1, "umbrella-ops": 0, "root": 1} {
		got := ask(t, web.URL, token, "GET", "/v1/audit", "")
		if list, _ := got.body["records"].([]any); got.status != 200 || len(list) != records || records == 0 && strings.Contains(got.text, "acme") {
			t.Errorf("%s: %+v", token, got)
		}
	}
	ask(t, web.URL, "", "GET", "/readyz", "").want(t, 200)
}

// TestForceUnlockRaises: with Options.Raise the force unlock also raises the
// mark, after which the cut holder's claim is refused; without it that holder
// can still write, and the answer says so.
func TestForceUnlockRaises(t *testing.T) {
	t.Parallel()
	issuer, operator, _ := postgres(t, 4)
	marks := guard.NewMemory()
	for _, raises := range []bool{true, false} {
		opts := &lockhttp.Options{Admin: operator}
		if raises {
			opts.Raise = func(ctx context.Context, invalidated guard.Claim) error {
				_, err := marks.Admit(ctx, invalidated)
				return err
			}
		}
		web, _ := serve(t, issuer, everybody, opts)
		resource := fmt.Sprint("raises=", raises)
		got := ask(t, web.URL, "", "POST", "/v1/locks/acquire", `{"resource":"`+resource+`","leaseId":"L","ttlSeconds":600}`)
		claim := guard.Claim{Resource: resource, LeaseID: "L", Token: guard.Must(guard.ParseToken(got.str("token")))}
		if _, err := marks.Admit(t.Context(), claim); err != nil {
			t.Fatal(err)
		}
		got = ask(t, web.URL, "", "POST", "/v1/resources/"+resource+"/force-unlock", `{"actorId":"ada","reason":"x"}`)
		if got.status != 200 || got.body["raised"] != raises {
			t.Errorf("%+v", got)
		}
		if _, err := marks.Admit(t.Context(), claim); errors.Is(err, guard.ErrStale) != raises {
			t.Errorf("raised %v: the cut holder's write: %v", raises, err)
		}
	}
}

// TestLimits: each limit of an identity refuses what exceeds it, and does not
// affect others.
func TestLimits(t *testing.T) {
	t.Parallel()
	allowed := 3
	web, _ := serve(t, memory.NewServer().Issuer(), func(r *http.Request) (*lockhttp.Identity, error) {
		id := &lockhttp.Identity{Subject: r.Header.Get("Authorization"), AllResources: true, Operator: true}
		switch id.Subject {
		case "Bearer rate":
			id.Limits.Acquire = func() bool { allowed--; return allowed >= 0 }
		case "Bearer waiting":
			id.Tenant, id.Limits.Waiting = r.Header.Get("Tenant"), 1
		case "Bearer ttl":
			id.Limits.MinTTL, id.Limits.MaxTTL = 5*time.Second, 10*time.Second
		}
		return id, nil
	}, nil)
	n := 0
	acquire := func(token, more string) response {
		n++
		return ask(t, web.URL, token, "POST", "/v1/locks/acquire", fmt.Sprintf(`{"resource":"%s%d","leaseId":"L%d"%s}`, token, n, n, more))
	}
	made := ask(t, web.URL, "rate", "POST", "/v1/locks/acquire", `{"resource":"named","ttlSeconds":60}`).str("leaseId")
	for n, want := range []int{200, 200, 429, 429} {
		if got := acquire("rate", `,"ttlSeconds":60`); got.status != want || want == 429 && (got.problem() != "too_many_requests" || got.header.Get("Retry-After") == "") {
			t.Errorf("%d: %+v", n, got)
		}
	}
	// A release without a token counts as an acquire, since it stores the lease ID, unless it is that of a lease that runs.
	release := func(lease string) response {
		return ask(t, web.URL, "rate", "DELETE", "/v1/locks/"+lease, "")
	}
	release("ghost?resource=nothing").want(t, 429, "too_many_requests")
	release("L2?resource=rate2").want(t, 200)
	for _, want := range []int{200, 429} { // by the ID alone, and again
		release(made).want(t, want)
	}
	for ttl, want := range map[string]int{"4.999999": 400, "5": 200, "10": 200, "10.000001": 400} {
		if got := acquire("ttl", `,"ttlSeconds":`+ttl); got.status != want {
			t.Errorf("%s: %+v", ttl, got)
		}
	}
	// One stream counts as one that waits.
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, _ := http.NewRequestWithContext(ctx, "GET", web.URL+"/v1/watch?resource=r", nil)
	r.Header.Set("Authorization", "Bearer waiting")
	resp, err := http.DefaultClient.Do(r)
	if err != nil || resp.StatusCode != 200 {
		t.Fatal(resp, err)
	}
	defer resp.Body.Close()
	ask(t, web.URL, "waiting", "GET", "/v1/watch?resource=r", "").want(t, 429, "too_many_requests")
	// The same subject of another tenant is another identity.
	r.Header.Set("Tenant", "another")
	if resp, err = http.DefaultClient.Do(r); err != nil || resp.StatusCode != 200 {
		t.Fatal(resp, err)
	}
	defer resp.Body.Close()
}

// TestWatchTells: a watch says who has the lease, but to a worker neither the lease ID
// nor the token, with which it could act as the holder. It says when that changes, and
// it ends with the server.
func TestWatchTells(t *testing.T) {
	t.Parallel()
	web, handler := serve(t, memory.NewServer().Issuer(), people, nil)
	got := ask(t, web.URL, "acme-1", "POST", "/v1/locks/acquire", `{"resource":"acme:billing-close:1","leaseId":"secret","ttlSeconds":600}`)
	if got.status != 200 {
		t.Fatalf("%+v", got)
	}
	watch := func(token, want string) *bufio.Reader {
		r, _ := http.NewRequestWithContext(t.Context(), "GET", web.URL+"/v1/watch?resource=acme:billing-close:1", nil)
		r.Header.Set("Authorization", "Bearer "+token)
		resp, err := http.DefaultClient.Do(r)
		if err != nil || resp.StatusCode != 200 || resp.Header.Get("Content-Type") != "text/event-stream" {
			t.Fatal(resp, err)
		}
		t.Cleanup(func() { resp.Body.Close() })
		stream := bufio.NewReader(resp.Body)
		event, _ := stream.ReadString('\n')
		data, err := stream.ReadString('\n')
		if event != "event: holder\n" || !strings.Contains(data, want) || err != nil {
			t.Errorf("%s gets %s%s%v", token, event, data, err)
		}
		return stream
	}
	ops := watch("acme-ops", `"leaseId":"secret","fencingToken":1,"token":"1"`)
	worker := watch("acme-2", `"ownerId":"acme-1","expiresAt"`)
	ask(t, web.URL, "acme-1", "DELETE", "/v1/locks/secret?resource=acme:billing-close:1", "")
	for _, stream := range []*bufio.Reader{ops, worker} {
		if rest, err := io.ReadAll(stream); !strings.Contains(string(rest), "event: wake\n") || err != nil {
			t.Errorf("after the release: %q %v", rest, err)
		}
	}
	last := watch("acme-2", `"holder":null`)
	testkit.Check(t, handler.Close(t.Context()))
	if rest, err := io.ReadAll(last); strings.Contains(string(rest), "wake") || err != nil {
		t.Errorf("after the end of the server: %q %v", rest, err)
	}
}

// TestRowsThatNobodyExpects: whatever an issuer's role writes into a row, lists and force unlocks
// work.
func TestRowsThatNobodyExpects(t *testing.T) {
	t.Parallel()
	issuer, operator, pool := postgres(t, 4)
	web, _ := serve(t, issuer, people, &lockhttp.Options{Admin: operator})
	names := leasetest.Worst(t, pool)
	if got := ask(t, web.URL, "root", "GET", "/v1/locks?limit=1000", ""); got.status != 200 || len(got.body["locks"].([]any)) != len(names) {
		t.Errorf("%d, of %d names: %s", got.status, len(names), got.text)
	}
	for _, name := range names {
		if guard.ValidateResource(name) != nil {
			continue
		}
		path := "/v1/resources/" + url.PathEscape(name)
		if got := ask(t, web.URL, "root", "GET", path, ""); got.status != 200 || got.str("state") == "" {
			t.Errorf("%q: %d %s", name, got.status, got.text)
		}
		if got := ask(t, web.URL, "root", "POST", path+"/force-unlock", `{"actorId":"ada","reason":"it hangs"}`); got.status != 200 || got.invalidated() != "2" {
			t.Errorf("%q: %d %s", name, got.status, got.text)
		}
	}
	if got := ask(t, web.URL, "root", "GET", "/v1/audit?limit=1000", ""); got.status != 200 || len(got.body["records"].([]any)) != len(names)-2 {
		t.Errorf("the audit: %d %s", got.status, got.text)
	}
}

// TestWaitersCostOneConnection: two hundred clients that wait, a thousand in the long form, keep as few
// database connections busy as none: the issuer's listening connection is the
// only one besides those of its pools, which have one connection each.
func TestWaitersCostOneConnection(t *testing.T) {
	t.Parallel()
	clients := longtest.ByLength(200, 1000)
	issuer, operator, pool := postgres(t, 1)
	handler := open(t, issuer, everybody, &lockhttp.Options{Admin: operator, MaxWait: time.Hour})
	record(handler, "POST", "/v1/locks/acquire", "", `{"resource":"r","leaseId":"first","ttlSeconds":600}`)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for range clients {
		go func() {
			r, _ := http.NewRequestWithContext(ctx, "POST", "/v1/locks/acquire", strings.NewReader(`{"resource":"r","ttlSeconds":600,"waitSeconds":600}`))
			r.Header.Set("Content-Type", "application/json")
			handler.ServeHTTP(discard{}, r)
		}()
	}
	testkit.Eventually(t, "that all wait", func() bool {
		return strings.Contains(record(handler, "GET", "/v1/resources/r", "", "").text, fmt.Sprintf(`"waiting":%d`, clients))
	})
	var all, listening int
	testkit.Eventually(t, "the session that listens", func() bool {
		err := pool.QueryRow(t.Context(), `SELECT count(*), count(*) FILTER (WHERE query ILIKE 'listen%') FROM pg_stat_activity WHERE application_name = 'lockserver' AND datname = current_database()`).Scan(&all, &listening)
		return err == nil && listening == 1
	})
	t.Logf("%d connections: the pool's, the renewals' and the one that listens", all)
	if all > 3 {
		t.Errorf("%d connections", all)
	}
	cancel()
	testkit.Check(t, handler.Close(t.Context()))
}

// discard is a ResponseWriter for an answer that nobody reads.
type discard struct{}

func (discard) Header() http.Header         { return http.Header{} }
func (discard) Write(b []byte) (int, error) { return len(b), nil }
func (discard) WriteHeader(int)             {}

// TestResourcesOfATenant: a tenant at its limit leases what it has leased before and nothing else, on
// each server, until a purge has made room. The controls are a tenant without a limit and
// one with a limit of its own.
func TestResourcesOfATenant(t *testing.T) {
	t.Parallel()
	issuer, operator, pool := postgres(t, 4)
	limited := func(r *http.Request) (*lockhttp.Identity, error) {
		id, err := people(r)
		if err == nil && id.Tenant == "acme" {
			id.Limits.Resources = 2
		}
		return id, err
	}
	first, _ := serve(t, issuer, limited, &lockhttp.Options{Admin: operator})
	acquire := func(url, token, tenant, period, id string) response {
		return ask(t, url, token, "POST", "/v1/locks/acquire", fmt.Sprintf(`{"resource":"%s:billing-close:%s","leaseId":%q,"ownerId":"w","ttlSeconds":600}`, tenant, period, id))
	}
	for _, period := range []string{"1", "2"} {
		acquire(first.URL, "acme-1", "acme", period, "lease-"+period).want(t, 200)
	}
	second, _ := serve(t, issuer, limited, &lockhttp.Options{Admin: operator})
	for _, url := range []string{first.URL, second.URL} {
		acquire(url, "acme-2", "acme", "3", "lease-3").want(t, 429, "too_many_requests")
		if got := acquire(url, "acme-2", "acme", "1", "another"); got.status != 409 {
			t.Errorf("a resource that it has: %d %s", got.status, got.text)
		}
	}
	var rows int
	if err := pool.QueryRow(t.Context(), "SELECT count(*) FROM fencepost.leases WHERE resource LIKE 'acme:%'").Scan(&rows); err != nil || rows != 2 {
		t.Errorf("%d rows, %v", rows, err)
	}
	for n := range 4 {
		acquire(first.URL, "umbrella-1", "umbrella", fmt.Sprint(n), fmt.Sprint("lease-", n)).want(t, 200)
	}
	if _, err := pool.Exec(t.Context(), "UPDATE fencepost.leases SET lease_id = NULL, expires_at = now() - interval '1 hour', spent_until = '-infinity' WHERE resource = 'acme:billing-close:2'"); err != nil {
		t.Fatal(err)
	}
	if done, err := operator.Purge(t.Context(), &lockadmin.PurgeOptions{OlderThan: time.Minute}); err != nil || done.Count != 1 {
		t.Fatalf("%+v, %v", done, err)
	}
	testkit.Eventually(t, "room after a purge", func() bool { return acquire(first.URL, "acme-1", "acme", "3", "lease-3").status == 200 })
}

// TestHoldersAreHidden: who may name a resource sees until when its lease runs, and not who
// holds it, in no response; an operator does. The control is a server that shows holders.
func TestHoldersAreHidden(t *testing.T) {
	t.Parallel()
	for _, show := range []bool{false, true} {
		issuer, operator, _ := postgres(t, 4)
		handler := guard.Must(lockhttp.New(issuer, people, &lockhttp.Options{
			Admin: operator, ShowHolders: show, Timeout: testkit.Patience, MaxWait: time.Second, Logger: slog.New(slog.DiscardHandler),
		}))
		server := httptest.NewServer(handler)
		t.Cleanup(func() { handler.Close(context.Background()); server.Close() })
		const body = `{"resource":"acme:billing-close:1","leaseId":%q,"ownerId":"host-17","metadata":"process 4711","ttlSeconds":600}`
		ask(t, server.URL, "acme-1", "POST", "/v1/locks/acquire", fmt.Sprintf(body, "a")).want(t, 200)
		for what, see := range map[string]func(token string) string{
			"acquire": func(token string) string {
				return ask(t, server.URL, token, "POST", "/v1/locks/acquire", strings.NewReplacer("host-17", "other", "process 4711", "").Replace(fmt.Sprintf(body, "b"))).text
			},
			"get": func(token string) string {
				return ask(t, server.URL, token, "GET", "/v1/resources/acme:billing-close:1", "").text
			},
			"list": func(token string) string { return ask(t, server.URL, token, "GET", "/v1/locks", "").text },
			"watch": func(token string) string {
				return ask(t, server.URL, token, "GET", "/v1/watch?resource=acme:billing-close:1", "").text
			},
		} {
			for token, sees := range map[string]bool{"acme-2": show, "acme-ops": true} {
				text := see(token)
				if said := strings.Contains(text, "host-17") || strings.Contains(text, "4711"); said != sees || !strings.Contains(text, "remainingSeconds") {
					t.Errorf("%s by %s, shown %t: %s", what, token, show, text)
				}
			}
		}
	}
}

// TestResourcesWithoutOperators: a server without operators' calls counts what it was asked for.
func TestResourcesWithoutOperators(t *testing.T) {
	t.Parallel()
	one := func(r *http.Request) (*lockhttp.Identity, error) {
		id, err := people(r)
		if err == nil {
			id.Limits.Resources = 1
		}
		return id, err
	}
	server, _ := serve(t, memory.NewServer().Issuer(), one, nil)
	for period, want := range []int{200, 429} {
		ask(t, server.URL, "acme-1", "POST", "/v1/locks/acquire", fmt.Sprintf(`{"resource":"acme:billing-close:%d","ownerId":"w","ttlSeconds":600}`, period)).want(t, want)
	}
}
