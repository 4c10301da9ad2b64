package httpfence

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/fencepost-go/fencepost/guard"
)

// resetter is an HTTP/2 server that reads each request to its end and resets its
// stream, as of a proxy that could not pass the answer on: the first with
// PROTOCOL_ERROR, the others with an error after which nobody repeats.
func resetter(t *testing.T) (url string, requests *atomic.Int64) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	requests = new(atomic.Int64)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go reset(conn, requests)
		}
	}()
	return "http://" + l.Addr().String(), requests
}

// reset serves one connection. The frames are those of RFC 9113, sections 4 and 6.
func reset(conn net.Conn, requests *atomic.Int64) {
	defer func() { _ = conn.Close() }()
	const data, headers, rst, settings, endStream = 0x0, 0x1, 0x3, 0x4, 0x1
	const protocolError, internalError = 1, 2
	preface := make([]byte, len("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))
	if _, err := io.ReadFull(conn, preface); err != nil {
		return
	}
	_, _ = conn.Write([]byte{0, 0, 0, settings, 0, 0, 0, 0, 0})
	for {
		var head [9]byte // length, type, flags, stream
		if _, err := io.ReadFull(conn, head[:]); err != nil {
			return
		}
		length := int64(head[0])<<16 | int64(binary.BigEndian.Uint16(head[1:]))
		if _, err := io.CopyN(io.Discard, conn, length); err != nil {
			return
		}
		if kind := head[3]; kind == data || kind == headers {
			if head[4]&endStream != 0 {
				code := byte(protocolError)
				if requests.Add(1) > 1 {
					code = internalError
				}
				frame := append([]byte{0, 0, 4, rst, 0}, head[5:]...)
				_, _ = conn.Write(append(frame, 0, 0, 0, code))
			}
		}
	}
}

// Over HTTP/2 net/http repeats a request that was reset with PROTOCOL_ERROR,
// whatever its method, if it can send the body again. Behind Transport it sends
// a write once, and a GET as it always does, which is the control.
func TestTransportSendsAWriteOnceOverHTTP2(t *testing.T) {
	for _, c := range []struct {
		method, body string
		once         bool
	}{
		{"POST", "12", true}, {"POST", "", true}, {"PUT", "12", true}, {"DELETE", "", true}, {"GET", "", false},
	} {
		for _, missing := range []io.Reader{nil, http.NoBody} {
			url, requests := resetter(t)
			protocols := new(http.Protocols)
			protocols.SetUnencryptedHTTP2(true)
			base := &http.Transport{Protocols: protocols}
			defer base.CloseIdleConnections()
			sent := missing
			if c.body != "" {
				sent = strings.NewReader(c.body)
			}
			r, err := http.NewRequestWithContext(guard.WithClaim(t.Context(), held), c.method, url, sent)
			if err != nil {
				t.Fatal(err)
			}
			getBody := r.GetBody != nil
			if _, err := newTransport(base, []string{url}, nil).RoundTrip(r); err == nil {
				t.Errorf("%s was answered", c.method)
			}
			if n := requests.Load(); (n == 1) != c.once || n == 0 {
				t.Errorf("one %s with the body %q was sent %d times", c.method, c.body, n)
			}
			if (r.GetBody != nil) != getBody || r.TransferEncoding != nil || len(r.Header) > 0 {
				t.Errorf("%s: the caller's request was changed", c.method)
			}
		}
	}
}

// Over HTTP/1.1 a write is framed as without Transport: an empty body has the
// length 0 and is not chunked. net/http sends no length with a DELETE; 0 says the same.
func TestTransportFramesOverHTTP1(t *testing.T) {
	for _, method := range []string{"POST", "PUT", "PATCH", "DELETE"} {
		for body, want := range map[string]string{"": "Content-Length: 0", "12": "Content-Length: 2"} {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			raw := make(chan string, 1)
			go func() {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				defer func() { _ = conn.Close() }()
				var all bytes.Buffer
				for end := "\r\n\r\n" + body; !strings.HasSuffix(all.String(), end); {
					if _, err := io.CopyN(&all, conn, 1); err != nil {
						break
					}
				}
				_, _ = io.WriteString(conn, "HTTP/1.1 204 No Content\r\n\r\n")
				raw <- all.String()
			}()
			base := &http.Transport{}
			defer base.CloseIdleConnections()
			url := "http://" + l.Addr().String()
			r, err := http.NewRequestWithContext(guard.WithClaim(t.Context(), held), method, url, strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			resp, err := newTransport(base, []string{url}, nil).RoundTrip(r)
			if err != nil {
				t.Fatalf("%s: %v", method, err)
			}
			_ = resp.Body.Close()
			_ = l.Close()
			head := strings.ToLower(<-raw)
			if strings.Count(head, "content-length:") != 1 || !strings.Contains(head, strings.ToLower(want)) || strings.Contains(head, "transfer-encoding") {
				t.Errorf("%s with the body %q:\n%s", method, body, head)
			}
		}
	}
}

// TestTransportSendsNoBodyOfALength: a request that says that it has a body and has
// none is refused by net/http, and nothing is sent; [http.NoBody] has the length 0,
// whatever the request says.
func TestTransportSendsNoBodyOfALength(t *testing.T) {
	var served atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { served.Add(1) }))
	defer server.Close()
	for _, body := range []io.ReadCloser{nil, http.NoBody} {
		r, err := http.NewRequestWithContext(guard.WithClaim(t.Context(), held), "POST", server.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Body, r.ContentLength = body, 5
		before := served.Load()
		resp, err := newTransport(server.Client().Transport, []string{server.URL}, nil).RoundTrip(r)
		if err == nil {
			resp.Body.Close()
		}
		if (err == nil) != (body != nil) || served.Load()-before != map[bool]int64{true: 1}[body != nil] {
			t.Errorf("body %v: %v, %d requests were served", body, err, served.Load()-before)
		}
	}
}

// fragile is a connection that breaks before anything of a later request is written,
// as one that the server has closed.
type fragile struct {
	net.Conn
	broken *atomic.Bool
}

func (c fragile) Write(b []byte) (int, error) {
	if c.broken.Load() {
		return 0, net.ErrClosed
	}
	return c.Conn.Write(b)
}

// Over HTTP/1.1 net/http repeats a write of which nothing was written on a connection
// that was idle. Behind Transport it still does, so that a server that closes idle
// connections costs no errors.
func TestTransportRepeatsWhatWasNotSent(t *testing.T) {
	for _, secure := range []bool{false, true} {
		var requests atomic.Int64
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			requests.Add(1)
			_, _ = io.Copy(io.Discard, r.Body)
		}))
		if server.Start(); secure {
			server.Close()
			server = httptest.NewTLSServer(server.Config.Handler)
		}
		t.Cleanup(server.Close)
		var last atomic.Pointer[atomic.Bool]
		base := server.Client().Transport.(*http.Transport)
		base.ForceAttemptHTTP2 = false
		base.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, address)
			broken := new(atomic.Bool)
			last.Store(broken)
			return fragile{conn, broken}, err
		}
		for n, body := range []string{"12", "12", "", ""} {
			if n%2 == 1 {
				last.Load().Store(true)
			}
			r, err := http.NewRequestWithContext(guard.WithClaim(t.Context(), held), "POST", server.URL, strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			answer, err := newTransport(base, []string{server.URL}, nil).RoundTrip(r)
			if err != nil {
				t.Fatalf("secure %t, request %d: %v", secure, n, err)
			}
			_, _ = io.Copy(io.Discard, answer.Body)
			_ = answer.Body.Close()
		}
		if requests.Load() != 4 {
			t.Errorf("secure %t: %d requests", secure, requests.Load())
		}
	}
}

// TestTransportKnowsHTTP1 looks at real connections: what is not known to be HTTP/1.1
// is treated as HTTP/2.
func TestTransportKnowsHTTP1(t *testing.T) {
	for name, want := range map[string]bool{"http": true, "https": true, "https, HTTP/2": false, "http behind another RoundTripper": false} {
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		server.EnableHTTP2 = strings.HasSuffix(name, "2")
		if server.StartTLS(); !strings.HasPrefix(name, "https") {
			server.Close()
			server = httptest.NewServer(server.Config.Handler)
		}
		t.Cleanup(server.Close)
		var base http.RoundTripper = server.Client().Transport
		if strings.HasSuffix(name, "RoundTripper") {
			base = struct{ http.RoundTripper }{base}
		}
		transport := newTransport(base, []string{server.URL}, nil)
		var got bool
		trace := &httptrace.ClientTrace{GotConn: func(c httptrace.GotConnInfo) { got = transport.isHTTP1(c.Conn) }}
		r, err := http.NewRequestWithContext(httptrace.WithClientTrace(t.Context(), trace), "GET", server.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := transport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		if got != want {
			t.Errorf("%s: HTTP/1.1 %t", name, got)
		}
	}
}
