package httpfence

import (
	"errors"
	"hash/maphash"
	"log/slog"
	"net/http"
	"net/textproto"
	"reflect"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

// The defaults of [Options].
const (
	// DefaultRetryAfter is the default of [Options.RetryAfter].
	DefaultRetryAfter = 2 * time.Second
	// DefaultMaxRequest is the default of [Options.MaxRequest], in bytes.
	DefaultMaxRequest = 1 << 20
	// DefaultMaxResponse is the default of [Options.MaxResponse], in bytes.
	DefaultMaxResponse = 1 << 20
	// DefaultMaxWait is the default of [Options.MaxWait].
	DefaultMaxWait = 10 * time.Second
	// DefaultRaiseWait is the default of [Options.RaiseWait].
	DefaultRaiseWait = 30 * time.Second
)

// Options configures [New]. The zero value of every field is its default. The
// struct is read once, by New; changing it afterwards has no effect.
type Options struct {
	// TokenHeader, LeaseHeader and ResourceHeader name the fields that carry
	// the claim; "" means [TokenHeader], [LeaseHeader] and [ResourceHeader].
	// Case does not matter; each must be a token by RFC 9110 section 5.6.2,
	// must not be a field that proxies or net/http consume (Connection, Host,
	// TE...), and must differ from the others.
	TokenHeader, LeaseHeader, ResourceHeader string
	// TokenOnly admits requests without a lease ID; by default they are
	// answered with 428. A request that has none then presents the empty lease
	// ID. Two holders that send none cannot be distinguished (no promise P4),
	// and a proxy that strips the field goes unnoticed.
	TokenOnly bool
	// InsecureAnyResource admits requests that do not say which resource their
	// claim is for; by default they are answered with 428. A claim that is sent
	// to the wrong route then raises the mark there, and the true holder is
	// stale from then on. A field that is present is still compared.
	InsecureAnyResource bool
	// Verify checks who issued the claim, or whether this caller may present
	// it, before the store is queried or a mark raised; nil means that the
	// token is trusted. Whoever can send a high token to a service without
	// Verify can lock all others out. The claim is complete and well formed,
	// and its resource is the route's. An error is answered by its sentinel of
	// package guard, such as [guard.ErrInvalid] for a token that was never
	// issued; any other error with 500. It must be safe for concurrent use. See
	// [LimitNames], and package guard/proof for claims that their issuer has
	// signed.
	Verify func(claim guard.Claim, r *http.Request) error

	// UnguardedMethods are the methods that [Middleware.Admit] and
	// [Middleware.InTx] let through unexamined; nil means GET, HEAD, OPTIONS
	// and TRACE, and an empty slice that is not nil means none. Methods are
	// compared exactly, as in RFC 9110 section 9.1: "get" is a different method
	// from "GET", and guarded.
	UnguardedMethods []string
	// InsecureReportOnly lets every request through [Middleware.Admit], and
	// only reports to Observer and Logger what would have been refused. It is
	// for finding the clients that send no token yet, and protects nothing.
	// Admitted claims still raise marks, or there would be nothing to compare
	// with; a request that would have been refused gets no claim in its
	// context. Behind [Middleware.InTx] it gets a transaction without a fence.
	// Check and Raise are not affected: their callers want the real result.
	InsecureReportOnly bool

	// Transactor runs the transactions of [Middleware.InTx]; nil means that
	// InTx is not used. The marks that it raises must be those of the store
	// given to [New] ([Transactor.Marks]): with two stores a resource would
	// have two marks. With InsecureReportOnly it must be an
	// [UnfencedTransactor].
	Transactor Transactor
	// MaxRequest is how many bytes of body a request to [Middleware.InTx] may
	// have; a larger one is answered with 413. The body is read before BEGIN,
	// so each request in flight may hold that many bytes in memory, and a slow
	// sender holds its socket and nothing else. 0 means [DefaultMaxRequest]; it
	// must not be negative.
	MaxRequest int64
	// InsecureStreamRequest hands the handler of [Middleware.InTx] the body as
	// it arrives, of any length: a slow sender then keeps a transaction open,
	// with its connection, and keeps the successor's raise waiting. Bound it
	// with http.Server.ReadTimeout, or by SetReadDeadline in the handler.
	InsecureStreamRequest bool
	// MaxResponse is how many bytes of body an answer behind [Middleware.InTx]
	// may have; a larger one rolls the work back. Each request in flight may
	// hold that many bytes in memory. 0 means [DefaultMaxResponse]; it must not
	// be negative.
	MaxResponse int
	// MaxWait bounds how long a request waits for the store, or for its fenced
	// transaction to begin: for a connection, for a lock, for the raise of a
	// new token. When it expires the answer is 503 with Retry-After, and
	// nothing was written. It does not bound the handler. A [guard.Memory]
	// never waits. 0 means [DefaultMaxWait]; it must not be negative.
	MaxWait time.Duration
	// RaiseWait is MaxWait for [Middleware.Raise], which may have to wait for
	// the transactions of an older holder: make it longer than the store's own
	// bound, such as RaiseTimeout of sqlfence. 0 means [DefaultRaiseWait]; it
	// must not be negative.
	RaiseWait time.Duration

	// DiscloseMark adds to the answer for stale, spent, conflict and
	// mark_ahead the members "token", the token offered, and "mark", the
	// resource's highest token, as decimal strings. If the mark is a store's
	// floor, the member "floor" is true. The lease ID of the mark is never
	// disclosed. Set it only for clients inside the trust boundary.
	DiscloseMark bool
	// RetryAfter is the Retry-After of an answer for an unavailable store,
	// rounded up to whole seconds (RFC 9110, section 10.2.3); 0 means
	// [DefaultRetryAfter]. It must not be negative.
	RetryAfter time.Duration
	// Statuses overrides the status of an outcome. Keys are
	// [guard.Reasons] and [guard.ReasonOther], values 400 to 599: a refusal is
	// never an informational answer, a success or a redirect. Problem types
	// stay as they are, so [ErrorFrom] is not misled.
	Statuses map[guard.Reason]int
	// OnReject is called for every refusal, before anything is written; nil
	// means the default answer. A hook that writes an answer replaces the
	// default; one that writes none keeps it, with the header fields that the
	// hook has set. It must be safe for concurrent use, and must not use w
	// after it has returned.
	OnReject func(w http.ResponseWriter, r *http.Request, rej *Rejection)

	// Observer receives an event for every comparison: [guard.OpCheck],
	// [guard.OpAdmit], [guard.OpTransaction] and [guard.OpRaise] on the surface
	// "http"; for a transaction when it has ended other than by a panic, with
	// the reason other if the handler answered with an error. nil costs
	// nothing, not even a clock reading.
	Observer guard.Observer
	// Logger gets one record "fencing_rejected" for every request that Admit,
	// InTx, Raise or Reject refuses, with its cause: at level Warn, for
	// conflict, mark_ahead and outcome_unknown at level Error. It never
	// contains a malformed field's value, because people put passwords into the
	// wrong field. nil means [slog.Default] at that moment; for no records at
	// all use slog.New(slog.DiscardHandler).
	Logger *slog.Logger
}

// defaultUnguarded are the methods that RFC 9110 section 9.2.1 calls safe.
var defaultUnguarded = []string{http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace}

// New returns a [Middleware] that compares claims with the marks in store.
// resource names the resource of a request; see [Named]. opts may be nil. All
// replicas of a service must be given one shared store.
//
// The error is a *guard.InvalidError (guard.ErrInvalid) that names the field:
// a mistake in the program, found before it serves.
func New(store guard.Store, resource ResourceFunc, opts *Options) (*Middleware, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	switch {
	case store == nil:
		return nil, guard.Invalid("store", "", "must not be nil")
	case resource == nil:
		return nil, guard.Invalid("ResourceFunc", "", "must not be nil")
	case o.MaxRequest < 0:
		return nil, guard.Invalid("Options.MaxRequest", strconv.FormatInt(o.MaxRequest, 10), "must not be negative")
	case o.MaxResponse < 0:
		return nil, guard.Invalid("Options.MaxResponse", strconv.Itoa(o.MaxResponse), "must not be negative")
	}
	for _, d := range []struct {
		field string
		value *time.Duration
		unset time.Duration
	}{
		{"Options.MaxWait", &o.MaxWait, DefaultMaxWait},
		{"Options.RaiseWait", &o.RaiseWait, DefaultRaiseWait},
		{"Options.RetryAfter", &o.RetryAfter, DefaultRetryAfter},
	} {
		if *d.value < 0 {
			return nil, guard.Invalid(d.field, d.value.String(), "must not be negative")
		}
		if *d.value == 0 {
			*d.value = d.unset
		}
	}
	if o.MaxRequest == 0 {
		o.MaxRequest = DefaultMaxRequest
	}
	if o.MaxResponse == 0 {
		o.MaxResponse = DefaultMaxResponse
	}
	if o.UnguardedMethods == nil {
		o.UnguardedMethods = defaultUnguarded
	}
	o.UnguardedMethods = slices.Clone(o.UnguardedMethods)
	for _, method := range o.UnguardedMethods {
		if !isToken(method) {
			return nil, guard.Invalid("Options.UnguardedMethods", method, "is no method")
		}
	}
	for reason, status := range o.Statuses {
		if outcomeOf(reason).reason != reason {
			return nil, guard.Invalid("Options.Statuses", string(reason), "is no reason")
		}
		if status < 400 || status > 599 {
			return nil, guard.Invalid("Options.Statuses["+string(reason)+"]", strconv.Itoa(status), "must be 400 to 599")
		}
	}
	if err := checkTransactor(store, &o); err != nil {
		return nil, err
	}
	m := &Middleware{
		store:      store,
		resource:   resource,
		opts:       o,
		retryAfter: strconv.FormatInt(int64((o.RetryAfter-1)/time.Second)+1, 10),
	}
	_, m.instant = store.(*guard.Memory)
	var err error
	if m.names, err = headerNames("Options", o.TokenHeader, o.LeaseHeader, o.ResourceHeader); err != nil {
		return nil, err
	}
	m.problems = renderAll(m.names, o.Statuses)
	return m, nil
}

// checkTransactor ensures that a resource has one mark.
func checkTransactor(store guard.Store, o *Options) error {
	if o.Transactor == nil {
		return nil
	}
	marks := o.Transactor.Marks()
	if marks == nil || !reflect.TypeOf(marks).Comparable() || marks != store {
		return guard.Invalid("Options.Transactor", reflect.TypeOf(o.Transactor).String(),
			"raises the marks of another store than the one given to New, so that a resource would have two marks; give New the Transactor's own (for sqlfence its DB)")
	}
	if _, ok := o.Transactor.(UnfencedTransactor); o.InsecureReportOnly && !ok {
		return guard.Invalid("Options.Transactor", reflect.TypeOf(o.Transactor).String(), "must be an UnfencedTransactor for Options.InsecureReportOnly")
	}
	return nil
}

// headers are the canonical names of the three fields.
type headers struct{ token, lease, resource string }

// consumed are fields that never reach a handler as the client sent them: a
// proxy removes them or net/http takes them out of the map. A token sent there
// would always be missing, or worse, sometimes.
var consumed = []string{
	"Connection", "Content-Length", "Host", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization",
	"Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade",
}

// headerNames returns the canonical names with defaults filled in; where names
// the options struct in the error.
func headerNames(where, token, lease, resource string) (headers, error) {
	h := headers{token, lease, resource}
	seen := map[string]bool{}
	for _, f := range []struct {
		field, unset string
		name         *string
	}{
		{"TokenHeader", TokenHeader, &h.token},
		{"LeaseHeader", LeaseHeader, &h.lease},
		{"ResourceHeader", ResourceHeader, &h.resource},
	} {
		if *f.name == "" {
			*f.name = f.unset
		}
		if !isToken(*f.name) {
			return headers{}, guard.Invalid(where+"."+f.field, *f.name, "is no field name")
		}
		*f.name = textproto.CanonicalMIMEHeaderKey(*f.name)
		if slices.Contains(consumed, *f.name) {
			return headers{}, guard.Invalid(where+"."+f.field, *f.name, "does not reach a handler unchanged")
		}
		if seen[*f.name] {
			return headers{}, guard.Invalid(where+"."+f.field, *f.name, "is the name of another field, too")
		}
		seen[*f.name] = true
	}
	return h, nil
}

// isToken reports whether s is a token by RFC 9110, section 5.6.2.
func isToken(s string) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case c == '!', c == '#', c == '$', c == '%', c == '&', c == '\'', c == '*', c == '+',
			c == '-', c == '.', c == '^', c == '_', c == '`', c == '|', c == '~':
		default:
			return false
		}
	}
	return s != ""
}

// LimitNames returns a function for [Options.Verify] that lets each caller name
// at most names different resources, and at most callers different callers do
// so, since the process started; anything beyond is refused with
// [guard.ErrUnavailable]. It is for services whose clients make up the
// resources: every admitted name takes space in the store, forever in a
// [guard.Memory] and until [guard.Store]'s Retire in a database, and a full
// store refuses everybody's new names. The memory it takes is bounded by names
// times callers, at 16 bytes each or somewhat more. caller returns the
// authenticated identity; its errors are answered like those of a
// [ResourceFunc].
//
// A name counts when it is verified, even if the store then refuses it. Each
// replica counts separately.
func LimitNames(names, callers int, caller ResourceFunc) (func(guard.Claim, *http.Request) error, error) {
	if caller == nil {
		return nil, guard.Invalid("caller", "", "must not be nil")
	}
	if names < 1 || callers < 1 {
		return nil, guard.Invalid("LimitNames", strconv.Itoa(names)+", "+strconv.Itoa(callers), "must be positive")
	}
	var mu sync.RWMutex
	seed := maphash.MakeSeed()
	seen := map[string]map[uint64]struct{}{}
	return func(claim guard.Claim, r *http.Request) error {
		who, err := caller(r)
		if err != nil {
			return &resourceError{err}
		}
		name := maphash.String(seed, claim.Resource) // two names that collide count as one
		mu.RLock()
		_, known := seen[who][name]
		mu.RUnlock()
		if known {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		own := seen[who]
		switch {
		case own == nil && len(seen) >= callers:
			return guard.Unavailable("verify", claim, errManyCallers)
		case len(own) >= names:
			return guard.Unavailable("verify", claim, errManyNames)
		case own == nil:
			own = map[uint64]struct{}{}
			seen[who] = own
		}
		own[name] = struct{}{}
		return nil
	}, nil
}

var (
	errManyCallers = errors.New("more callers than LimitNames allows")
	errManyNames   = errors.New("the caller names more resources than LimitNames allows")
)
