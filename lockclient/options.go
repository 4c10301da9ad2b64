package lockclient

import (
	"log/slog"
	"os"
	"strconv"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/internal/input"
)

const (
	// MinTTL is the shortest TTL. Below it, a renewal and its retry hardly fit
	// between two garbage collections; a second is a good lower bound in
	// practice, half a minute a usual choice.
	MinTTL = 100 * time.Millisecond
	// MaxTTL is the longest TTL: nobody else gets the lease of a crashed holder
	// before its TTL has run out.
	MaxTTL = 24 * time.Hour

	defaultTTL = 30 * time.Second
)

// Options configures [New]. The zero value is the default.
type Options struct {
	// Logger gets the events that the package's documentation names, such as
	// lock_acquired and lock_lost; if nil, warnings go to slog.Default() and
	// the rest is dropped.
	Logger *slog.Logger
	// Observer observes every acquire, renewal, release and loss; nil means
	// none.
	//
	// The logger and the observer are called after the fact, from one goroutine. If one of
	// them blocks, up to 1,024 events wait for it; the rest is dropped, and
	// lock_events_dropped says how many.
	Observer guard.Observer
	// OpTimeout bounds one call of the issuer, how long one whose response was
	// lost is repeated, and [Lease.Release]; 0 means 5 s. A grant or a renewal is further
	// bounded by the TTL, since a later response is of no use, and an acquire by the
	// deadline of its context. The issuer's own timeout may be shorter.
	OpTimeout time.Duration
	// Namespace confines the client to the resources of one tenant, such as
	// "tenant_123"; empty means not confined. Every resource that a call names
	// is a name within it. Leases, claims and errors have the whole name, which
	// is what the fences compare: the escaped namespace, a colon and the name,
	// so that the name guard.JoinResource(a, b) becomes
	// guard.JoinResource(Namespace, a, b). No name reaches another namespace,
	// whatever it contains. At most 256 bytes, of which "%" and ":" count
	// three.
	Namespace string
}

func (o *Options) withDefaults() (s Options, namespace input.Namespace, err error) {
	if o != nil {
		s = *o
	}
	if err := input.Fill("Options.OpTimeout", &s.OpTimeout, 5*time.Second, input.MaxTimeout); err != nil {
		return s, "", err
	}
	namespace, err = input.NewNamespace("Options.Namespace", s.Namespace)
	return s, namespace, err
}

// AcquireOptions configures one acquisition. The zero value is the default.
type AcquireOptions struct {
	// TTL is how long the lease lasts without a renewal: [MinTTL] to [MaxTTL], truncated
	// to whole microseconds; 0 means 30 s, or what the issuer allows that is next to it.
	// It must cover the longest pause of the process, the time that a renewal takes
	// and a margin ([RecommendTTL]): with less, a healthy holder loses its lease.
	TTL time.Duration
	// RenewInterval is the time between the renewals of [Client.Hold] and
	// [Lease.KeepAlive]; 0 means a third of the TTL. More is refused, so that a renewal can
	// fail and be repeated in time. Up to a fifth of it is subtracted at random.
	RenewInterval time.Duration
	// LeaseID names this acquisition, not a job: leave it empty for a new UUID,
	// unless you repeat an acquire whose outcome is unknown. A caller that
	// presents the ID of a lease that still runs, also from another process, is
	// its holder and gets the same token, if the client's owner is the same;
	// under another owner the error is guard.ErrInvalid. After the release of a
	// lease that was acquired under an ID of the caller's own, the ID is refused
	// for an hour ([ErrLeaseIDSpent]); one that the client made is spent only if
	// an attempt to acquire it may still arrive, and must not be presented again.
	LeaseID string
	// Metadata is text for people, such as what is being done and where it
	// logs: operators and refused clients see it. At most 1,000 bytes of UTF-8 without
	// control characters; issuers other than PostgreSQL may accept less, or none. Empty
	// means where the holder runs, as in "host worker-7, process 4711", if the issuer
	// stores metadata and the client has no Namespace.
	Metadata string
}

// whereabouts says where this process runs. A host without a usable name has none.
func whereabouts() string {
	process := "process " + strconv.Itoa(os.Getpid())
	if host, err := os.Hostname(); err == nil && host != "" && input.Plain("host", host, 253) == nil {
		return "host " + host + ", " + process
	}
	return process
}

// withDefaults fills in what is not given and checks the rest.
func (o *AcquireOptions) withDefaults(issuer driver.Limits) (s AcquireOptions, err error) {
	if o != nil {
		s = *o
	}
	low, high, step := max(MinTTL, issuer.MinTTL), MaxTTL, max(issuer.TTLStep, time.Microsecond)
	if issuer.MaxTTL > 0 {
		high = min(high, issuer.MaxTTL)
	}
	if s.TTL == 0 {
		s.TTL = min(max(defaultTTL.Truncate(step), low), high)
	}
	if err := input.Between("TTL", s.TTL, low, high); err != nil {
		return s, err
	}
	if step > time.Microsecond && s.TTL%step != 0 {
		return s, guard.Invalid("TTL", s.TTL.String(), "must be a multiple of "+step.String())
	}
	if err := input.Fill("RenewInterval", &s.RenewInterval, s.TTL/3, s.TTL/3); err != nil {
		return s, err
	}
	if err := guard.ValidateLeaseID(s.LeaseID); err != nil {
		return s, err
	}
	s.TTL = s.TTL.Truncate(time.Microsecond)
	return s, input.Plain("Metadata", s.Metadata, issuer.MetadataBytes)
}
