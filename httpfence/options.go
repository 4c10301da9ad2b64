package httpfence

import (
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

// The defaults of [Options].
const (
	// DefaultMaxBody is the default of [Options.MaxBody], in bytes.
	DefaultMaxBody = 1 << 20
	// DefaultMaxWait is the default of [Options.MaxWait].
	DefaultMaxWait = 10 * time.Second
)

// raiseWaits is how many times [Options.MaxWait] a raise may take.
const raiseWaits = 3

// retryAfter is the Retry-After, in seconds, of a response for an unavailable
// store (RFC 9110, section 10.2.3).
const retryAfter = "2"

// Options configures [New] and [NewTx]. The zero value of every field is its
// default. The struct is read once; changing it afterwards has no effect.
type Options struct {
	// TokenOnly admits requests without a lease ID; by default they get
	// 428. A request that has none then presents the empty lease
	// ID. Two holders that send none cannot be distinguished (no promise P4),
	// and a proxy that strips the field goes unnoticed.
	TokenOnly bool
	// InsecureAnyResource admits requests that do not say which resource their
	// claim is for; by default they get 428. A claim that is sent
	// to the wrong route then raises the mark there, and the true holder is
	// stale from then on. A field that is present is still compared.
	InsecureAnyResource bool
	// Verify checks who issued the claim, or whether this caller may present
	// it, before the store is queried or a mark raised; nil means that the
	// token is trusted. Whoever can send a high token to a service without
	// Verify can lock all others out. The claim is complete and well formed,
	// and its resource is the route's. An error gets the status of its sentinel
	// of package guard, such as [guard.ErrInvalid] for a token that was never
	// issued; any other error gets 500, and so does one that speaks of another
	// claim ([guard.ReasonFor]). It must be safe for concurrent use.
	// Package guard/proof has one for claims that their issuer has signed.
	Verify func(claim guard.Claim, r *http.Request) error
	// UnguardedMethods are the methods that [Middleware.Admit] and
	// [TxMiddleware.InTx] let through unexamined; none given means GET, HEAD,
	// OPTIONS and TRACE. Methods are compared exactly, as in RFC 9110 section
	// 9.1: "get" is a different method from "GET", and guarded.
	UnguardedMethods []string
	// GuardAllMethods has every method guarded; UnguardedMethods must be empty.
	GuardAllMethods bool

	// MaxBody is how many bytes of body a request to [TxMiddleware.InTx] may
	// have, and how many its response or that of OnReject may have. A larger
	// request gets 413; a larger response rolls the work back. Both are held in
	// memory while the request is in flight. 0 means [DefaultMaxBody]; it must not
	// be negative.
	MaxBody int64
	// MaxWait bounds how long a request waits for the store, or for its fenced
	// transaction to begin: for a connection, for a lock, for the raise of a
	// new token. When it expires the response is 503 with Retry-After, and
	// nothing was written. It does not bound the handler. [Middleware.Raise],
	// which may have to wait for the transactions of an older holder, waits
	// three times as long: let that be longer than the store's own bound, such
	// as RaiseTimeout of sqlfence. A [guard.Memory] never waits. 0 means
	// [DefaultMaxWait]; it must not be negative.
	MaxWait time.Duration

	// DiscloseMark adds to the response for stale, spent, conflict and
	// mark_ahead the members "token", the token offered, and "mark", the
	// resource's highest token, as decimal strings. If the mark is a store's
	// floor, the member "floor" is true. The lease ID of the mark is never
	// disclosed. Set it only for clients inside the trust boundary.
	DiscloseMark bool
	// OnReject is called for every refusal, before anything is written; nil
	// means the default response. A hook that writes a response replaces the
	// default; one that writes none keeps it, with the header fields that the
	// hook has set, and so does one that hijacks or writes more than MaxBody:
	// what it writes is sent when it has returned. It must be safe for
	// concurrent use, and must not use w after it has returned.
	OnReject func(w http.ResponseWriter, r *http.Request, rej *Rejection)
	// Logger gets a line for each request that is not let through, by
	// [guard.LogObserver]: nobody else learns the error behind the response. No
	// line has a malformed field's value, because people put passwords into the
	// wrong field. nil means [slog.Default] at that moment.
	Logger *slog.Logger
	// Observer receives an event for every comparison and every refusal:
	// [guard.OpCheck], [guard.OpAdmit], [guard.OpTransaction], [guard.OpRaise],
	// and [guard.OpReject] for [Middleware.Reject], on the surface "http". A
	// transaction is reported when it has ended other than by a panic; one whose
	// handler responded with an error of its own has the reason other and no
	// error. nil means none.
	Observer guard.Observer
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
	case o.MaxBody < 0:
		return nil, guard.Invalid("Options.MaxBody", strconv.FormatInt(o.MaxBody, 10), "must not be negative")
	case o.MaxWait < 0:
		return nil, guard.Invalid("Options.MaxWait", o.MaxWait.String(), "must not be negative")
	case o.GuardAllMethods && len(o.UnguardedMethods) > 0:
		return nil, guard.Invalid("Options.UnguardedMethods", o.UnguardedMethods[0], "must be empty with GuardAllMethods")
	}
	if o.MaxBody == 0 {
		o.MaxBody = DefaultMaxBody
	}
	if o.MaxWait == 0 {
		o.MaxWait = DefaultMaxWait
	}
	if len(o.UnguardedMethods) == 0 && !o.GuardAllMethods {
		o.UnguardedMethods = defaultUnguarded
	}
	o.UnguardedMethods = slices.Clone(o.UnguardedMethods)
	for _, method := range o.UnguardedMethods {
		if _, err := http.NewRequest(method, "", nil); method == "" || err != nil {
			return nil, guard.Invalid("Options.UnguardedMethods", method, "is not a method")
		}
	}
	_, instant := store.(*guard.Memory)
	return &Middleware{store: store, resource: resource, opts: o, instant: instant}, nil
}

// NewTx returns a [TxMiddleware], whose handlers run in transactions of
// transactor. Its Admit, Check and Raise use the same marks, so that a resource
// has one. Otherwise it is [New].
func NewTx(transactor Transactor, resource ResourceFunc, opts *Options) (*TxMiddleware, error) {
	if transactor == nil {
		return nil, guard.Invalid("Transactor", "", "must not be nil")
	}
	m, err := New(transactor.Marks(), resource, opts)
	if err != nil {
		return nil, err
	}
	return &TxMiddleware{Middleware: m, transactor: transactor}, nil
}
