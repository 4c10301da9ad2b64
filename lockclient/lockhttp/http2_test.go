package lockhttp_test

import (
	"bufio"
	"context"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient/driver/memory"
	"github.com/fencepost-go/fencepost/lockclient/lockhttp"
)

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
				transport := &http.Transport{Protocols: &protocols, DialContext: func(context.Context, string, string) (net.Conn, error) {
					near, far := net.Pipe()
					listener.conns <- far
					return near, nil
				}}
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
