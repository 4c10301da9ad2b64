package s3fence

import (
	"cmp"
	"context"
	"errors"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

// Bucket is a bucket whose store is known to enforce preconditions. Open one
// with [Open]; the zero value is not usable. It is safe for concurrent use,
// holds no connection and needs no closing.
type Bucket struct {
	*register
	endpoint string // "" if the client does not tell
	name     string
	opts     Options
	opaque   bool // two writes of one body have different ETags
	report   *Report

	// plainStop is set once a write has shown that ETags are no longer opaque.
	plainStop atomic.Pointer[UnsuitableError]
}

// Open returns the bucket after checking what is between this program and the
// store, and what this program may do. A store that it does not know it probes whole, as
// [Probe] does, in 400 to 800 requests; [Bucket.Report] is what it found.
//
// A store that cannot be fenced is refused with [ErrUnsuitableStore], and nothing of the
// probe is left, but for versions in a bucket that keeps them.
//
// Keep the report and pass it in [Options].Report: then Open sends nothing. At Amazon's own
// endpoints it sends 18 requests, which show caches, boxes that rewrite bodies, and missing
// permissions, and takes the store for sound: Amazon documents what is relied on. Who only
// reads uses [NewReader]. opts may be nil.
//
// Errors:
//   - ErrInvalid: a bad bucket name or option, and a name that stands for several stores.
//   - ErrUnsuitableStore, which is ErrSetup: the store is refused.
//   - ErrSetup: the bucket or a right is missing.
//   - ErrUnavailable: the store could not be asked, or its responses showed nothing.
func Open(ctx context.Context, client S3, bucket string, opts *Options) (*Bucket, error) {
	b, err := newBucket(client, bucket, opts)
	if err != nil || b.opts.InsecureSkipProbe {
		return b, err
	}
	known := false
	if b.report = b.opts.Report; b.report != nil {
		if known, err = b.report.usable(b, time.Now()); err != nil {
			return nil, err
		}
	}
	if !known {
		if b.report, err = b.probe(ctx, !strings.HasPrefix(b.endpoint, amazon)); err != nil {
			return nil, err
		}
	}
	b.opaque = b.report.OpaqueETags
	return b, nil
}

// newBucket checks the arguments of Open and Probe.
func newBucket(client S3, bucket string, opts *Options) (*Bucket, error) {
	if client == nil {
		return nil, guard.Missing("client")
	}
	if len(bucket) < 3 || len(bucket) > 2048 || !printable(bucket) { // names, and ARNs of access points
		return nil, guard.Invalid("bucket", bucket, "must be a bucket's name or an access point's ARN")
	}
	if opts != nil && slices.Contains(opts.ProbeClients, nil) {
		return nil, guard.Missing("Options.ProbeClients")
	}
	endpoint := endpointOf(client)
	if err := oneStore(bucket, endpoint); err != nil {
		return nil, err
	}
	if opts == nil {
		opts = &Options{}
	}
	o, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Bucket{register: newRegister(&sdk{client, bucket, o.RequestTimeout}, &o), endpoint: endpoint, name: bucket, opts: o}, nil
}

func newRegister(d driver, o *Options) *register {
	return &register{driver: d, maxBody: o.MaxBody, delay: 20 * time.Millisecond, cache: map[string]version{}, capacity: 1024}
}

// Report is what is known of the store: what Open has found, or Options.Report if that
// was used; nil with InsecureSkipProbe. Keep it, so that the next Open need not probe.
func (b *Bucket) Report() *Report { return b.report }

// ErrUnsuitableStore is the error, for [errors.Is], of a store that cannot be fenced,
// or not in the requested mode. It is permanent: trying again does not change a store.
// The error is a [*UnsuitableError].
var ErrUnsuitableStore = errors.New("the store is unsuitable for fencing")

// UnsuitableError says which property keeps a store, or a bucket, from being fenced. It
// unwraps to [ErrUnsuitableStore] and [guard.ErrSetup]. Nothing was written except the
// probe's own objects.
type UnsuitableError struct {
	Bucket string
	// Check is what was tested, Problem what the store did.
	Check, Problem string
}

// Error begins with the reason.
func (e *UnsuitableError) Error() string {
	return e.Check + ": " + e.Problem + ": the store of bucket " + strconv.QuoteToASCII(e.Bucket) + " is unsuitable for fencing"
}

// Unwrap returns ErrUnsuitableStore and guard.ErrSetup.
func (e *UnsuitableError) Unwrap() []error { return []error{ErrUnsuitableStore, guard.ErrSetup} }

func (b *Bucket) unsuitable(check, problem string) *UnsuitableError {
	return &UnsuitableError{Bucket: b.name, Check: check, Problem: problem}
}

// Options configures [Open]. The zero value of every field is its default. The
// struct is read once, by Open; changing it afterwards has no effect.
type Options struct {
	// Prefix precedes the keys of this package's internal objects: data of
	// [Pointers], the probe's objects; "" puts them at
	// ".fencepost/". All writers of one bucket's objects use one Prefix. A "/"
	// is added after it.
	Prefix string

	// MaxBody is the longest body that [Objects] take, in bytes: it is held in
	// memory, and a raise reads it back whole. 0 means
	// [DefaultMaxBody]; at most 5 GiB less 4 KiB, what one PUT can carry.
	MaxBody int64
	// GracePeriod is how long [Pointers.Collect] keeps data that a pointer has
	// left, for readers that still read it. 0 means [DefaultGracePeriod]. It is
	// measured by the store's clock, to the second, and serves readers only: no pointer
	// loses its data because of a wrong clock. A proxy that puts its own Date into
	// responses, as nginx does, must have the right time.
	GracePeriod time.Duration

	// RequestTimeout is how long a request may make no progress: no byte of its body goes
	// out, or of the response comes in. So a long body on a slow line takes as long as it
	// takes. A write is sent up to 8 times and read between, so a call without a deadline
	// on a store that does not respond takes up to 18 of these. 0 means one minute.
	RequestTimeout time.Duration

	// Observer is notified of every fenced write, raise and admission; nil means
	// none.
	Observer guard.Observer
	// Report is the result of an earlier [Open] or [Probe] of the same bucket at the same
	// endpoint and by the same way, so that Open need not probe. It counts if it is not
	// older than 30 days and is of this build's version; otherwise Open probes the
	// store. A report on another endpoint or bucket is ErrInvalid, and so is
	// any report given with a client whose endpoint is not known, because it does not embed
	// a [*s3.Client] or has an endpoint resolver of its own. It is trusted: keep it
	// where nobody else can write. nil means none.
	Report *Report
	// ProbeClients are more clients for the same bucket, over which the probe spreads its
	// racing writers and its readers: one for each gateway, address or way that writers
	// will use. Several gateways over one store may each keep a state of their own.
	ProbeClients []S3
	// InsecureSkipProbe opens a bucket without any request. On a store that does
	// not enforce preconditions, nothing is fenced.
	InsecureSkipProbe bool
}

const (
	// DefaultMaxBody is the default of [Options].MaxBody.
	DefaultMaxBody = 64 << 20
	// DefaultGracePeriod is the default of [Options].GracePeriod.
	DefaultGracePeriod = time.Hour

	maxSinglePut = 5 << 30
	maxPrefix    = 512
)

// withDefaults fills in the defaults and checks what is set.
func (o Options) withDefaults() (Options, error) {
	o.MaxBody = cmp.Or(o.MaxBody, DefaultMaxBody)
	o.GracePeriod = cmp.Or(o.GracePeriod, DefaultGracePeriod)
	o.RequestTimeout = cmp.Or(o.RequestTimeout, time.Minute)
	switch size := o.MaxBody + tailSize; {
	case o.MaxBody < 1 || size > maxSinglePut || int64(int(size)) != size:
		return o, guard.Invalid("Options.MaxBody", strconv.FormatInt(o.MaxBody, 10), "must be 1 to "+strconv.Itoa(min(maxSinglePut, math.MaxInt)-tailSize))
	case o.GracePeriod < 0:
		return o, guard.Invalid("Options.GracePeriod", o.GracePeriod.String(), "must not be negative")
	case o.RequestTimeout < 0:
		return o, guard.Invalid("Options.RequestTimeout", o.RequestTimeout.String(), "must not be negative")
	}
	if o.Prefix != "" {
		o.Prefix = strings.TrimSuffix(o.Prefix, "/")
		if err := validateKey("Options.Prefix", o.Prefix, maxPrefix); err != nil {
			return o, err
		}
		o.Prefix += "/"
	}
	o.Prefix += internalSegment + "/"
	return o, nil
}
