package s3fence

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
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

// reportVersion grows with what the probe tests, so that the result of a weaker
// probe is not mistaken for one of this probe.
const reportVersion = 3

// maxReportAge is how long a report is taken for true.
const maxReportAge = 30 * 24 * time.Hour

// Report is what [Probe] found out about a store that it did not refuse. People read
// it as [Report.String], programs keep it as JSON and pass it to [Open] in
// [Options].Report.
type Report struct {
	// Version is the probe's version; other builds may have another.
	Version int `json:"version"`
	// Endpoint and Bucket are what was probed.
	Endpoint string `json:"endpoint"`
	Bucket   string `json:"bucket"`
	// At is the time of the probe, by this machine's clock.
	At time.Time `json:"at"`
	// OpaqueETags reports that two writes of one body get different ETags.
	OpaqueETags bool `json:"opaqueETags"`
	// Requests is how many requests the probe has sent.
	Requests int64 `json:"requests"`
	// Checks lists each property with what was seen, in the order of the checks.
	Checks []Check `json:"checks"`
}

// Check is a property of a store that this package relies on.
type Check struct {
	Property string `json:"property"`
	Seen     string `json:"seen"`
}

// String has a line for each check.
func (r *Report) String() string {
	var out strings.Builder
	fmt.Fprintf(&out, "bucket %q at %s, %s, %d requests\n", r.Bucket, r.Endpoint, r.At.Format(time.RFC3339), r.Requests)
	for _, c := range r.Checks {
		fmt.Fprintf(&out, "  %-20s %s\n", c.Property, c.Seen)
	}
	return out.String()
}

// usable reports whether a kept report may replace a new probe. The error is for a
// report on something else; one that is too old is not usable.
func (r *Report) usable(b *Bucket, now time.Time) (bool, error) {
	const field = "Options.Report"
	switch {
	case b.endpoint == "":
		return false, guard.Invalid(field, r.Endpoint, "cannot be used with a client that does not tell its endpoint")
	case r.Endpoint != b.endpoint:
		return false, guard.Invalid(field, r.Endpoint, "is on another endpoint than the client's, "+strconv.QuoteToASCII(b.endpoint))
	case r.Bucket != b.name:
		return false, guard.Invalid(field, r.Bucket, "is on another bucket than "+strconv.QuoteToASCII(b.name))
	}
	age := now.Sub(r.At)
	// A little in the future is another machine's clock.
	return r.Version == reportVersion && age <= maxReportAge && age > -time.Hour, nil
}

// amazon begins the endpoint of a client that uses Amazon's own.
const amazon = "aws "

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
	return amazon + o.Region
}

// Probe tests a store as a whole: what [Open] checks, and besides it lets 16 writers
// race for one condition, 16 times, and reads an object while it is overwritten. It
// sends 400 to 750 requests to keys of its own and deletes them, for which it needs
// permission; in a bucket with versioning, versions of these keys stay. The client
// should allow 16 connections, or the racing writers do not meet. opts may be nil.
//
// Run it when a store is chosen or upgraded, on idle machines, and read the report. No
// probe shows that all is well: a store that compares and then writes in a second step
// is found only if requests meet between the two, as versitygw 1.7 was in 9 probes of
// 10 on a busy machine.
//
// Errors: as [Open].
func Probe(ctx context.Context, client S3, bucket string, opts *Options) (*Report, error) {
	b, err := newBucket(client, bucket, opts)
	if err != nil {
		return nil, err
	}
	return b.runProbe(ctx, true)
}

// prober runs the checks on keys of its own, so that several may run at once.
type prober struct {
	b    *Bucket
	key  string
	keys []string // to be deleted
	seq  int
	seen []Check
	sent atomic.Int64
	// reads counts those during writes.
	reads int
	// ungated says that racing writers cannot wait for each other here.
	ungated atomic.Bool
}

// cleanupTimeout bounds the deletions after a probe.
const cleanupTimeout = 30 * time.Second

// runProbe checks what is between this program and the store and, if whole, how the
// store behaves under concurrency.
func (b *Bucket) runProbe(ctx context.Context, whole bool) (*Report, error) {
	p := &prober{b: b, key: b.probeKey(newWriteID().String())}
	found := &Report{
		Version: reportVersion, Endpoint: b.endpoint, Bucket: b.name,
		At: b.clock().UTC().Truncate(time.Second),
	}
	err := p.mayDelete(ctx)
	if err == nil {
		p.keys = []string{p.key}
		err = p.path(ctx, found)
		if err == nil && whole {
			err = p.concurrency(ctx)
		}
		p.cleanup(ctx)
	}
	switch {
	case errors.Is(err, ErrUnsuitableStore):
		return nil, err
	case err != nil:
		return nil, guard.Unavailable(fmt.Sprintf("probe bucket %q", b.name), guard.Claim{}, b.explain(err))
	}
	found.Requests, found.Checks = p.sent.Load(), p.seen
	return found, nil
}

// saw notes a property that holds.
func (p *prober) saw(property, format string, args ...any) {
	p.seen = append(p.seen, Check{property, fmt.Sprintf(format, args...)})
}

func (p *prober) fails(check, format string, args ...any) error {
	return p.b.unsuitable(check, fmt.Sprintf(format, args...))
}

// mayDelete finds out, by a name that nothing is stored under, whether the probe can
// delete what it is going to write.
func (p *prober) mayDelete(ctx context.Context) error {
	err := p.remove(ctx, p.b.probeKey("canary"))
	if err == nil || missing(err) {
		return nil
	}
	return fmt.Errorf("the probe may not delete what it writes; allow s3:DeleteObject below %s: %w", strconv.QuoteToASCII(p.b.probeKey("")), err)
}

// probeBody is what the prober writes.
type probeBody struct {
	content  []byte
	headers  Headers
	metadata map[string]string
}

// unique returns bytes that no other write of the probe has.
func (p *prober) unique() []byte {
	p.seq++
	return fmt.Appendf(nil, "fencepost probe %d", p.seq)
}

// path makes, reads, overwrites, reads, deletes and makes again one object, as users
// set its headers. A cache, a box that rewrites bodies, a store without conditions and
// a missing permission each show in one of the responses.
func (p *prober) path(ctx context.Context, found *Report) (failed error) {
	const create, match = "If-None-Match: *", "If-Match"
	// Each step is taken if those before it have not failed.
	absent := func(when string) {
		if failed == nil {
			failed = p.absent(ctx, when)
		}
	}
	write := func(check, etag string, through bool, w probeBody) (got string) {
		if failed == nil {
			got, failed = p.expect(ctx, check, p.key, etag, through, w)
		}
		return got
	}
	shows := func(etag string, wrote probeBody, lasts ...int) {
		if failed == nil {
			failed = p.shows(ctx, etag, wrote, lasts...)
		}
	}
	packed := probeBody{
		content: pack(p.unique()), metadata: map[string]string{"fencepost-probe-a": "1"},
		headers: Headers{ContentType: "text/csv", ContentEncoding: "gzip", CacheControl: "public, max-age=3600"},
	}
	long := probeBody{
		content: append(p.unique(), make([]byte, 3*tailSize)...), metadata: map[string]string{"fencepost-probe-b": "2"},
		headers: Headers{ContentType: "text/csv", CacheControl: "public, max-age=3600"},
	}
	absent("that nobody has written")
	first := write(create, "", true, packed)
	shows(first, packed, 0, tailSize)
	write(create+" over an object", "", false, packed)
	second := write(match+" with the right ETag", first, true, long)
	shows(second, long, 0, tailSize)
	write(match+" with an old ETag", first, false, long)
	// Other metadata expose the worst case: an ETag that depends on the body only.
	long.metadata = map[string]string{"fencepost-probe-b": "3"}
	third := write(match+" with the right ETag", second, true, long)
	last := write(match+" with the right ETag", third, true, long)
	shows(last, long, tailSize)
	if failed == nil {
		failed = p.remove(ctx, p.key)
	}
	absent("that was deleted")
	write(match+" without an object", last, false, long)
	write(create+" after a deletion", "", true, long)
	if failed != nil {
		return failed
	}
	p.saw("conditions", "If-None-Match: * creates once, and again after a deletion; If-Match lets through only the right ETag, not an old one or none")
	p.saw("reads", "each write and deletion shows at once, whole and in its last %d bytes, unchanged and with its own metadata", tailSize)
	found.OpaqueETags = second != third && third != last && last != second
	if found.OpaqueETags {
		p.saw("ETags", "opaque: three writes of one body had three")
	} else {
		p.saw("ETags", "not opaque: writes of one body have one ETag, so Plain is refused")
	}
	return nil
}

// absent checks that a read shows no object.
func (p *prober) absent(ctx context.Context, when string) error {
	_, _, err := p.read(ctx, p.key, tailSize)
	switch {
	case missing(err):
		return nil
	case err == nil:
		return p.fails("reads", "a read shows an object %s: a cache serves it", when)
	}
	return err
}

// shows checks that reads of the last bytes, or of all if last is 0, are what was
// written.
func (p *prober) shows(ctx context.Context, etag string, wrote probeBody, lasts ...int) error {
	const check = "reads"
	for _, last := range lasts {
		what, want := "a read of all of an object", wrote.content
		if last > 0 {
			want = want[max(0, len(want)-last):]
			what = fmt.Sprintf("a read of the last %d bytes of an object of %d", last, len(wrote.content))
		}
		got, h, err := p.read(ctx, p.key, last)
		switch {
		case httpStatus(err) == http.StatusRequestedRangeNotSatisfiable:
			return p.fails(check, "%s was refused with 416", what)
		case missing(err):
			return p.fails(check, "%s shows none after its write was acknowledged: a cache serves it", what)
		case errors.As(err, new(*etagError)):
			return p.fails(check, "%s: %v", what, err)
		case err != nil:
			return err
		case h.etag != etag:
			return p.fails(check, "%s shows the ETag %s, that of the last write is %s: a cache serves it", what, quoteShort(h.etag), quoteShort(etag))
		case h.headers.ContentEncoding != wrote.headers.ContentEncoding:
			return p.fails(check, "%s shows the Content-Encoding %s instead of %s: something on the way has transformed it",
				what, quoteShort(h.headers.ContentEncoding), quoteShort(wrote.headers.ContentEncoding))
		case !bytes.Equal(got, want) || h.size != int64(len(wrote.content)):
			return p.fails(check, "%s does not show what was written", what)
		case !maps.Equal(h.headers.Metadata, wrote.metadata):
			return p.fails("metadata", "%s does not show the metadata that was written with it, and no other", what)
		}
	}
	return nil
}

// read reads an object, or its last bytes.
func (p *prober) read(ctx context.Context, key string, last int) ([]byte, head, error) {
	ctx, cancel := context.WithTimeout(ctx, p.b.opts.RequestTimeout)
	defer cancel()
	p.sent.Add(1)
	return p.b.grab(ctx, key, last, 1<<20)
}

// expect writes on condition of etag, or of no object if it is "", and checks
// whether the write was let through. It retries on responses that leave it open.
func (p *prober) expect(ctx context.Context, check, key, etag string, through bool, w probeBody) (string, error) {
	for try := 1; ; try++ {
		got, err := p.write(ctx, key, etag, w)
		switch o := classifyPut(err, etag == ""); {
		case o == outcomeApplied && !through:
			return "", p.fails(check, "a write was accepted that had to be refused")
		case o == outcomeApplied && !strongETag(got):
			return "", p.fails(check, "the response to a write has the ETag %s", quoteShort(got))
		case o == outcomeApplied:
			return got, nil
		case o == outcomeNotMatched && !through:
			return "", nil
		case o == outcomeNotMatched && try > 1:
			// It may follow from the lost response to the same write.
			stored, h, readErr := p.read(ctx, key, 0)
			if readErr != nil {
				return "", readErr
			}
			user, fencing := split(w.metadata)
			if bytes.Equal(stored, w.content) && maps.Equal(h.headers.Metadata, user) && maps.Equal(h.fencing, fencing) {
				return h.etag, nil
			}
			return "", p.fails(check, "a write was refused that had to be accepted: %v", err)
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

func (p *prober) write(ctx context.Context, key, etag string, w probeBody, opts ...func(*s3.Options)) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, p.b.opts.RequestTimeout)
	defer cancel()
	p.sent.Add(1)
	in := p.b.put(key, w.headers, w.metadata)
	in.Body, in.ContentLength = bytes.NewReader(w.content), aws.Int64(int64(len(w.content)))
	if in.IfMatch = str(etag); etag == "" {
		in.IfNoneMatch = aws.String("*")
	}
	out, err := p.b.client.PutObject(ctx, in, append(opts, once)...)
	if err != nil {
		return "", err
	}
	return aws.ToString(out.ETag), nil
}

func (p *prober) remove(ctx context.Context, key string) error {
	p.sent.Add(1)
	return p.b.remove(ctx, key)
}

// cleanup deletes what the probe has written.
func (p *prober) cleanup(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	for _, key := range p.keys {
		_ = p.remove(ctx, key) // they are small and say what they are
	}
}
