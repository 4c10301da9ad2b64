package lockhttp_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/driver/memory"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin"
	"github.com/fencepost-go/fencepost/lockclient/lockhttp"
)

// distant is an issuer whose answers take a while, as over a network. It ends an
// exchange with its context.
type distant struct {
	counting
	answered func() // when a watch was
}

const trip = 30 * time.Millisecond

func (d *distant) Watch(ctx context.Context, w driver.Watch, wake func()) (driver.Watching, error) {
	time.Sleep(trip)
	if d.answered != nil {
		d.answered()
	}
	return d.counting.Watch(ctx, w, wake)
}

func (d *distant) Release(ctx context.Context, claim guard.Claim) (bool, error) {
	select {
	case <-time.After(trip):
		return d.Issuer.Release(ctx, claim)
	case <-ctx.Done():
		return false, guard.OutcomeUnknown("release", claim, context.Cause(ctx))
	}
}

// deaf is a connection whose reader has gone.
type deaf struct{ *httptest.ResponseRecorder }

func (deaf) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

// TestWatchesEnd: when nobody reads a stream any more, the watch at the issuer that
// was begun for it ends too, whenever the reader left.
func TestWatchesEnd(t *testing.T) {
	t.Parallel()
	for name, path := range map[string]string{
		"a waiter": "/v1/watch?resource=r&leaseId=L", "an onlooker": "/v1/watch?resource=r",
	} {
		testkit.Bubble(t, name, func(t *testing.T) {
			server := memory.NewServer()
			server.Steal("r", "holder", time.Hour)
			issuer := &distant{counting: counting{Issuer: server.Issuer()}}
			h := open(t, issuer, everybody, &lockhttp.Options{Timeout: usual})
			for _, leaves := range []string{"before the answer", "at the answer", "later"} {
				ctx, cancel := context.WithCancel(t.Context())
				issuer.answered = nil
				switch leaves {
				case "before the answer":
					time.AfterFunc(trip/2, cancel)
				case "at the answer":
					issuer.answered = cancel
				case "later":
					time.AfterFunc(time.Second, cancel)
				}
				h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, "GET", path, nil))
				cancel()
				time.Sleep(time.Second)
				if n := issuer.watching.Load(); n != 0 {
					t.Errorf("left %s: %d watches at the issuer go on", leaves, n)
				}
			}
			issuer.answered = nil
			h.ServeHTTP(deaf{httptest.NewRecorder()}, httptest.NewRequestWithContext(t.Context(), "GET", path, nil))
			time.Sleep(time.Second)
			if n := issuer.watching.Load(); n != 0 {
				t.Errorf("left before it was told anything: %d watches at the issuer go on", n)
			}
			testkit.Check(t, h.Close(t.Context()))
		})
	}
}

// cutting is an operators' API whose force unlock takes a while.
type cutting struct{ lockadmin.Admin }

func (cutting) ForceUnlock(ctx context.Context, resource, _, _ string, opts *lockadmin.ForceUnlockOptions) (lockadmin.ForceUnlocked, error) {
	invalidated := guard.Claim{Resource: resource, Token: 2, LeaseID: opts.RequestID}
	select {
	case <-time.After(trip):
		return lockadmin.ForceUnlocked{Invalidated: invalidated}, nil
	case <-ctx.Done():
		return lockadmin.ForceUnlocked{}, guard.OutcomeUnknown("force unlock", invalidated, context.Cause(ctx))
	}
}

// TestSentAndGone: a worker sends its release and exits without waiting for the
// answer, and an operator's browser goes away. What they sent is carried out: the
// lease is free, the token is invalidated and the mark is raised.
func TestSentAndGone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := memory.NewServer()
		claim := server.Steal("r", "worker", time.Hour)
		raised := guard.NoToken
		h, err := lockhttp.New(&distant{counting: counting{Issuer: server.Issuer()}}, everybody, &lockhttp.Options{
			Admin: cutting{},
			Raise: func(ctx context.Context, invalidated guard.Claim) error {
				select {
				case <-time.After(trip):
					raised = invalidated.Token
					return nil
				case <-ctx.Done():
					return context.Cause(ctx)
				}
			},
		})
		testkit.Must(t, err)
		send := func(method, path, body string, patience time.Duration) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			recordUnder(ctx, h, method, path, "", body)
		}
		send("DELETE", "/v1/locks/"+claim.LeaseID+"?resource=r&fencingToken="+claim.Token.String(), "", trip/2)
		if held := server.Holder("r"); held != nil {
			t.Errorf("the release was received and given up: %v", held)
		}
		for what, patience := range map[string]time.Duration{"the force unlock": trip / 2, "the raise": trip * 3 / 2} {
			raised = guard.NoToken
			send("POST", "/v1/resources/r/force-unlock", `{"actorId":"ada","reason":"it hangs"}`, patience)
			if raised != 2 {
				t.Errorf("the browser went away during %s: the mark is not raised", what)
			}
		}
		testkit.Check(t, h.Close(t.Context()))
	})
}

// pipes is a listener whose connections are pipes, which keep a bubble's time.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}
func (p *pipes) Close() error   { close(p.done); return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

// dial returns a new connection to what serves p.
func (p *pipes) dial(context.Context, string, string) (net.Conn, error) {
	near, far := net.Pipe()
	select {
	case p.conns <- far:
		return near, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

// serveInBubble runs a lock server in a bubble, and returns what makes clients with
// connections of their own. Their requests take a while to arrive.
func serveInBubble(t *testing.T, issuer driver.Issuer) (h *lockhttp.Server, connect func(takes time.Duration) driver.Issuer) {
	t.Helper()
	h = open(t, issuer, everybody, &lockhttp.Options{Timeout: usual})
	server, listener := &http.Server{Handler: h}, &pipes{make(chan net.Conn), make(chan struct{})}
	go server.Serve(listener)
	t.Cleanup(func() {
		testkit.Check(t, h.Close(context.Background()))
		server.Close()
	})
	return h, func(takes time.Duration) driver.Issuer {
		i := guard.Must(lockhttp.NewIssuer("http://h", &http.Client{Transport: far{&http.Transport{DialContext: listener.dial}, takes}}))
		t.Cleanup(func() { i.Close() })
		return i
	}
}

// TestSlowClients: a client that does not send its request's body, or does not
// read its answer, keeps a connection for some seconds and not for ever, whether
// it is authenticated or not.
func TestSlowClients(t *testing.T) {
	t.Parallel()
	const bound = 30 * time.Second
	post := func(path, token, media string) string {
		return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer %s\r\nContent-Type: %s\r\nContent-Length: 100\r\n\r\n{", path, token, media)
	}
	for name, c := range map[string]struct {
		request string
		status  int // 0: it does not read
	}{
		"acquire":                 {post("/v1/locks/acquire", "acme-1", "application/json"), 400},
		"acquire, unknown":        {post("/v1/locks/acquire", "x", "application/json"), 401},
		"acquire, as text":        {post("/v1/locks/acquire", "acme-1", "text/plain"), 415},
		"no such path":            {post("/v2", "acme-1", "application/json"), 404},
		"no such method":          {post("/health", "acme-1", "application/json"), 405},
		"health":                  {strings.Replace(post("/health", "acme-1", "application/json"), "POST", "GET", 1), 200},
		"reads no description":    {"GET /openapi.json HTTP/1.1\r\nHost: h\r\n\r\n", 0},
		"reads no answer":         {"GET /v1/time HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer acme-1\r\n\r\n", 0},
		"reads no page":           {"GET /ui HTTP/1.1\r\nHost: h\r\n\r\n", 0},
		"reads no script":         {"GET /ui/page.js HTTP/1.1\r\nHost: h\r\n\r\n", 0},
		"reads no events":         {"GET /v1/watch?resource=acme:billing-close:1 HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer acme-1\r\n\r\n", 0},
		"reads no refusal at all": {"GET /v1/locks HTTP/1.1\r\nHost: h\r\n\r\n", 0},
	} {
		testkit.Bubble(t, name, func(t *testing.T) {
			h := open(t, memory.NewServer().Issuer(), people, &lockhttp.Options{Timeout: usual})
			closed := make(chan struct{})
			server := &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Second, ConnState: func(_ net.Conn, state http.ConnState) {
				if state == http.StateClosed {
					close(closed)
				}
			}}
			listener := &pipes{make(chan net.Conn), make(chan struct{})}
			go server.Serve(listener)
			near, far := net.Pipe()
			listener.conns <- far
			if _, err := io.WriteString(near, c.request); err != nil {
				t.Fatal(err)
			}
			answered := make(chan string, 1)
			if c.status != 0 { // a client that does not send may still read
				go func() {
					resp, err := http.ReadResponse(bufio.NewReader(near), nil)
					if err != nil {
						answered <- err.Error()
						return
					}
					io.Copy(io.Discard, resp.Body)
					answered <- fmt.Sprint(resp.StatusCode)
				}()
			}
			select {
			case <-closed:
			case <-time.After(bound):
				t.Errorf("after %v the connection is still kept", bound)
			}
			near.Close()
			if c.status != 0 {
				if got := <-answered; got != fmt.Sprint(c.status) {
					t.Errorf("the answer is %s, want %d", got, c.status)
				}
			}
			server.Close()
			h.Close(t.Context())
		})
	}
}

// TestStreamsLastOverHTTP2: a stream in which nothing happens lasts for
// Options.MaxWait over HTTP/2 as over HTTP/1, and so does a wait for a lease.
func TestStreamsLastOverHTTP2(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"HTTP/1.1", "HTTP/2.0"} {
		for _, path := range []string{"/v1/watch?resource=r", "/v1/locks/acquire"} {
			testkit.Bubble(t, version+path, func(t *testing.T) {
				server := memory.NewServer()
				server.Steal("r", "another", time.Hour)
				h := open(t, server.Issuer(), everybody, &lockhttp.Options{Timeout: usual})
				var protocols http.Protocols
				protocols.SetHTTP1(version == "HTTP/1.1")
				protocols.SetUnencryptedHTTP2(version == "HTTP/2.0")
				web := &http.Server{Handler: h, Protocols: &protocols}
				listener := &pipes{make(chan net.Conn), make(chan struct{})}
				go web.Serve(listener)
				transport := &http.Transport{Protocols: &protocols, DialContext: listener.dial}
				method, body := "GET", ""
				if path == "/v1/locks/acquire" {
					method, body = "POST", `{"resource":"r","ttlSeconds":30,"waitSeconds":60}`
				}
				began := time.Now()
				r, err := http.NewRequestWithContext(t.Context(), method, "http://h"+path, strings.NewReader(body))
				testkit.Must(t, err)
				r.Header.Set("Content-Type", "application/json")
				resp, err := transport.RoundTrip(r)
				testkit.Must(t, err)
				lines := bufio.NewScanner(resp.Body)
				for lines.Scan() {
				}
				if lasted := time.Since(began); resp.Proto != version || lines.Err() != nil || lasted < time.Minute-time.Second {
					t.Errorf("%s ended after %v: %v", resp.Proto, lasted, lines.Err())
				}
				resp.Body.Close()
				transport.CloseIdleConnections()
				web.Close()
				h.Close(t.Context())
			})
		}
	}
}

// clogged is a logger and an observer that block, on a full pipe for example.
type clogged struct{ until chan struct{} }

func (c clogged) Write(b []byte) (int, error)          { <-c.until; return len(b), nil }
func (c clogged) Observe(context.Context, guard.Event) { <-c.until }

// TestNobodyWaitsForReports: a logger and an observer that block delay no response, no
// raise of a claim that was invalidated, and no release of what nobody got. A signer that
// blocks is given up like an issuer.
func TestNobodyWaitsForReports(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := clogged{make(chan struct{})}
		server := memory.NewServer()
		raised := 0
		h := open(t, server.Issuer(), everybody, &lockhttp.Options{
			Admin: cutting{}, Timeout: usual, Logger: slog.New(slog.NewTextHandler(c, nil)), Observer: c,
			Raise: func(context.Context, guard.Claim) error { raised++; return context.Canceled },
		})
		for range 3 {
			for _, r := range []struct {
				method, path, body string
				status             int
			}{
				{"POST", "/v1/locks/acquire", `{"resource":"r","leaseId":"L","ttlSeconds":600}`, 200},
				{"POST", "/v1/locks/renew", `{"resource":"r","leaseId":"L","ttlSeconds":600}`, 200},
				{"DELETE", "/v1/locks/L?resource=r&fencingToken=%d", "", 200},
				{"POST", "/v1/resources/r/force-unlock", `{"actorId":"ada","reason":"it hangs"}`, 200},
				{"POST", "/v1/locks/acquire", `{"resource":"fencepost-readyz","ttlSeconds":600}`, 403},
			} {
				began := time.Now()
				path := strings.Replace(r.path, "%d", server.Last("r").String(), 1)
				if got := record(h, r.method, path, "", r.body); got.status != r.status || time.Since(began) > time.Second {
					t.Errorf("%s %s: after %v: %d %s", r.method, path, time.Since(began), got.status, got.text)
				}
			}
		}
		if raised != 3 {
			t.Errorf("raised %d times", raised)
		}
		close(c.until)
		testkit.Check(t, h.Close(t.Context()))

		until := make(chan struct{})
		who := func(id *lockhttp.Identity, err error) (*lockhttp.Identity, error) { id.Audience = "a"; return id, err }
		h = open(t, server.Issuer(), func(r *http.Request) (*lockhttp.Identity, error) { return who(everybody(r)) }, &lockhttp.Options{Timeout: usual, Signer: silent(until)})
		record(h, "POST", "/v1/locks/acquire", "", `{"resource":"s","ttlSeconds":600}`).want(t, 500)
		synctest.Wait()
		if held := server.Holder("s"); held != nil {
			t.Errorf("not released while it blocks: %v", held)
		}
		close(until)
		h.Close(t.Context())
	})
}

// silent is a signer that does not respond.
type silent chan struct{}

func (s silent) Sign(guard.Claim, string, time.Time) (string, error) { <-s; return "", nil }

// TestWatchersThatNeverAsk: a thousand Go clients that watch and never ask delay a client
// that waits by less than two seconds.
func TestWatchersThatNeverAsk(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := memory.NewServer()
		h := open(t, server.Issuer(), everybody, &lockhttp.Options{Timeout: usual, MaxWait: time.Hour})
		held := server.Steal("r", "holder", time.Hour)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for n := range 900 {
			wg.Go(func() {
				h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, "GET", fmt.Sprintf("/v1/watch?resource=r&leaseId=w%d", n), nil))
			})
		}
		synctest.Wait()
		waited := make(chan time.Duration)
		go func() {
			began := time.Now()
			record(h, "POST", "/v1/locks/acquire", "", `{"resource":"r","ttlSeconds":60,"waitSeconds":3000}`).want(t, 200)
			waited <- time.Since(began)
		}()
		synctest.Wait()
		record(h, "DELETE", "/v1/locks/"+held.LeaseID+"?resource=r", "", "")
		if took := <-waited; took > 2*time.Second {
			t.Errorf("granted after %v", took)
		}
		cancel()
		wg.Wait()
		h.Close(t.Context())
	})
}
