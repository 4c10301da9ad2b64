package s3fence

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/fencepost-go/fencepost/guard"
)

// probeVersion grows with what the probe tests, so that the result of a weaker
// probe is not mistaken for one of this probe.
const probeVersion = 2

// Probe is what [Open] found out about a store that it did not refuse. It can be
// kept, as JSON, and passed back in [Options].Probe, so that a short-lived
// process need not probe again.
type Probe struct {
	// Version is the probe's version; other builds may have another.
	Version int `json:"version"`
	// Endpoint and Bucket are what was probed, Encryption what was requested.
	Endpoint   string `json:"endpoint"`
	Bucket     string `json:"bucket"`
	Encryption string `json:"encryption,omitempty"`
	// At is the time of the probe, by this machine's clock.
	At time.Time `json:"at"`
	// OpaqueETags reports that two writes of one body get different ETags.
	OpaqueETags bool `json:"opaqueETags"`
	// AtomicDelete reports that [Options].AtomicDelete was tried, too.
	AtomicDelete bool `json:"atomicDelete,omitempty"`
	// Checks lists each property with what was seen, in the order of the checks.
	Checks []Check `json:"checks"`
}

// Check is a property of a store that this package relies on.
type Check struct {
	Property string `json:"property"`
	Seen     string `json:"seen"`
}

// usable reports whether a kept probe may replace a new one. The error is for a
// probe of something else; a probe that is too old is not usable.
func (p *Probe) usable(b *Bucket, now time.Time) (bool, error) {
	const field = "Options.Probe"
	switch {
	case b.endpoint == "":
		return false, guard.Invalid(field, p.Endpoint, "cannot be used with a client that does not tell its endpoint")
	case p.Endpoint != b.endpoint:
		return false, guard.Invalid(field, p.Endpoint, "is of another endpoint than the client's, "+strconv.QuoteToASCII(b.endpoint))
	case p.Bucket != b.name:
		return false, guard.Invalid(field, p.Bucket, "is of another bucket than "+strconv.QuoteToASCII(b.name))
	}
	age := now.Sub(p.At)
	return p.Version == probeVersion && p.Encryption == b.opts.Encryption.name() && (p.AtomicDelete || !b.opts.AtomicDelete) &&
		age <= b.opts.ProbeMaxAge && age > -time.Hour, nil // a little in the future is another machine's clock
}

// endpointOf returns where a client sends its requests; "" if unknown.
func endpointOf(client S3) string {
	c, ok := client.(interface{ Options() s3.Options })
	if !ok {
		return ""
	}
	o := c.Options()
	// A resolver of the caller's may send each request to another store, and
	// need not follow BaseEndpoint or Region. The older field is nil unless the
	// caller, or its aws.Config, has set it.
	//lint:ignore SA1019 clients that use the deprecated field exist
	if o.EndpointResolver != nil || reflect.TypeOf(o.EndpointResolverV2) != reflect.TypeOf(s3.NewDefaultEndpointResolverV2()) {
		return ""
	}
	if o.BaseEndpoint != nil {
		return *o.BaseEndpoint
	}
	return "aws " + o.Region
}

// prober runs the checks on keys of its own, so that several may run at once.
type prober struct {
	b    *Bucket
	key  string
	keys []string // to be deleted
	seq  int
	seen []Check
	// reads counts those during writes, torn those with an ETag older than the
	// rest.
	reads, torn int
	// ungated says that racing writers cannot wait for each other here.
	ungated atomic.Bool
}

const (
	// cleanupTimeout bounds the deletions after a probe.
	cleanupTimeout = 30 * time.Second
	// bursts is how often the races are repeated, burstPause the pause between
	// two: a store with a cache or delayed writes may differ a moment later.
	bursts     = 3
	burstPause = 400 * time.Millisecond
)

func (b *Bucket) runProbe(ctx context.Context) (Probe, error) {
	p := &prober{b: b, key: b.probeKey(newWriteID().String())}
	if err := p.mayDelete(ctx); err != nil {
		return Probe{}, err
	}
	p.keys = []string{p.key}
	defer p.cleanup(ctx)
	found := Probe{
		Version: probeVersion, Endpoint: b.endpoint, Bucket: b.name, Encryption: b.opts.Encryption.name(),
		At: b.clock().UTC().Truncate(time.Second), AtomicDelete: b.opts.AtomicDelete,
	}
	for _, check := range []func(context.Context) error{p.conditions, p.metadata, p.ranges} {
		if err := check(ctx); err != nil {
			return Probe{}, err
		}
	}
	var err error
	if found.OpaqueETags, err = p.opaque(ctx); err != nil {
		return Probe{}, err
	}
	if b.opts.AtomicDelete {
		if err := p.deletion(ctx); err != nil {
			return Probe{}, err
		}
	}
	for burst := range bursts {
		if burst > 0 {
			sleep(ctx, burstPause)
		}
		if err := p.race(ctx, burst); err != nil {
			return Probe{}, err
		}
		if err := p.readRace(ctx); err != nil {
			return Probe{}, err
		}
	}
	p.saw("racing writers", "one of %d was accepted, in each of %d rounds over %v", probeWriters, bursts*2*burstRounds, (bursts-1)*burstPause)
	p.saw("reads beside writes", "metadata and body of one version, never with a newer ETag, never older than the last acknowledged, in each of %d reads; in %d the ETag was older",
		p.reads, p.torn)
	found.Checks = p.seen
	return found, nil
}

// saw notes a property that holds.
func (p *prober) saw(property, format string, args ...any) {
	p.seen = append(p.seen, Check{property, fmt.Sprintf(format, args...)})
}

// mayDelete finds out, with one object whose name is always the same, whether the
// probe can delete what it is going to write.
func (p *prober) mayDelete(ctx context.Context) error {
	key := p.b.probeKey("canary")
	if _, err := p.b.client.PutObject(ctx, p.b.put(key, Headers{}, nil, []byte("fencepost probe"))); err != nil {
		return err
	}
	if err := p.b.remove(ctx, key); err != nil {
		return fmt.Errorf("the probe may not delete what it writes; allow s3:DeleteObject below %s, or give Options.Probe: %w",
			strconv.QuoteToASCII(p.b.probeKey("")), err)
	}
	return nil
}

func (p *prober) fails(check, format string, args ...any) error {
	return p.b.unsuitable(check, fmt.Sprintf(format, args...))
}

// body returns bytes that no other write of the probe has.
func (p *prober) body() []byte {
	p.seq++
	return fmt.Appendf(nil, "fencepost probe %d", p.seq)
}

// conditions runs the sequential checks. In each a condition is either false and
// must stop the write, or true and must let it through.
func (p *prober) conditions(ctx context.Context) error {
	const create, match, gone = "If-None-Match: *", "If-Match", "If-Match without an object"
	first, err := p.expect(ctx, create, p.key, "", true, p.body(), nil)
	if err != nil {
		return err
	}
	if _, err := p.expect(ctx, create+" over an object", p.key, "", false, p.body(), nil); err != nil {
		return err
	}
	if _, err := p.expect(ctx, match+" with another ETag", p.key, `"00000000000000000000000000000000"`, false, p.body(), nil); err != nil {
		return err
	}
	second, err := p.expect(ctx, match+" with the right ETag", p.key, first, true, p.body(), nil)
	if err != nil {
		return err
	}
	if first == second {
		return p.fails(match, "two bodies have the same ETag %s", quoteShort(first))
	}
	if _, err := p.expect(ctx, match+" with an old ETag", p.key, first, false, p.body(), nil); err != nil {
		return err
	}
	absent := p.key + "-absent"
	p.keys = append(p.keys, absent)
	if _, err = p.expect(ctx, gone, absent, second, false, p.body(), nil); err != nil {
		return err
	}
	p.saw("conditions", "If-None-Match: * creates once; If-Match lets through the right ETag alone, not another, an old one or none")
	return nil
}

// metadata checks that a write replaces all existing metadata, so that no field
// of an older writer stays.
func (p *prober) metadata(ctx context.Context) error {
	const check = "metadata"
	for _, m := range []map[string]string{{"fencepost-probe-a": "1"}, {"fencepost-probe-b": "2"}} {
		etag, err := p.etag(ctx)
		if err != nil {
			return err
		}
		if _, err := p.expect(ctx, check, p.key, etag, true, p.body(), m); err != nil {
			return err
		}
	}
	out, err := p.b.head(ctx, p.key)
	if err != nil {
		return err
	}
	got := userMetadata(out.Metadata)
	if got["fencepost-probe-b"] != "2" {
		return p.fails(check, "what was written with an object is not read with it")
	}
	if _, ok := got["fencepost-probe-a"]; ok {
		return p.fails(check, "an overwritten object's metadata is still there")
	}
	p.saw(check, "replaced by each write")
	return nil
}

// ranges reads the last bytes of objects that are longer, shorter and empty.
func (p *prober) ranges(ctx context.Context) error {
	for _, size := range []int{3 * tailSize, tailSize, 20, 0} {
		check := fmt.Sprintf("the last %d bytes of an object of %d", tailSize, size)
		etag, err := p.etag(ctx)
		if err != nil {
			return err
		}
		body := append(p.body(), make([]byte, size)...)[:size]
		if etag, err = p.expect(ctx, "If-Match", p.key, etag, true, body, nil); err != nil {
			return err
		}
		got, s, err := p.tail(ctx, tailSize)
		if status, _ := httpStatus(err); status == http.StatusRequestedRangeNotSatisfiable && size == 0 {
			got, s, err = p.tail(ctx, 0) // S3's way to say that the object is empty
		} else if status == http.StatusRequestedRangeNotSatisfiable {
			return p.fails(check, "were refused with 416")
		}
		switch {
		case err != nil:
			return err
		case !bytes.Equal(got, body[max(0, size-tailSize):]) || s.size != int64(size):
			return p.fails(check, "are not what was written")
		case s.etag != etag:
			return p.fails(check, "came with the ETag %s, the write's was %s", quoteShort(s.etag), quoteShort(etag))
		}
	}
	p.saw("ranges", "the last %d bytes of objects that are longer, as long, shorter and empty", tailSize)
	return nil
}

// tail reads the last bytes of the prober's object.
func (p *prober) tail(ctx context.Context, last int) ([]byte, head, error) {
	ctx, cancel := context.WithTimeout(ctx, p.b.opts.RequestTimeout)
	defer cancel()
	out, err := p.b.client.GetObject(ctx, p.b.get(p.key, last))
	if err != nil {
		return nil, head{}, err
	}
	defer out.Body.Close()
	h, err := headOf(out)
	if err != nil {
		return nil, h, err
	}
	tail, err := h.tail(out, last)
	return tail, h, err
}

// opaque writes one body twice. Different metadata expose the worst case: a
// store whose ETag depends on the body alone.
func (p *prober) opaque(ctx context.Context) (bool, error) {
	body := p.body()
	etag, err := p.etag(ctx)
	if err != nil {
		return false, err
	}
	seen := map[string]bool{}
	for _, m := range []string{"1", "2", "2"} {
		if etag, err = p.expect(ctx, "If-Match", p.key, etag, true, body, map[string]string{"fencepost-probe": m}); err != nil {
			return false, err
		}
		seen[etag] = true
	}
	if len(seen) == 3 {
		p.saw("ETags", "opaque: three writes of one body had three")
		return true, nil
	}
	p.saw("ETags", "not opaque: writes of one body have one ETag, so Plain is refused")
	return false, nil
}

// etag returns the current ETag, "" if there is no object.
func (p *prober) etag(ctx context.Context) (string, error) {
	s, err := p.b.fetch(ctx, p.key)
	return s.etag, err
}

// expect writes on condition of etag, or of no object if it is "", and checks
// whether the write was let through. It retries on answers that leave it open.
func (p *prober) expect(ctx context.Context, check, key, etag string, through bool, body []byte, m map[string]string) (string, error) {
	for try := 1; ; try++ {
		got, err := p.write(ctx, key, etag, body, m)
		switch o := classifyPut(err, etag == ""); {
		case o == outcomeApplied && !through:
			return "", p.fails(check, "a write was accepted that had to be refused")
		case o == outcomeApplied && strings.Trim(got, `"`) == "":
			return "", p.fails(check, "the answer to a write has no ETag")
		case o == outcomeApplied:
			return got, nil
		case o == outcomeNotMatched && !through:
			return "", nil
		case o == outcomeNotMatched && try > 1:
			return p.sent(ctx, check, key, body, err)
		case o == outcomeNotMatched:
			return "", p.fails(check, "a write was refused that had to be accepted: %v", err)
		case o == outcomeRefused && errorCode(err) == "NotImplemented":
			return "", p.fails(check, "%v", err)
		case o == outcomeRefused, try == maxSends, ctx.Err() != nil:
			return "", err
		}
		sleep(ctx, p.b.backoff(try))
	}
}

// sent recognises a refusal that follows a lost answer to the same write.
func (p *prober) sent(ctx context.Context, check, key string, body []byte, refusal error) (string, error) {
	s, err := p.b.fetch(ctx, key)
	if err != nil {
		return "", err
	}
	if string(s.body) != string(body) {
		return "", p.fails(check, "a write was refused that had to be accepted: %v", refusal)
	}
	return s.etag, nil
}

func (p *prober) write(ctx context.Context, key, etag string, body []byte, m map[string]string) (string, error) {
	return p.writeFrom(ctx, key, etag, bytes.NewReader(body), m)
}

// body is what the prober sends: its length is known, and it can be read again.
type body interface {
	io.ReadSeeker
	Size() int64
}

func (p *prober) writeFrom(ctx context.Context, key, etag string, from body, m map[string]string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, p.b.opts.RequestTimeout)
	defer cancel()
	in := p.b.put(key, Headers{}, m, nil)
	in.Body, in.ContentLength = from, aws.Int64(from.Size())
	if in.IfMatch = str(etag); etag == "" {
		in.IfNoneMatch = aws.String("*")
	}
	out, err := p.b.client.PutObject(ctx, in, once)
	if err != nil {
		return "", err
	}
	return aws.ToString(out.ETag), nil
}

func (p *prober) cleanup(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	_ = inParallel(ctx, p.keys, func(ctx context.Context, key string) error {
		_ = p.b.remove(ctx, key) // they are small and say what they are
		return nil
	})
}
