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
	"strings"
	"time"
)

// The errors that a handler behind [Middleware.InTx] gets from its
// ResponseWriter. Whether it heeds them or not, its transaction is rolled back.
var (
	// ErrResponseTooLarge: the answer is larger than [TxOptions.MaxResponse].
	ErrResponseTooLarge = errors.New("httpfence: the answer is larger than InTx may hold back until COMMIT")
	// ErrResponseHeld: the handler flushed or hijacked, which would have told
	// the client of work that is not committed. It is [http.ErrNotSupported].
	ErrResponseHeld = fmt.Errorf("httpfence: InTx holds the answer back until COMMIT, it can be neither flushed nor hijacked: %w", http.ErrNotSupported)
)

// heldAnswer is a ResponseWriter that keeps the answer until it is known whether the
// work is committed. It has no Unwrap, and no Flush method: a handler that
// flushes only where it can goes on without.
type heldAnswer struct {
	under  http.ResponseWriter
	header http.Header // the handler's own: what it sets for work that is rolled back must not be sent
	sent   http.Header // header as it was when the answer began, like net/http's
	status int         // 0 until the answer began
	body   bytes.Buffer
	max    int
	err    error // the first reason not to commit
}

func newHeld(w http.ResponseWriter, limit int) *heldAnswer {
	return &heldAnswer{under: w, header: w.Header().Clone(), max: limit}
}

// Header never returns nil: net/http's servers start with an empty map, and
// Clone keeps it.
func (h *heldAnswer) Header() http.Header {
	if h.header == nil {
		h.header = make(http.Header)
	}
	return h.header
}

// WriteHeader panics for a status that net/http would panic for, and does so
// while there is something to roll back. Informational answers are dropped:
// they would be about work that is not committed.
func (h *heldAnswer) WriteHeader(status int) {
	switch {
	case h.status != 0: // only the first counts
	case status < 100 || status > 999:
		panic(fmt.Sprintf("httpfence: invalid WriteHeader code %d", status))
	case status == http.StatusSwitchingProtocols:
		h.fail(ErrResponseHeld)
	case status >= 200:
		h.status = status
		h.sent = h.Header().Clone()
	}
}

func (h *heldAnswer) Write(b []byte) (int, error) {
	if h.status == 0 {
		h.WriteHeader(http.StatusOK)
	}
	switch {
	case h.status == http.StatusNoContent || h.status == http.StatusNotModified:
		return 0, http.ErrBodyNotAllowed
	case h.err != nil:
		return 0, h.err
	case len(b) > h.max-h.body.Len():
		h.body = bytes.Buffer{} // nobody will see it
		return 0, h.fail(ErrResponseTooLarge)
	}
	return h.body.Write(b)
}

// FlushError and Hijack are what http.ResponseController looks for first.

func (h *heldAnswer) FlushError() error { return h.fail(ErrResponseHeld) }

func (h *heldAnswer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return nil, nil, h.fail(ErrResponseHeld)
}

// The rest of http.ResponseController sends nothing and is passed on.

func (h *heldAnswer) SetReadDeadline(t time.Time) error {
	return http.NewResponseController(h.under).SetReadDeadline(t)
}

func (h *heldAnswer) SetWriteDeadline(t time.Time) error {
	return http.NewResponseController(h.under).SetWriteDeadline(t)
}

func (h *heldAnswer) EnableFullDuplex() error {
	return http.NewResponseController(h.under).EnableFullDuplex()
}

func (h *heldAnswer) fail(err error) error {
	if h.err == nil {
		h.err = err
	}
	return h.err
}

// release gives the answer to the client.
func (h *heldAnswer) release() {
	if h.status == 0 {
		h.WriteHeader(http.StatusOK)
	}
	header := h.under.Header()
	clear(header)
	maps.Copy(header, h.sent)
	h.under.WriteHeader(h.status)
	if h.body.Len() > 0 {
		_, _ = h.under.Write(h.body.Bytes()) // the client is gone if this fails; there is nobody to tell
	}
	// Trailers are set after the body, under names announced before it or with
	// a prefix.
	announced := h.sent["Trailer"]
	for name, values := range h.Header() {
		if strings.HasPrefix(name, http.TrailerPrefix) || slices.ContainsFunc(announced, func(line string) bool {
			return slices.ContainsFunc(strings.Split(line, ","), func(s string) bool {
				return http.CanonicalHeaderKey(strings.TrimSpace(s)) == name
			})
		}) {
			header[name] = values
		}
	}
}

// answeredError says that the handler itself answered with an error, so that
// its work was rolled back. It is nobody's refusal.
type answeredError struct{ status int }

func (e *answeredError) Error() string {
	return fmt.Sprintf("httpfence: the handler answered %d, its transaction was rolled back", e.status)
}
