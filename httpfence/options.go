package httpfence

import (
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

// DefaultRetryAfter is what an answer for an unavailable store tells the
// client to wait, unless [Options.RetryAfter] says otherwise.
const DefaultRetryAfter = 2 * time.Second

// Options configures [New]. The zero value of every field is its default. The
// struct is read once, by New; changing it afterwards has no effect.
type Options struct {
	// TokenHeader names the field that carries the token; "" means
	// [TokenHeader]. Any case; it must be a token by RFC 9110 section 5.6.2,
	// and no field that proxies or net/http consume (Connection, Host, TE...).
	TokenHeader string
	// LeaseHeader names the field that carries the lease ID; "" means
	// [LeaseHeader]. It must differ from TokenHeader.
	LeaseHeader string
	// RequireLease answers 428 to a request without a lease ID. Without it a
	// request that has none presents the empty lease ID, and empty equals only
	// empty.
	RequireLease bool

	// UnguardedMethods are the methods that [Middleware.Admit] lets through
	// unexamined; nil means GET, HEAD, OPTIONS and TRACE, and an empty slice
	// that is not nil means none. Methods are compared exactly, as in RFC 9110
	// section 9.1: "get" is another method than "GET", and guarded.
	UnguardedMethods []string
	// InsecureReportOnly lets every request through [Middleware.Admit], and
	// only tells Observer and Logger what would have been refused. It is
	// for finding the clients that send no token yet, and protects nothing.
	// Admitted claims raise marks all the same, or nothing could be compared;
	// a request that would have been refused gets no claim in its context.
	// Behind [Middleware.InTx] it gets a transaction without a fence. Check and
	// Raise tell the truth: their callers asked.
	InsecureReportOnly bool

	// DiscloseMark adds to the answer for stale, spent, conflict and
	// mark_ahead the members "token", what was offered, and "mark", the
	// resource's highest token, as decimal strings. Where the mark is a store's
	// floor the member "floor" is true. The lease ID of the mark is never
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
	// default; one that writes none leaves it, with the header fields that
	// the hook has set. It must be safe for concurrent use, and must not use w
	// after it has returned.
	OnReject func(w http.ResponseWriter, r *http.Request, rej *Rejection)

	// Observer is told every comparison: [guard.OpCheck], [guard.OpAdmit],
	// [guard.OpTransaction] and [guard.OpRaise] on the surface "http"; a
	// transaction when it has ended other than by a panic, with the reason
	// other if the handler answered with an error. nil costs nothing, not even a clock reading.
	Observer guard.Observer
	// Logger gets a record "fencing_rejected" for every refusal: at level Warn,
	// for conflict and mark_ahead at level Error. nil logs nothing.
	Logger *slog.Logger
}

// defaultUnguarded are the methods that RFC 9110 section 9.2.1 calls safe.
var defaultUnguarded = []string{http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace}

// New returns a [Middleware] that compares claims with the marks in store. The
// resource of a request is what resource says; see [ChiParam], [PathValue],
// [Join]. opts may be nil.
//
// All replicas of a service must be given one shared store. New panics if the
// configuration is bad: that is a mistake in the program, not a condition.
func New(store guard.Store, resource ResourceFunc, opts *Options) *Middleware {
	if store == nil {
		panic("httpfence: New needs a store")
	}
	if resource == nil {
		panic("httpfence: New needs a ResourceFunc")
	}
	var o Options
	if opts != nil {
		o = *opts
	}
	if o.RetryAfter < 0 {
		panic(fmt.Sprintf("httpfence: Options.RetryAfter is %v, must not be negative", o.RetryAfter))
	}
	if o.RetryAfter == 0 {
		o.RetryAfter = DefaultRetryAfter
	}
	if o.UnguardedMethods == nil {
		o.UnguardedMethods = defaultUnguarded
	}
	for _, method := range o.UnguardedMethods {
		if !isToken(method) {
			panic(fmt.Sprintf("httpfence: Options.UnguardedMethods has %q, which is no method", method))
		}
	}
	m := &Middleware{
		store:        store,
		resource:     resource,
		requireLease: o.RequireLease,
		unguarded:    slices.Clone(o.UnguardedMethods),
		reportOnly:   o.InsecureReportOnly,
		discloseMark: o.DiscloseMark,
		onReject:     o.OnReject,
		observer:     o.Observer,
		logger:       o.Logger,
		retryAfter:   strconv.FormatInt(int64((o.RetryAfter-1)/time.Second)+1, 10),
	}
	m.tokenHeader, m.leaseHeader = headerNames("Options", o.TokenHeader, o.LeaseHeader)
	for reason, status := range o.Statuses {
		if outcomeOf(reason).reason != reason {
			panic(fmt.Sprintf("httpfence: Options.Statuses has the key %q, which is no reason", reason))
		}
		if status < 400 || status > 599 {
			panic(fmt.Sprintf("httpfence: Options.Statuses[%q] is %d, must be 400 to 599", reason, status))
		}
	}
	m.problems = renderAll(m.tokenHeader, m.leaseHeader, o.Statuses)
	return m
}
