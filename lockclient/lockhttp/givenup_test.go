package lockhttp_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/longtest"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/driver/memory"
	"github.com/fencepost-go/fencepost/lockclient/lockhttp"
)

// hooked is an issuer whose acquires a test can stop before and after.
type hooked struct {
	*memory.Issuer
	before, after func()
	granted       func(ctx context.Context) // with the exchange's context
	calls         atomic.Int64
	leaseID       atomic.Value // of the last request
}

func (h *hooked) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	h.calls.Add(1)
	h.leaseID.Store(r.LeaseID)
	if h.before != nil {
		h.before()
	}
	g, err := h.Issuer.Acquire(context.WithoutCancel(ctx), r)
	if h.after != nil {
		h.after()
	}
	if h.granted != nil {
		h.granted(ctx)
	}
	return g, err
}

// TestP8ClientGoes: the client of an acquire goes away while the issuer grants.
// Nobody can know the lease ID that the server made, so the lease is released;
// under an ID of the client's own it stays, because the client may come back,
// and then gets the same token.
func TestP8ClientGoes(t *testing.T) {
	t.Parallel()
	for _, leaseID := range []string{"", "mine"} {
		server := memory.NewServer()
		granted := make(chan struct{})
		issuer := &hooked{Issuer: server.Issuer()}
		var once sync.Once
		issuer.granted = func(ctx context.Context) {
			// The server learns of it some time after the client has gone.
			once.Do(func() { close(granted); <-ctx.Done() })
		}
		web, handler := serve(t, issuer, everybody, nil)
		ctx, cancel := context.WithCancel(t.Context())
		body := `{"resource":"r","ttlSeconds":600,"leaseId":"` + leaseID + `"}`
		r, _ := http.NewRequestWithContext(ctx, "POST", web.URL+"/v1/locks/acquire", strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		ended := make(chan error)
		go func() { _, err := http.DefaultClient.Do(r); ended <- err }()
		<-granted
		cancel()
		if err := <-ended; err == nil {
			t.Error("the request was answered")
		}
		testkit.Eventually(t, "the release of what nobody got, or the grant", func() bool { return server.Last("r") == 1 && (leaseID != "") == (server.Holder("r") != nil) })
		// It is still so when everything has ended.
		testkit.Check(t, handler.Close(t.Context()))
		if leaseID == "" {
			if h := server.Holder("r"); h != nil {
				t.Errorf("held by %+v", h)
			}
			continue
		}
		_, handler = serve(t, issuer, everybody, nil)
		if got := record(handler, "POST", "/v1/locks/acquire", "", body); got.status != 200 || !strings.Contains(got.text, `"token":"1"`) {
			t.Errorf("again: %d %s", got.status, got.text)
		}
	}
}

// TestP8IssuerAnswersLate: the server gives up an exchange, and the issuer grants
// after that. The grant under the server's own lease ID is freed, whichever of
// the release and the grant comes first.
func TestP8IssuerAnswersLate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := memory.NewServer()
		asked, answer := make(chan struct{}), make(chan struct{})
		issuer := &hooked{Issuer: server.Issuer()}
		issuer.before = sync.OnceFunc(func() { close(asked); <-answer })
		handler := open(t, issuer, everybody, &lockhttp.Options{Timeout: usual})
		got := record(handler, "POST", "/v1/locks/acquire", "", `{"resource":"r","ttlSeconds":600}`)
		if text := got.text; got.status != 500 || !strings.Contains(text, "outcome_unknown") || strings.Contains(text, `"leaseId"`) {
			t.Fatal(text)
		}
		<-asked
		close(answer)
		testkit.Check(t, handler.Close(t.Context()))
		if h := server.Holder("r"); h != nil {
			t.Errorf("held by %+v", h)
		}
		// The ID is spent: the request cannot be replayed.
		_, err := server.Issuer().Acquire(t.Context(), driver.Request{Resource: "r", LeaseID: issuer.leaseID.Load().(string), Owner: "x", TTL: time.Minute, Timeout: time.Minute})
		if !errors.Is(err, driver.ErrLeaseIDSpent) {
			t.Errorf("a replay: %v", err)
		}
	})
}

// TestP8NamedIDIsNotReleased: the response to a failed acquire names no lease ID that the
// server releases. Under the ID that it names the acquire can be repeated, and what is
// granted then stays.
func TestP8NamedIDIsNotReleased(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		own   string
		fault memory.Fault
		named bool
	}{{"", memory.Lose, false}, {"mine", memory.Lose, true}, {"", memory.Refuse, true}} {
		server := memory.NewServer()
		web, handler := serve(t, server.Issuer(), everybody, nil)
		server.Fail(memory.Acquire, c.fault)
		acquire := func(leaseID string) response {
			return ask(t, web.URL, "", "POST", "/v1/locks/acquire", `{"resource":"r","ttlSeconds":60,"leaseId":"`+leaseID+`"}`)
		}
		failed := acquire(c.own)
		if id := failed.str("leaseId"); failed.status < 500 || c.named != (id != "") || c.own != "" && id != c.own {
			t.Errorf("%+v: %s", c, failed.text)
		}
		if !c.named {
			continue
		}
		if again := acquire(failed.str("leaseId")); again.status != 200 {
			t.Errorf("%+v: again: %s", c, again.text)
		}
		if err := handler.Close(t.Context()); err != nil || server.Holder("r") == nil { // it waits for releases
			t.Errorf("%+v: it was released, %v", c, err)
		}
	}
}

// sick is an issuer that grants and does not say so, and releases nothing until it is well.
type sick struct {
	*memory.Issuer
	well  atomic.Bool
	tries atomic.Int64 // to release
}

func (s *sick) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	s.Issuer.Acquire(ctx, r)
	return driver.Grant{}, guard.OutcomeUnknown("acquire", r.Claim(), errors.New("sick"))
}

func (s *sick) Release(ctx context.Context, claim guard.Claim) (bool, error) {
	s.tries.Add(1)
	if !s.well.Load() {
		return false, guard.Unavailable("release", claim, errors.New("sick"))
	}
	return s.Issuer.Release(ctx, claim)
}

// TestP8ReleasesAreBounded: the releases of what may have been granted to nobody are
// bounded for each identity, since its acquires are refused before. They do not press an
// issuer that is sick, and free the lease when it is well again.
func TestP8ReleasesAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := memory.NewServer()
		issuer := &sick{Issuer: server.Issuer()}
		h := open(t, issuer, func(r *http.Request) (*lockhttp.Identity, error) {
			return &lockhttp.Identity{Subject: "a", Tenant: r.Header.Get("Authorization"), AllResources: true}, nil
		}, &lockhttp.Options{Timeout: usual})
		acquire := func(tenant, leaseID string, want int) {
			t.Helper()
			record(h, "POST", "/v1/locks/acquire", tenant, `{"resource":"r","ttlSeconds":86400,"leaseId":"`+leaseID+`"}`).want(t, want)
		}
		for range 1000 {
			acquire("acme", "", 500)
		}
		acquire("acme", "", 429)
		acquire("acme", "mine", 500)
		acquire("umbrella", "", 500)
		time.Sleep(10 * time.Minute)
		if tries := issuer.tries.Load(); tries > 1001*(600/5+20) {
			t.Errorf("%d attempts in ten minutes", tries)
		}
		issuer.well.Store(true)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if held := server.Holder("r"); held != nil {
			t.Errorf("held by %+v", held)
		}
		acquire("acme", "", 500)
		testkit.Check(t, h.Close(t.Context()))
	})
}

// stuck is an issuer that does not answer, whatever the context says.
type stuck struct {
	*memory.Issuer
	until chan struct{}
}

func (s stuck) Acquire(_ context.Context, r driver.Request) (driver.Grant, error) {
	<-s.until
	return driver.Grant{}, guard.Unavailable("acquire", r.Claim(), nil)
}
func (s stuck) Renew(context.Context, []driver.Renewal, []driver.Renewed) { <-s.until }
func (s stuck) Release(context.Context, guard.Claim) (bool, error)        { <-s.until; return false, nil }
func (s stuck) Watch(context.Context, driver.Watch, func()) (driver.Watching, error) {
	<-s.until
	return driver.Watching{}, driver.ErrNoWatch
}

// TestIssuerAway: every request gets a response within Timeout and a little more although
// the issuer never responds, including one that waits, and those behind it in the queue
// without waiting for their own timeouts.
func TestIssuerAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const timeout, grace = 200 * time.Millisecond, 100 * time.Millisecond
		forever := make(chan struct{})
		handler := open(t, stuck{memory.NewServer().Issuer(), forever}, everybody, &lockhttp.Options{Timeout: timeout})
		defer func() {
			close(forever)
			testkit.Check(t, handler.Close(t.Context()))
		}()
		var wg sync.WaitGroup
		for n, c := range []struct {
			method, path, body string
			status             int
		}{
			{"POST", "/v1/locks/acquire", `{"resource":"r","ttlSeconds":30}`, 500},
			{"POST", "/v1/locks/acquire", `{"resource":"r","ttlSeconds":30,"waitSeconds":50}`, 500},
			{"POST", "/v1/locks/L/renew", `{"resource":"r","fencingToken":1,"ttlSeconds":30}`, 500},
			{"POST", "/v1/locks/renew", `{"resource":"r","leaseId":"L","fencingToken":1,"ttlSeconds":30}`, 500},
			{"DELETE", "/v1/locks/L?resource=r", "", 500},
			{"GET", "/v1/resources/r", "", 503},
			{"GET", "/v1/watch?resource=r", "", 503},
			{"GET", "/readyz", "", 503},
			{"GET", "/health", "", 200},
		} {
			wg.Go(func() {
				began := time.Now()
				got := record(handler, c.method, c.path, "", c.body)
				// Each of the first two that wait is an exchange, and a watch.
				if took := time.Since(began); took > 2*(timeout+grace) {
					t.Errorf("%d: %s %s took %v", n, c.method, c.path, took)
				}
				if got.status != c.status || c.status == 500 && !strings.Contains(got.text, "outcome_unknown") {
					t.Errorf("%d: %s %s: %d %s", n, c.method, c.path, got.status, got.text)
				}
			})
		}
		for n := range 50 { // with one bound each, they would take ten seconds
			wg.Go(func() {
				began := time.Now()
				got := record(handler, "POST", "/v1/locks/acquire", "", fmt.Sprintf(`{"resource":"queue","leaseId":"L%d","ttlSeconds":30,"waitSeconds":50}`, n))
				if took := time.Since(began); got.status != 500 && got.status != 503 || took > 50*(timeout+grace)/5 {
					t.Errorf("in the queue: %d %s after %v", got.status, got.text, took)
				}
			})
		}
		wg.Wait()
	})
}

// TestRepeated: a request whose answer was lost and that is repeated under its
// lease ID is the same request, and an http.Transport that retries by itself
// causes no second grant.
func TestRepeated(t *testing.T) {
	t.Parallel()
	server := memory.NewServer()
	web, _ := serve(t, server.Issuer(), everybody, nil)
	body := `{"resource":"r","leaseId":"mine","ttlSeconds":600}`
	first := ask(t, web.URL, "", "POST", "/v1/locks/acquire", body)
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			got := ask(t, web.URL, "", "POST", "/v1/locks/acquire", body)
			if got.status != 200 || got.str("token") != first.str("token") || got.str("acquiredAt") != first.str("acquiredAt") {
				t.Errorf("%+v, then %+v", first, got)
			}
		})
	}
	wg.Wait()
	if server.Last("r") != 1 {
		t.Errorf("%v tokens were granted", server.Last("r"))
	}
	ask(t, web.URL, "", "DELETE", "/v1/locks/mine?resource=r", "").want(t, 200)
	if got := ask(t, web.URL, "", "POST", "/v1/locks/acquire", body); got.status != 410 || got.problem() != "lease_spent" {
		t.Errorf("after the release: %+v", got)
	}
}

// TestWaiting: many acquires wait for one lease. One of them asks the
// issuer; they are granted in turn, each token once; a client that goes away is
// not granted.
func TestWaiting(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		clients := longtest.ByLength(200, 1000)
		server := memory.NewServer()
		issuer := &hooked{Issuer: server.Issuer()}
		handler := open(t, issuer, everybody, &lockhttp.Options{MaxWait: time.Hour})
		record(handler, "POST", "/v1/locks/acquire", "", `{"resource":"r","leaseId":"first","ttlSeconds":600}`).want(t, 200)
		var wg sync.WaitGroup
		var mu sync.Mutex
		seen := map[string]bool{}
		for range clients {
			wg.Go(func() {
				got := record(handler, "POST", "/v1/locks/acquire", "", `{"resource":"r","ttlSeconds":600,"waitSeconds":600}`)
				var g struct {
					Acquired       bool
					Token, LeaseID string
				}
				decode(t, got.text, &g)
				mu.Lock()
				if seen[g.Token] || !g.Acquired {
					t.Errorf("%s", got.text)
				}
				seen[g.Token] = true
				mu.Unlock()
				record(handler, "DELETE", "/v1/locks/"+g.LeaseID+"?resource=r&fencingToken="+g.Token, "", "").want(t, 200)
			})
		}
		waiting := func() float64 {
			var l struct{ Waiting float64 }
			decode(t, record(handler, "GET", "/v1/resources/r", "", "").text, &l)
			return l.Waiting
		}
		time.Sleep(time.Second)
		if n := waiting(); n != float64(clients) {
			t.Fatalf("%v of %d wait", n, clients)
		}
		before := issuer.calls.Load()
		if before > int64(clients/2) {
			t.Errorf("the issuer was asked %d times while nothing was to be had", before)
		}
		record(handler, "DELETE", "/v1/locks/first?resource=r", "", "")
		wg.Wait()
		if len(seen) != clients || server.Last("r") != guard.Token(clients+1) {
			t.Errorf("%d tokens, the last is %v", len(seen), server.Last("r"))
		}
		if n := issuer.calls.Load(); n > int64(4*clients) {
			t.Errorf("%d attempts for %d grants", n, clients)
		}
		handler.Close(t.Context())
	})
}

// TestWaitEnds: a wait ends with its time, with its client and with the server,
// and leaves nothing.
func TestWaitEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // which fails if a goroutine is left
		server := memory.NewServer()
		h := open(t, server.Issuer(), everybody, nil)
		record(h, "POST", "/v1/locks/acquire", "", `{"resource":"r","leaseId":"first","ownerId":"ada","ttlSeconds":600}`)
		for range 2 {
			began := time.Now()
			got := record(h, "POST", "/v1/locks/acquire", "", `{"resource":"r","ttlSeconds":600,"waitSeconds":20}`)
			var g struct {
				Holder        struct{ OwnerID, Token string }
				WaitedSeconds float64
			}
			decode(t, got.text, &g)
			if got.status != 409 || g.Holder.OwnerID != "ada" || g.Holder.Token != "1" || g.WaitedSeconds != 20 || time.Since(began) != 20*time.Second {
				t.Errorf("after %v: %s", time.Since(began), got.text)
			}
		}
		waits := func(ctx context.Context) response {
			return recordUnder(ctx, h, "POST", "/v1/locks/acquire", "", `{"resource":"r","ttlSeconds":600,"waitSeconds":60}`)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { waits(ctx) })
		wg.Go(func() {
			waits(t.Context()).want(t, 503, "unavailable") // at the server's end
		})
		waiting := func(want int) {
			t.Helper()
			synctest.Wait()
			if got := record(h, "GET", "/v1/resources/r", "", "").text; !strings.Contains(got, fmt.Sprintf(`"waiting":%d,`, want)) {
				t.Errorf("%s, want %d that wait", got, want)
			}
		}
		waiting(2)
		cancel()
		waiting(1)
		testkit.Check(t, h.Close(t.Context()))
		wg.Wait()
		if server.Last("r") != 1 {
			t.Errorf("the last token is %v", server.Last("r"))
		}
	})
}

// unprepared is an issuer whose first attempts are late, as when it had to connect first.
type unprepared struct {
	*memory.Issuer
	late int
}

func (u *unprepared) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if u.late--; u.late >= 0 {
		return driver.Grant{}, guard.Unavailable("acquire", r.Claim(), driver.ErrLate)
	}
	return u.Issuer.Acquire(ctx, r)
}

// TestIssuerHasToPrepare: an attempt that an issuer was not ready for is made once more.
func TestIssuerHasToPrepare(t *testing.T) {
	for late, want := range map[int]int{1: 200, 2: 412} {
		web, _ := serve(t, &unprepared{memory.NewServer().Issuer(), late}, everybody, nil)
		ask(t, web.URL, "", "POST", "/v1/locks/acquire", `{"resource":"r","ttlSeconds":60}`).want(t, want)
	}
}
