package grpcfence

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"

	"google.golang.org/grpc"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/httpfence"
)

// Domain is the domain of the google.rpc.ErrorInfo in a refusal.
const Domain = "fencepost-go.github.io"

// Options configures [New]. The zero value is the default.
type Options struct {
	// Unguarded are the full names of methods that pass unexamined and without
	// a claim, such as "/ledger.v1.Ledger/Get", in addition to all methods of the
	// standard services for health checks and reflection; nil means none.
	Unguarded []string
}

// standard are the services that write nothing, and that load balancers and
// tools call, which hold no lease.
var standard = []string{"/grpc.health.v1.Health/", "/grpc.reflection.v1.ServerReflection/", "/grpc.reflection.v1alpha.ServerReflection/"}

// Fence checks the claims of RPCs. Make one with [New]; the zero value is not
// usable. It is safe for concurrent use.
type Fence struct {
	fence         *httpfence.Middleware
	unguarded     []string
	unary, stream atomic.Bool // the interceptors of grpc-go were asked for
}

// New returns a [Fence] that checks claims with fence. opts may be nil. The
// error is a *guard.InvalidError (guard.ErrInvalid).
func New(fence *httpfence.Middleware, opts *Options) (*Fence, error) {
	if fence == nil {
		return nil, guard.Invalid("fence", "", "must not be nil")
	}
	f := &Fence{fence: fence}
	if opts != nil {
		f.unguarded = slices.Clone(opts.Unguarded)
	}
	for _, method := range f.unguarded {
		if service, name, ok := strings.Cut(strings.TrimPrefix(method, "/"), "/"); !ok || !strings.HasPrefix(method, "/") || service == "" || name == "" {
			return nil, guard.Invalid("Options.Unguarded", method, `must be "/service/method"`)
		}
	}
	return f, nil
}

func (f *Fence) passes(method string) bool {
	return slices.Contains(f.unguarded, method) || slices.ContainsFunc(standard, func(service string) bool { return strings.HasPrefix(method, service) })
}

// Covers reports what is wrong with how f is put around a server of grpc-go:
// methods that none of the interceptors guards, and names in
// [Options.Unguarded] that no service has. Call it when all services are
// registered. It cannot see whether the server was given the interceptors, nor
// calls that are made past them. The error is a *guard.InvalidError
// (guard.ErrInvalid).
func (f *Fence) Covers(server interface {
	GetServiceInfo() map[string]grpc.ServiceInfo
}) error {
	registered := map[string]bool{}
	for service, info := range server.GetServiceInfo() {
		for _, m := range info.Methods {
			name := "/" + service + "/" + m.Name
			registered[name] = true
			streams := m.IsClientStream || m.IsServerStream
			switch {
			case f.passes(name):
			case streams && !f.stream.Load():
				return guard.Invalid("server", name, "is a stream, and StreamServer was not called: it is not guarded")
			case !streams && !f.unary.Load():
				return guard.Invalid("server", name, "is a unary method, and UnaryServer was not called: it is not guarded")
			}
		}
	}
	for _, name := range f.unguarded {
		if !registered[name] {
			return guard.Invalid("Options.Unguarded", name, "is not a method of a registered service")
		}
	}
	return nil
}

type messageKey struct{}

// Field returns a [httpfence.ResourceFunc], or a binding, that takes a value
// from the RPC's message. A call with a message of another type fails with
// Internal: the method has no such resource, and no client can fix that.
func Field[M any](get func(M) string) httpfence.ResourceFunc {
	return func(r *http.Request) (string, error) {
		m, ok := r.Context().Value(messageKey{}).(M)
		if !ok {
			return "", errors.New("grpcfence: the message of " + r.URL.Path + " is of another type")
		}
		return get(m), nil
	}
}

// admit checks one message.
func (f *Fence) admit(ctx context.Context, procedure string, header http.Header, message any) (guard.Claim, error) {
	r := &http.Request{Method: http.MethodPost, URL: &url.URL{Path: procedure}, Header: header, Pattern: procedure}
	return f.fence.AdmitRequest(r.WithContext(context.WithValue(ctx, messageKey{}, message)))
}

// messages checks each message that a stream receives.
type messages struct {
	fence   *Fence
	ctx     context.Context
	end     context.CancelCauseFunc // of the handler's context
	method  string
	header  http.Header
	render  func(error) error // a refusal, as the library's error
	current atomic.Pointer[guard.Claim]
	refused atomic.Pointer[error]
}

// handlers returns the context for the stream's handler, which ends when the stream is
// refused: a goroutine of the handler that only sends learns of it. Its claim is the one
// that was admitted last.
func (m *messages) handlers() context.Context {
	ctx, end := context.WithCancelCause(m.ctx)
	m.end = end
	return guard.WithCurrentClaim(ctx, m.claim)
}

func (m *messages) claim() (guard.Claim, bool) {
	if claim := m.current.Load(); claim != nil {
		return *claim, true
	}
	return guard.Claim{}, false
}

// refusal returns why the stream was refused, nil if it was not.
func (m *messages) refusal() error {
	if refused := m.refused.Load(); refused != nil {
		return *refused
	}
	return nil
}

// outcome returns the refusal, if there was one, whatever the handler returned.
func (m *messages) outcome(err error) error {
	m.end(nil)
	if refused := m.refusal(); refused != nil {
		return refused
	}
	claim, _ := m.claim()
	return ours(claim, err, m.render)
}

// errNoMessage is for a stream that ends before its first message: it has named
// no resource, so nothing can be compared.
var errNoMessage = guard.Missing("first message of the stream")

func (m *messages) receive(message any, next func(any) error) error {
	if err := m.refusal(); err != nil {
		return err
	}
	err := next(message)
	if err != nil && (!errors.Is(err, io.EOF) || m.current.Load() != nil) {
		return err
	}
	var claim guard.Claim
	if err != nil {
		err = errNoMessage
	} else {
		claim, err = m.fence.admit(m.ctx, m.method, m.header, message)
	}
	if err != nil {
		rendered := m.render(err)
		m.refused.Store(&rendered)
		m.end(err)
		return rendered
	}
	m.current.Store(&claim)
	return nil
}

// send sends nothing once the stream was refused, whichever goroutine of the handler
// sends.
func (m *messages) send(message any, next func(any) error) error {
	if err := m.refusal(); err != nil {
		return err
	}
	return next(message)
}
