package s3fence

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

// Bucket is a bucket whose store is known to enforce preconditions. Open one
// with [Open]; the zero value is not usable. It is safe for concurrent use,
// holds no connection and needs no closing.
type Bucket struct {
	client   S3
	endpoint string // "" if the client does not tell
	name     string
	opts     Options
	probe    Probe
	clock    func() time.Time
	delay    time.Duration // the shortest wait before a retry

	// plainStop is set once a write has shown that ETags are no longer opaque.
	plainStop atomic.Pointer[UnsuitableError]

	mu    sync.Mutex
	cache map[string]state
}

// Open returns the bucket after probing the store: whether it enforces
// preconditions, also under concurrency, answers reads with one version of an
// object also beside writes, replaces metadata, and makes opaque ETags; see
// [Probe]. The probe sends about 1,500 requests in three bursts, which takes 1.5
// to 10 seconds, to keys of its own, and deletes them; it needs the right to. In
// a bucket with versioning their versions stay. The client should be able to have
// 16 connections, or the racing writers do not meet. opts may be nil.
//
// Errors: ErrInvalid for a bad bucket name or option; [ErrUnsuitableStore] for a
// store that is refused; ErrUnavailable, with the cause, for one that could not
// be asked.
func Open(ctx context.Context, client S3, bucket string, opts *Options) (*Bucket, error) {
	if client == nil {
		return nil, guard.Missing("client")
	}
	if len(bucket) < 3 || len(bucket) > 2048 || !printable(bucket) { // names, and ARNs of access points
		return nil, guard.Invalid("bucket", bucket, "must be a bucket's name or an access point's ARN")
	}
	if opts == nil {
		opts = &Options{}
	}
	o, err := opts.resolve()
	if err != nil {
		return nil, err
	}
	b := &Bucket{client: checked{client}, endpoint: endpointOf(client), name: bucket, opts: o, clock: time.Now, delay: 20 * time.Millisecond, cache: map[string]state{}}
	if o.InsecureSkipProbe {
		return b, nil
	}
	if o.Probe != nil {
		usable, err := o.Probe.usable(b, b.clock())
		if err != nil {
			return nil, err
		}
		if usable {
			b.probe = *o.Probe
			return b, nil
		}
	}
	if b.probe, err = b.runProbe(ctx); errors.Is(err, ErrUnsuitableStore) {
		return nil, err
	} else if err != nil {
		return nil, guard.Unavailable(fmt.Sprintf("probe bucket %q", bucket), guard.Claim{}, b.explain(err))
	}
	return b, nil
}

// Probe returns what the probe found, or the one that was given and used; the
// zero value if it was skipped.
func (b *Bucket) Probe() Probe { return b.probe }

func (b *Bucket) observe(ctx context.Context, op guard.Op, claim guard.Claim, mark guard.Mark, start time.Time, err error) {
	if b.opts.Observer == nil {
		return
	}
	b.opts.Observer.Observe(ctx, guard.Event{
		Op: op, Surface: "s3", Claim: claim, Mark: mark, Reason: guard.ReasonOf(err), Duration: time.Since(start), Err: err,
	})
}

// ended reports that ctx is over before anything was sent.
func ended(ctx context.Context, op string, claim guard.Claim) error {
	if ctx.Err() == nil {
		return nil
	}
	return guard.Unavailable(op, claim, context.Cause(ctx))
}

// sleep waits for d or the end of ctx.
func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
