package lockclient

import (
	"cmp"
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

	defaultPollInterval = 100 * time.Millisecond
)

// Options configures [New]. The zero value is the default.
type Options struct {
	// Logger gets the events that the package's documentation names, such as
	// lock_acquired and lock_lost; if nil, warnings go to slog.Default() and
	// the rest is dropped.
	Logger *slog.Logger
	// Observer observes every acquire, renewal, release and loss; nil means
	// none.
	Observer guard.Observer
	// OpTimeout bounds one call of the issuer, and how long one whose response was
	// lost is repeated; 0 means 5 s. A grant or a renewal is further bounded by the
	// TTL, since a later response is of no use. The issuer's own timeout may be
	// shorter.
	OpTimeout time.Duration
	// ReleaseTimeout bounds [Lease.Release] with its retries; 0 means OpTimeout.
	ReleaseTimeout time.Duration
	// PollInterval is the longest pause between two tries of [Client.Acquire]
	// while the server's notifications do not arrive; 0 means 100 ms. Pauses
	// start at a fifth of it and are jittered.
	PollInterval time.Duration
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
	if err := input.Fill("Options.ReleaseTimeout", &s.ReleaseTimeout, s.OpTimeout, input.MaxTimeout); err != nil {
		return s, "", err
	}
	if err := input.Fill("Options.PollInterval", &s.PollInterval, defaultPollInterval, time.Minute); err != nil {
		return s, "", err
	}
	namespace, err = input.NewNamespace("Options.Namespace", s.Namespace)
	return s, namespace, err
}

// AcquireOptions configures [Client.Acquire] and [Client.TryAcquire]. The TTL
// is required, so nil is not valid.
type AcquireOptions struct {
	// TTL is how long the lease lasts unless it is renewed: [MinTTL] to
	// [MaxTTL], truncated to whole microseconds.
	TTL time.Duration
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
	// logs: operators and refused clients see it. At most 1,000 bytes of UTF-8 without control characters; issuers other than
	// PostgreSQL may accept less, or none. Empty means where the holder runs,
	// as in "host worker-7, process 4711", if the issuer stores metadata.
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

func (o *AcquireOptions) validate(issuer driver.Limits) (ttl time.Duration, leaseID string, err error) {
	if o == nil {
		return 0, "", guard.Missing("AcquireOptions.TTL")
	}
	low, high := max(MinTTL, issuer.MinTTL), MaxTTL
	if issuer.MaxTTL > 0 {
		high = min(high, issuer.MaxTTL)
	}
	if err := input.Between("TTL", o.TTL, low, high); err != nil {
		return 0, "", err
	}
	if step := issuer.TTLStep; step > time.Microsecond && o.TTL%step != 0 {
		return 0, "", guard.Invalid("TTL", o.TTL.String(), "must be a multiple of "+step.String())
	}
	if err := guard.ValidateLeaseID(o.LeaseID); err != nil {
		return 0, "", err
	}
	if err := input.Plain("Metadata", o.Metadata, issuer.MetadataBytes); err != nil {
		return 0, "", err
	}
	return o.TTL.Truncate(time.Microsecond), cmp.Or(o.LeaseID, input.NewLeaseID()), nil
}

// HoldOptions configures [Client.Hold]. The TTL is required.
type HoldOptions struct {
	// TTL is how long the lease lasts without a renewal: [MinTTL] to [MaxTTL].
	// It must cover the longest pause of the process, the time that a renewal
	// takes and a margin; with less, a healthy holder loses its lease.
	TTL time.Duration
	// RenewInterval is the time between renewals; 0 means a third of the TTL.
	// More is refused, so that a renewal can fail and be repeated in time. Up
	// to a fifth of it is subtracted at random.
	RenewInterval time.Duration
	// LeaseID and Metadata are as in [AcquireOptions].
	LeaseID, Metadata string
}

func (o *HoldOptions) validate() (*AcquireOptions, time.Duration, error) {
	if o == nil {
		return nil, 0, guard.Missing("HoldOptions.TTL")
	}
	a := &AcquireOptions{TTL: o.TTL, LeaseID: o.LeaseID, Metadata: o.Metadata}
	if err := input.Between("TTL", o.TTL, MinTTL, MaxTTL); err != nil {
		return nil, 0, err
	}
	every := o.RenewInterval
	err := input.Fill("RenewInterval", &every, o.TTL/3, o.TTL/3)
	return a, every, err
}
