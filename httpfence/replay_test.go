package httpfence

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/fencepost-go/fencepost/guard"
)

// refuser is an HTTP/2 server that reads each request to its end and then answers
// the first with one frame and the others with INTERNAL_ERROR, after which nobody
// repeats. The frames are those of RFC 9113, section 6.
func refuser(t *testing.T, first func(stream []byte) []byte) (url string, requests *atomic.Int64) {
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
			go refuse(conn, requests, first)
		}
	}()
	return "http://" + l.Addr().String(), requests
}

func refuse(conn net.Conn, requests *atomic.Int64, first func([]byte) []byte) {
	defer func() { _ = conn.Close() }()
	const data, headers, settings, endStream = 0x0, 0x1, 0x4, 0x1
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
		if kind := head[3]; (kind == data || kind == headers) && head[4]&endStream != 0 {
			if requests.Add(1) == 1 {
				_, _ = conn.Write(first(head[5:]))
			} else {
				_, _ = conn.Write(resetBy(2)(head[5:]))
			}
		}
	}
}

// resetBy is RST_STREAM with an error code: 1 PROTOCOL_ERROR, 2 INTERNAL_ERROR,
// 7 REFUSED_STREAM.
func resetBy(code byte) func(stream []byte) []byte {
	return func(stream []byte) []byte {
		return append(append([]byte{0, 0, 4, 0x3, 0}, stream...), 0, 0, 0, code)
	}
}

// goAway is GOAWAY with NO_ERROR, which says that no stream above last was or will
// be processed.
func goAway(last byte) func([]byte) []byte {
	return func([]byte) []byte {
		return []byte{0, 0, 8, 0x7, 0, 0, 0, 0, 0, 0, 0, 0, last, 0, 0, 0, 0}
	}
}

func overHTTP2(t *testing.T) *http.Transport {
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	base := &http.Transport{Protocols: protocols}
	t.Cleanup(base.CloseIdleConnections)
	return base
}

// Over HTTP/2 net/http repeats a request that was reset with PROTOCOL_ERROR,
// refused or told to go away, whatever its method, if it can send the body again.
// Behind Transport it sends a write once, and a GET as it always does, which is
// the control. The error of a write says whether it was certainly not handled.
func TestTransportSendsAWriteOnceOverHTTP2(t *testing.T) {
	for name, c := range map[string]struct {
		frame func([]byte) []byte
		want  error
	}{
		"PROTOCOL_ERROR": {resetBy(1), guard.ErrOutcomeUnknown}, "INTERNAL_ERROR": {resetBy(2), guard.ErrOutcomeUnknown},
		"REFUSED_STREAM": {resetBy(7), guard.ErrUnavailable}, "GOAWAY": {goAway(0), guard.ErrUnavailable},
	} {
		for _, method := range []string{"POST", "PUT", "DELETE", "GET"} {
			for _, content := range []string{"12", ""} {
				if method == "GET" && content != "" {
					continue
				}
				url, requests := refuser(t, c.frame)
				r := guard.Must(http.NewRequestWithContext(guard.WithClaim(t.Context(), held), method, url, strings.NewReader(content)))
				_, err := newTransport(overHTTP2(t), []string{url}, nil).RoundTrip(r)
				if err == nil || method != "GET" && (!errors.Is(err, c.want) || guard.ReasonOf(err) != guard.ReasonOf(c.want)) {
					t.Errorf("%s, %s with the body %q: %v", name, method, content, err)
				}
				if n := requests.Load(); method != "GET" && n != 1 || method == "GET" && name != "INTERNAL_ERROR" && n < 2 {
					t.Errorf("%s: one %s with the body %q was sent %d times", name, method, content, n)
				}
				if r.GetBody == nil || r.TransferEncoding != nil || len(r.Header) > 0 {
					t.Errorf("%s: the caller's request was changed", method)
				}
			}
		}
	}
}

// What is known without HTTP/2: a write for which there was no connection was not
// sent, if base is known to have tried nothing else; a connection that breaks says
// nothing. net/url still finds out that an error is a timeout.
func TestTransportSaysWhatWasNotSent(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := "http://" + l.Addr().String()
	_ = l.Close()
	arrived := make(chan struct{}, 1)
	slow := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // else the server does not see that the client has left
		arrived <- struct{}{}
		<-r.Context().Done()
	}))
	defer slow.Close()
	breaks := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
	defer breaks.Close()
	direct := &http.Transport{}
	defer direct.CloseIdleConnections()
	for name, c := range map[string]struct {
		base    http.RoundTripper
		url     string
		timeout bool
		want    error
	}{
		"no connection": {direct, nobody, false, guard.ErrUnavailable},
		"no connection behind another RoundTripper":  {struct{ http.RoundTripper }{direct}, nobody, false, guard.ErrOutcomeUnknown},
		"a connection that breaks":                   {direct, breaks.URL, false, guard.ErrOutcomeUnknown},
		"a timeout":                                  {direct, slow.URL, true, guard.ErrOutcomeUnknown},
		"an error of its own, which lies about HTTP": {roundTrip(func(*http.Request) (*http.Response, error) { return nil, io.EOF }), slow.URL, false, guard.ErrOutcomeUnknown},
	} {
		ctx := guard.WithClaim(t.Context(), held)
		if c.timeout {
			var end context.CancelCauseFunc
			ctx, end = context.WithCancelCause(ctx)
			go func() { <-arrived; end(context.DeadlineExceeded) }() // the time is over when all was sent
		}
		r := guard.Must(http.NewRequestWithContext(ctx, "POST", c.url, strings.NewReader("12")))
		_, err := (&http.Client{Transport: newTransport(c.base, []string{c.url}, nil)}).Do(r)
		var failed *guard.FailedError
		if !errors.Is(err, c.want) || !errors.As(err, &failed) || failed.Claim != held || !strings.HasPrefix(failed.Op, "POST 127.0.0.1") {
			t.Errorf("%s: %v", name, err)
		}
		var outer *url.Error
		if !errors.As(err, &outer) || outer.Timeout() != c.timeout || c.timeout != errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %#v", name, err)
		}
	}
}

// Over HTTP/1.1 a body is framed as without Transport. An empty one is sent in
// chunks, or with a DELETE without a length, because base must not see that it is
// empty.
func TestTransportFramesOverHTTP1(t *testing.T) {
	var length int64
	var encoding []string
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { length, encoding = r.ContentLength, r.TransferEncoding }))
	defer server.Close()
	for _, method := range []string{"POST", "PUT", "PATCH", "DELETE"} {
		for _, body := range []string{"", "12"} {
			r := guard.Must(http.NewRequestWithContext(guard.WithClaim(t.Context(), held), method, server.URL, strings.NewReader(body)))
			resp, err := newTransport(server.Client().Transport, []string{server.URL}, nil).RoundTrip(r)
			if err != nil {
				t.Fatalf("%s: %v", method, err)
			}
			_ = resp.Body.Close()
			want, chunked := int64(len(body)), body == "" && method != "DELETE"
			if chunked {
				want = -1
			}
			if length != want || slices.Contains(encoding, "chunked") != chunked {
				t.Errorf("%s with the body %q: length %d, %q", method, body, length, encoding)
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
		r := guard.Must(http.NewRequestWithContext(guard.WithClaim(t.Context(), held), "POST", server.URL, nil))
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
