package lockhttp_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient/driver/memory"
	"github.com/fencepost-go/fencepost/lockclient/lockhttp"
)

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
