package s3fence

import (
	"bytes"
	"context"
	"io"
	"maps"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/s3fence/internal/s3probe"
)

// SetDelay replaces the shortest wait before a retry; b must not be in use.
func (b *Bucket) SetDelay(d time.Duration) { b.delay = d }

// Forget empties the cache, as in a new process.
func (b *Bucket) Forget() { clear(b.cache) }

// DataPrefix is the prefix of a pointer's data.
func (b *Bucket) DataPrefix(key string) string { return b.dataPrefix(key) }

// On is b as another process would hold it, on a bucket of the same store.
func (b *Bucket) On(client S3, name string) *Bucket {
	r := newRegister(&sdk{client, name, b.opts.RequestTimeout}, &b.opts)
	r.delay = b.delay
	return &Bucket{register: r, name: name, opts: b.opts, opaque: b.opaque}
}

// SetOpaque sets what a probe would have found; b must not be in use.
func (b *Bucket) SetOpaque(opaque bool) { b.opaque = opaque }

// Opaque is what a probe has found.
func (b *Bucket) Opaque() bool { return b.opaque }

// Handle is Objects or Pointers, so that one test covers all.
type Handle struct{ fenced }

// Pointer is a mode of Handle: its objects are Pointers.
const Pointer Mode = 250

// NameOf is a mode's name.
func NameOf(m Mode) string {
	if m == Pointer {
		return "pointer"
	}
	return m.String()
}

// In returns a handle. Without a resource it takes any claim.
func (b *Bucket) In(m Mode, opts *ObjectsOptions) (*Handle, error) {
	given := ObjectsOptions{}
	if opts != nil {
		given = *opts
	}
	if given.Resource == nil && given.KeyPattern == "" {
		given.InsecureAnyResource = true
	}
	if m == Pointer {
		p, err := b.Pointers(&given)
		if err != nil {
			return nil, err
		}
		return &Handle{p.fenced}, nil
	}
	o, err := b.Objects(m, &given)
	if err != nil {
		return nil, err
	}
	return &Handle{o.fenced}, nil
}

func (h *Handle) Get(ctx context.Context, key string) (*Object, error) {
	return h.get(ctx, key)
}

// Put is that of the mode.
func (h *Handle) Put(ctx context.Context, claim guard.Claim, key string, body io.Reader, headers *Headers) error {
	var text []byte
	if body != nil {
		var err error
		if text, err = io.ReadAll(body); err != nil {
			return err
		}
	}
	if h.kind == kindPointer {
		return h.Pointers().Put(ctx, claim, key, bytes.NewReader(text), headers)
	}
	return h.Objects().Put(ctx, claim, key, text, headers)
}

// Adopt is that of Objects. Pointers have none, so it raises their mark, which has the
// same refusals.
func (h *Handle) Adopt(ctx context.Context, claim guard.Claim, key string) error {
	if h.kind == kindPointer {
		return h.Raise(ctx, claim, key)
	}
	return h.Objects().Adopt(ctx, claim, key)
}

// HandleOf is pointers as a Handle.
func HandleOf(p *Pointers) *Handle { return &Handle{p.fenced} }

func (h *Handle) Objects() *Objects   { return &Objects{h.fenced} }
func (h *Handle) Pointers() *Pointers { return &Pointers{h.fenced} }

func (h *Handle) Collect(ctx context.Context, prefix string) (Collected, error) {
	return h.Pointers().Collect(ctx, prefix)
}

// Mode is what h was made with.
func (h *Handle) Mode() Mode {
	if h.kind == kindPointer {
		return Pointer
	}
	return Mode(h.kind)
}

// Bucket is the bucket of h.
func (h *Handle) Bucket() *Bucket { return h.b }

// KnownReport is what a probe finds on s3test, to be kept.
func KnownReport(client S3, bucket string) *Report {
	return &Report{Version: reportVersion, Endpoint: endpointOf(client), Bucket: bucket, At: time.Now()}
}

// RaceOfGate lets the probe's writers race for a key, waiting for each other for so long,
// and returns how it ended.
func (b *Bucket) RaceOfGate(ctx context.Context, key string, wait time.Duration) (won string, met int, err error) {
	p := b.prober()
	p.GateWait = wait
	return p.Round(ctx, key, "")
}

// GateWriters is how many race.
const GateWriters = s3probe.Writers

// Client is the client of b.
func (b *Bucket) Client() S3 { return b.driver.(*sdk).client }

// RemoveForTest deletes a key, whatever it is.
func (b *Bucket) RemoveForTest(ctx context.Context, key string) error { return b.remove(ctx, key).err }

// CopyCache gives b what another handle remembers.
func (b *Bucket) CopyCache(from *Bucket) { b.cache = maps.Clone(from.cache) }

// ProbeShort is what Open checks at Amazon's endpoints.
func ProbeShort(ctx context.Context, client S3, bucket string) (*Report, error) {
	b, err := newBucket(client, bucket, nil)
	if err != nil {
		return nil, err
	}
	return b.probe(ctx, false)
}
