package httpfence

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The errors for which a response behind [TxMiddleware.InTx] is not sent. Whether
// or not the handler handles them, its transaction is rolled back.
var (
	// ErrResponseTooLarge: the response is larger than [Options.MaxBody].
	ErrResponseTooLarge = errors.New("httpfence: the response is larger than InTx may hold back until COMMIT")
	// ErrResponseHeld: the handler hijacked the connection or switched
	// protocols, which would have shown uncommitted work to the client. It is
	// [http.ErrNotSupported].
	ErrResponseHeld = fmt.Errorf("httpfence: InTx holds the response back until COMMIT, so the connection cannot be hijacked: %w", http.ErrNotSupported)
	// ErrResponseBroken: the handler wrote nothing, it set an error status after
	// its response had begun, it wrote after its transaction had ended, its
	// Content-Length does not match what it wrote, or it is the response of an
	// RPC, whose status is not that of HTTP.
	ErrResponseBroken = errors.New("httpfence: the handler's response does not say whether it succeeded")
)

// bufferedResponse is a ResponseWriter that buffers the response until it is known
// whether the work is committed, or that of a hook until the hook has returned. It
// has no Unwrap.
type bufferedResponse struct {
	under  http.ResponseWriter
	method string
	header http.Header // the handler's own: what it sets for work that is rolled back must not be sent
	sent   http.Header // header as it was when the response began, like net/http's
	status int         // 0 until the response began
	body   bytes.Buffer
	max    int64
	err    error            // the first reason not to commit
	late   func(status int) // set when the transaction has ended: nothing is sent any more
}

func newBuffered(w http.ResponseWriter, r *http.Request, limit int64) *bufferedResponse {
	return &bufferedResponse{under: w, method: r.Method, header: w.Header().Clone(), max: limit}
}

// Header never returns nil: net/http's servers start with an empty map, and
// Clone keeps it.
func (h *bufferedResponse) Header() http.Header {
	if h.header == nil {
		h.header = make(http.Header)
	}
	return h.header
}

// WriteHeader panics for a status that net/http would panic for, while the
// transaction can still be rolled back. Informational responses are dropped: they
// would be about uncommitted work. The first status counts, but a later error
// status is an error: net/http would only log it.
func (h *bufferedResponse) WriteHeader(status int) {
	switch {
	case h.late != nil:
		h.late(status)
	case status < 100 || status > 999:
		panic(fmt.Sprintf("httpfence: invalid WriteHeader code %d", status))
	case h.status != 0:
		if status >= 400 && h.status < 400 {
			h.fail(fmt.Errorf("%w: it set %d after it had begun with %d", ErrResponseBroken, status, h.status))
		}
	case status == http.StatusSwitchingProtocols:
		h.fail(ErrResponseHeld)
	case status >= 200:
		h.status = status
		h.sent = h.Header().Clone()
	}
}

func (h *bufferedResponse) Write(b []byte) (int, error) {
	if h.status == 0 {
		h.WriteHeader(http.StatusOK)
	}
	switch {
	case h.late != nil:
		return 0, fmt.Errorf("%w: it wrote after its transaction had ended", ErrResponseBroken)
	case h.status == http.StatusNoContent || h.status == http.StatusNotModified:
		return 0, http.ErrBodyNotAllowed
	case h.err != nil:
		return 0, h.err
	case int64(len(b)) > h.max-int64(h.body.Len()):
		h.body = bytes.Buffer{} // nobody will see it
		return 0, h.fail(ErrResponseTooLarge)
	}
	return h.body.Write(b)
}

// Flush begins the response, as it would on a connection, but sends nothing.
func (h *bufferedResponse) Flush() {
	if h.status == 0 {
		h.WriteHeader(http.StatusOK)
	}
}

// Hijack is for http.ResponseController and for type assertions alike.
func (h *bufferedResponse) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return nil, nil, h.fail(ErrResponseHeld)
}

// SetWriteDeadline is for a handler that takes long: the response is sent when it
// has returned. The other methods of http.ResponseController are about reading the
// body, which is in memory.
func (h *bufferedResponse) SetWriteDeadline(t time.Time) error {
	return http.NewResponseController(h.under).SetWriteDeadline(t)
}

func (h *bufferedResponse) fail(err error) error {
	if h.err == nil {
		h.err = err
	}
	return h.err
}

// end examines the finished response.
func (h *bufferedResponse) end() {
	h.Flush()
	if length, ok := h.sent["Content-Length"]; ok && h.mayHaveBody() {
		if len(length) != 1 || length[0] != strconv.Itoa(h.body.Len()) {
			h.fail(fmt.Errorf("%w: Content-Length is %q, the body has %d bytes", ErrResponseBroken, length, h.body.Len()))
		}
	}
	media := strings.ToLower(h.sent.Get("Content-Type"))
	if h.status < 300 && (strings.HasPrefix(media, "application/grpc") || strings.HasPrefix(media, "application/connect+")) {
		h.fail(errRPC)
	}
}

// errRPC is for a response that may say inside a 200 that the call has failed.
var errRPC = fmt.Errorf("%w: it is the response of an RPC; use an interceptor of package grpcfence, and a fenced transaction in the method", ErrResponseBroken)

func (h *bufferedResponse) mayHaveBody() bool {
	return h.method != http.MethodHead && h.status != http.StatusNoContent && h.status != http.StatusNotModified
}

// release sends the response to the client.
func (h *bufferedResponse) release() {
	header := h.under.Header()
	clear(header)
	maps.Copy(header, h.sent)
	h.under.WriteHeader(h.status)
	if h.body.Len() > 0 {
		_, _ = h.under.Write(h.body.Bytes()) // if this fails the client is gone, so the error is dropped
	}
	_, fixed := h.sent["Content-Length"]
	for name, values := range h.Header() {
		prefixed := strings.HasPrefix(name, http.TrailerPrefix)
		if prefixed && !fixed && h.mayHaveBody() {
			// HTTP/1.1 sends these only after a body in chunks, which a Flush
			// begins. To announce them would work as well, but adds a header of
			// the same name to the trailer.
			_ = http.NewResponseController(h.under).Flush()
		}
		if prefixed || h.announced(name) {
			header[name] = values
		}
	}
}

func (h *bufferedResponse) announced(name string) bool {
	return slices.ContainsFunc(h.sent["Trailer"], func(line string) bool {
		return slices.ContainsFunc(strings.Split(line, ","), func(s string) bool {
			return http.CanonicalHeaderKey(strings.TrimSpace(s)) == name
		})
	})
}
