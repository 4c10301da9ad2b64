package s3fence

import (
	"context"
	"maps"
	"time"
)

// SetClock replaces the clock of b; it must not be in use.
func (b *Bucket) SetClock(now func() time.Time) { b.clock = now }

// SetDelay replaces the shortest wait before a retry; b must not be in use.
func (b *Bucket) SetDelay(d time.Duration) { b.delay = d }

// Forget empties the cache, as in a new process.
func (b *Bucket) Forget() { clear(b.cache) }

// DataPrefix is the prefix of a pointer's data.
func (b *Bucket) DataPrefix(key string) string { return b.dataPrefix(key) }

// Handle is b as another process would hold it, on a bucket of the same store.
func (b *Bucket) Handle(client S3, name string) *Bucket {
	return &Bucket{
		client: checked{client}, name: name, opts: b.opts, probe: b.probe, clock: b.clock, delay: b.delay, cache: map[string]state{},
	}
}

// SetProbe sets what a probe would have found; b must not be in use.
func (b *Bucket) SetProbe(p Probe) { b.probe = p }

// KnownProbe is what the probe finds on s3test, to be kept.
func KnownProbe(client S3, bucket string, opaque bool) *Probe {
	return &Probe{
		Version: probeVersion, Endpoint: endpointOf(client), Bucket: bucket, At: time.Now(), OpaqueETags: opaque, AtomicDelete: true,
	}
}

// RaceOfGate runs racing writers of the probe on a bucket and returns their
// results.
func (b *Bucket) RaceOfGate(ctx context.Context, key string) (errs []error) {
	var r rush
	r.run(ctx, &prober{b: b}, key, "")
	return r.errs[:]
}

// GateWriters is how many race.
const GateWriters = probeWriters

// Bucket is the bucket of o.
func (o *Objects) Bucket() *Bucket { return o.b }

// Client is the client of b.
func (b *Bucket) Client() S3 { return b.client }

// MaxPartsForTest sets how many parts S3 takes and returns the old value.
func MaxPartsForTest(n int) (old int) {
	old, maxParts = maxParts, n
	return old
}

// RemoveForTest deletes a key, whatever it is.
func (b *Bucket) RemoveForTest(ctx context.Context, key string) error { return b.remove(ctx, key) }

// CopyCache gives b what another handle remembers.
func (b *Bucket) CopyCache(from *Bucket) { b.cache = maps.Clone(from.cache) }
