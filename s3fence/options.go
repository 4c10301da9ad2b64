package s3fence

import (
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/fencepost-go/fencepost/guard"
)

// Options configures [Open]. The zero value of every field is its default. The
// struct is read once, by Open; changing it afterwards has no effect.
type Options struct {
	// Prefix precedes the keys of this package's internal objects: data of
	// [Pointer], the marks of [Store], the probe's objects; "" puts them at
	// ".fencepost/". All writers of one bucket's objects use one Prefix. A "/"
	// is added after it.
	Prefix string
	// Encryption is requested with every write and, where a read needs it, with
	// every read. The zero value means the bucket's default.
	Encryption Encryption
	// ChecksumAlgorithm is the checksum that the SDK sends with every write
	// and the store verifies; "" means the SDK's default.
	ChecksumAlgorithm types.ChecksumAlgorithm
	// ExpectedBucketOwner is the account that must own the bucket, which the
	// store checks with every request; "" means any account.
	ExpectedBucketOwner string

	// MaxBody is the longest body that [Sealed] and [Plain] take, in bytes: it
	// is held in memory, and [Objects.Raise] reads it back whole. 0 means
	// [DefaultMaxBody]; at most 5 GiB less 4 KiB, what one PUT can carry.
	MaxBody int64
	// PartSize is the length of the parts in which [Pointer] sends its data,
	// and Concurrency how many are in flight at once; one write holds at most
	// their product in memory. 0 means 8 MiB and 4. A part has 5 MiB to 5 GiB;
	// an object has at most 10,000 parts, 78 GiB by default.
	PartSize    int64
	Concurrency int
	// GracePeriod is how long [Objects.Collect] keeps data that a pointer has
	// left, for readers that still read it. 0 means [DefaultGracePeriod]. It is
	// measured by the clocks of the store and of the collector and serves
	// readers only: no pointer loses its data because of a wrong clock.
	GracePeriod time.Duration

	// CacheSize is how many objects' states are remembered, about 1 KiB each,
	// so that the next write takes one request instead of two. 0 means 1024;
	// negative remembers none. An outdated state costs a request and is never
	// trusted for a refusal.
	CacheSize int
	// RequestTimeout bounds each single request of the compare-and-swap loop;
	// 0 means one minute.
	RequestTimeout time.Duration

	// AtomicDelete declares that the store compares and deletes in one step when
	// a DELETE has a condition, as Amazon S3 does. Then [Store.Retire] deletes
	// marks. Without it their objects stay, emptied. It is a declaration,
	// because the probe, which refuses stores that it catches, does not catch
	// all: versitygw 1.8 passes most of the time, yet can lose a mark that is
	// raised while it is deleted.
	AtomicDelete bool

	// Logger receives what operators must know: that a bucket turned out to be
	// unsuitable after it was opened. nil means slog.Default().
	Logger *slog.Logger
	// Observer is notified of every fenced write, raise and admission; nil means
	// none.
	Observer guard.Observer
	// Probe is the result of an earlier [Open] of the same bucket at the same
	// endpoint, which replaces a new probe if it is not older than ProbeMaxAge,
	// is of this build's version, and has tried what these Options rely on.
	// Otherwise the store is probed again. A probe of another endpoint or bucket
	// is ErrInvalid, and so is any probe beside a client whose endpoint is not
	// known, because it is no [*s3.Client] or has an endpoint resolver of its
	// own. It is trusted: keep it where nobody else can write. nil means none.
	Probe *Probe
	// ProbeMaxAge is the maximum age of Probe; 0 means [DefaultProbeMaxAge].
	ProbeMaxAge time.Duration
	// InsecureSkipProbe opens a bucket without testing whether the store
	// enforces preconditions. On a store that does not, nothing is fenced.
	InsecureSkipProbe bool
}

// Encryption is the server-side encryption of what is written.
type Encryption struct {
	// Algorithm is "AES256", "aws:kms" or another that the store knows.
	Algorithm types.ServerSideEncryption
	// KMSKeyID and KMSContext (Base64 of a JSON object) belong to "aws:kms".
	KMSKeyID   string
	KMSContext string
	// BucketKey asks for an S3 Bucket Key with "aws:kms".
	BucketKey bool
	// CustomerKey is a key of 32 bytes that the store does not keep (SSE-C).
	// It excludes the other fields.
	CustomerKey []byte
}

// name describes the encryption without revealing a key.
func (e Encryption) name() string {
	if len(e.CustomerKey) > 0 {
		return "customer key"
	}
	return string(e.Algorithm)
}

const (
	// DefaultMaxBody is the default of [Options].MaxBody.
	DefaultMaxBody = 64 << 20
	// DefaultGracePeriod is the default of [Options].GracePeriod.
	DefaultGracePeriod = time.Hour

	// DefaultProbeMaxAge is the default of [Options].ProbeMaxAge.
	DefaultProbeMaxAge = 24 * time.Hour

	maxSinglePut = 5 << 30
	minPartSize  = 5 << 20
	maxPrefix    = 512
)

// resolve fills in the defaults and checks what is set.
func (o Options) resolve() (Options, error) {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	orDefault(&o.MaxBody, DefaultMaxBody)
	orDefault(&o.PartSize, 8<<20)
	orDefault(&o.Concurrency, 4)
	orDefault(&o.GracePeriod, DefaultGracePeriod)
	orDefault(&o.CacheSize, 1024)
	orDefault(&o.ProbeMaxAge, DefaultProbeMaxAge)
	orDefault(&o.RequestTimeout, time.Minute)
	for _, f := range []struct {
		field            string
		value, low, high int64
	}{
		{"Options.MaxBody", o.MaxBody, 1, maxSinglePut - tailSize},
		{"Options.PartSize", o.PartSize, minPartSize, maxSinglePut},
		{"Options.Concurrency", int64(o.Concurrency), 1, 1000},
		{"Options.GracePeriod", int64(o.GracePeriod), 1, 1<<63 - 1},
		{"Options.ProbeMaxAge", int64(o.ProbeMaxAge), 1, 1<<63 - 1},
		{"Options.RequestTimeout", int64(o.RequestTimeout), 1, 1<<63 - 1},
	} {
		if f.value < f.low || f.value > f.high {
			return o, guard.Invalid(f.field, strconv.FormatInt(f.value, 10),
				"must be "+strconv.FormatInt(f.low, 10)+" to "+strconv.FormatInt(f.high, 10))
		}
	}
	if int64(int(o.MaxBody+tailSize)) != o.MaxBody+tailSize || int64(int(o.PartSize)) != o.PartSize {
		return o, guard.Invalid("Options.MaxBody", strconv.FormatInt(o.MaxBody, 10), "is more than this machine can address")
	}
	if o.Prefix != "" {
		o.Prefix = strings.TrimSuffix(o.Prefix, "/")
		if err := validateKey("Options.Prefix", o.Prefix, maxPrefix); err != nil {
			return o, err
		}
		o.Prefix += "/"
	}
	o.Prefix += internalSegment + "/"
	o.Encryption.CustomerKey = slices.Clone(o.Encryption.CustomerKey) // a caller may wipe its own
	e := o.Encryption
	if len(e.CustomerKey) > 0 {
		if len(e.CustomerKey) != 32 { // the key itself must not be shown
			return o, guard.Invalid("Options.Encryption.CustomerKey", strconv.Itoa(len(e.CustomerKey))+" bytes", "must have 32 bytes")
		}
		if e.Algorithm != "" || e.KMSKeyID != "" || e.KMSContext != "" || e.BucketKey {
			return o, guard.Invalid("Options.Encryption.Algorithm", string(e.Algorithm), "must be empty beside a CustomerKey")
		}
	}
	return o, nil
}

func orDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}
