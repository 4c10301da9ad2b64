package grpcfence

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/httpfence"
)

// fakeTx is a Transactor in memory.
type fakeTx struct {
	guard.Store
	committed bool
	after     error // of a transaction that failed, in place of the handler's
}

func (f *fakeTx) Marks() guard.Store { return f.Store }

func (f *fakeTx) InTx(ctx context.Context, claim guard.Claim, fn func(context.Context) error) error {
	if _, err := f.Admit(ctx, claim); err != nil {
		return err
	}
	err := fn(ctx)
	f.committed = err == nil
	if err != nil && f.after != nil {
		return errors.Join(f.after, err)
	}
	return err
}

func txFence(t *testing.T, tx *fakeTx) *httpfence.TxMiddleware {
	t.Helper()
	return guard.Must(httpfence.NewTx(tx, func(*http.Request) (string, error) { return "acme", nil },
		&httpfence.Options{Observer: guard.LogObserver(slog.New(slog.DiscardHandler))}))
}

func claimed() *http.Request {
	r := httptest.NewRequest("POST", unary, nil)
	r.Header = http.Header{httpfence.TokenHeader: {"5"}, httpfence.LeaseHeader: {"l"}, httpfence.ResourceHeader: {"acme"}}
	return r
}

// TestInTxOutsideOfGrpcfence: httpfence by itself does not know the statuses of RPCs,
// and commits none of their responses.
func TestInTxOutsideOfGrpcfence(t *testing.T) {
	for media, want := range map[string]bool{"application/grpc": false, "application/grpc-web+proto": false, "application/connect+json": false, "application/json": true} {
		tx := &fakeTx{Store: guard.NewMemory(nil)}
		w := httptest.NewRecorder()
		txFence(t, tx).InTx(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", media)
			w.Header().Set("Grpc-Status", "0")
			_, _ = io.WriteString(w, frame(2, "{}"))
		})).ServeHTTP(w, claimed())
		if tx.committed != want || (w.Code == 200) != want {
			t.Errorf("%s: %d, committed %v", media, w.Code, tx.committed)
		}
	}
}

// TestInTxEndedByASuccessor: a call that fails because a newer holder has ended its
// transaction gets the refusal as stale, not the handler's own error.
func TestInTxEndedByASuccessor(t *testing.T) {
	tx := &fakeTx{Store: guard.NewMemory(nil), after: &guard.RejectedError{Reason: guard.ReasonStale}}
	w := httptest.NewRecorder()
	InTx(txFence(t, tx))(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/grpc")
		w.Header().Set("Grpc-Status", "13")
		w.WriteHeader(200)
	})).ServeHTTP(w, claimed())
	if w.Code != http.StatusPreconditionFailed {
		t.Errorf("%d", w.Code)
	}
}

// frame is a message of gRPC, gRPC-Web and Connect's streams.
func frame(flags byte, message string) string {
	b := make([]byte, 5, 5+len(message))
	b[0] = flags
	binary.BigEndian.PutUint32(b[1:], uint32(len(message)))
	return string(append(b, message...))
}

func zipped(s string) string {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = io.WriteString(z, s)
	_ = z.Close()
	return b.String()
}

// TestRPCOutcomes: an RPC that says inside an HTTP success that it has failed
// is rolled back, and its own response sent; one that does not say is rolled back
// and gets 500. Under another media type the same bytes are no status,
// which is the control.
func TestRPCOutcomes(t *testing.T) {
	const grpc, web, webtext, stream = "application/grpc+proto", "application/grpc-web+proto", "application/grpc-web-text", "application/connect+json"
	ok, failed := "grpc-status: 0\r\n", "grpc-status: 9\r\ngrpc-message: no\r\n"
	trailer := func(announced bool, status ...string) func(http.Header) {
		return func(h http.Header) {
			if announced {
				h["Grpc-Status"] = status
			} else {
				h[http.TrailerPrefix+"Grpc-Status"] = status
			}
		}
	}
	for _, c := range []struct {
		name      string
		media     string
		before    http.Header
		body      string
		after     func(http.Header)
		committed bool
		status    int
	}{
		{"gRPC fine", grpc, nil, frame(0, "m"), trailer(false, "0"), true, 200},
		{"gRPC failed", grpc, nil, frame(0, "m"), trailer(false, "9"), false, 200},
		{"gRPC fine, announced", grpc, http.Header{"Trailer": {"Grpc-Message, grpc-status"}}, frame(0, "m"), trailer(true, "0"), true, 200},
		{"gRPC failed, announced", grpc, http.Header{"Trailer": {"Grpc-Status"}}, frame(0, "m"), trailer(true, "13"), false, 200},
		{"gRPC failed, no message", "application/grpc", http.Header{"Grpc-Status": {"5"}}, "", nil, false, 200},
		{"gRPC fine, no message", "Application/gRPC; x=y", http.Header{"Grpc-Status": {"0"}}, "", nil, true, 200},
		{"gRPC says both", grpc, nil, "", trailer(false, "0", "9"), false, 200},
		{"gRPC set too late", grpc, nil, frame(0, "m"), trailer(true, "0"), false, 500},
		{"gRPC says nothing", grpc, nil, frame(0, "m"), nil, false, 500},
		{"web fine", web, nil, frame(0, "m") + frame(0x80, ok), nil, true, 200},
		{"web failed", web, nil, frame(0, "m") + frame(0x80, failed), nil, false, 200},
		{"web failed, upper case", web, nil, frame(0x80, strings.ToUpper(failed)), nil, false, 200},
		{"web failed in a header", web, http.Header{"Grpc-Status": {"3"}}, "", nil, false, 200},
		{"web failed, compressed", web, nil, frame(0, "m") + frame(0x81, zipped(failed)), nil, false, 200},
		{"web fine, compressed", web, nil, frame(0x81, zipped(ok)), nil, true, 200},
		{"web unreadable", web, nil, frame(0x81, failed), nil, false, 500},
		{"web without an end", web, nil, frame(0, "m"), nil, false, 500},
		{"web cut off", web, nil, frame(0, "m") + frame(0x80, ok)[:7], nil, false, 500},
		{"web says so in a message", web, nil, frame(0, ok) + frame(0x80, failed), nil, false, 200},
		{"web in base64, which is not known here", webtext, nil, base64.StdEncoding.EncodeToString([]byte(frame(0x80, ok))), nil, false, 500},
		{"stream fine", stream, nil, frame(0, "{}") + frame(2, "{}"), nil, true, 200},
		{"stream failed", stream, nil, frame(0, "{}") + frame(2, `{"error":{"code":"aborted"}}`), nil, false, 200},
		{"stream failed, compressed", stream, nil, frame(3, zipped(`{"error":{}}`)), nil, false, 200},
		{"stream without an end", stream, nil, frame(0, "{}"), nil, false, 500},
		{"stream broken", stream, nil, frame(2, "{"), nil, false, 500},
		{"stream empty", stream, nil, "", nil, false, 500},
		{"control: no RPC", "application/json", nil, frame(0x80, failed), trailer(false, "9"), true, 200},
		{"control: a like name", "application/grpcx", nil, frame(0x80, failed), nil, true, 200},
	} {
		t.Run(c.name, func(t *testing.T) {
			tx := &fakeTx{Store: guard.NewMemory(nil)}
			h := InTx(txFence(t, tx))(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", c.media)
				for name, values := range c.before {
					w.Header()[name] = values
				}
				_, _ = io.WriteString(w, c.body)
				w.(http.Flusher).Flush() // as the libraries do
				if c.after != nil {
					c.after(w.Header())
				}
			}))
			w := httptest.NewRecorder()
			h.ServeHTTP(w, claimed())
			if tx.committed != c.committed || w.Code != c.status || c.status == 200 && w.Body.String() != c.body {
				t.Errorf("committed %v, answered %d %q", tx.committed, w.Code, w.Body)
			}
		})
	}
}
