package s3fence

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/s3fence/internal/s3probe"
)

// reportVersion grows with what the probe tests, so that the result of a weaker
// probe is not mistaken for one of this probe.
const reportVersion = 4

// maxReportAge is how long a report is taken for true.
const maxReportAge = 30 * 24 * time.Hour

// Report is what [Open] or [Probe] found out about a store that it did not refuse. People read
// it as [Report.String], programs keep it as JSON and pass it to [Open] in
// [Options].Report.
type Report struct {
	// Version is the probe's version; other builds may have another.
	Version int `json:"version"`
	// Endpoint and Bucket are what was probed.
	Endpoint string `json:"endpoint"`
	Bucket   string `json:"bucket"`
	// At is the time of the probe, by the store's clock if it has one.
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

// Probe tests a store whole: what [Open] checks at Amazon's endpoints, and besides it lets
// 16 writers race for one condition, 16 times, and reads an object while it is overwritten.
// A round counts if one writer won and 7 of its 15 rivals, or more, were refused because of
// their condition: only those met. The report says how many did.
//
// It sends 400 to 800 requests to keys of its own and deletes them, for which it needs
// permission; in a bucket with versioning, versions of these keys stay. The client
// should allow 16 connections, or the racing writers do not meet. opts may be nil.
//
// Run it when a store is chosen or upgraded, on idle machines, and read the report. No
// probe shows that all is well: a store that compares and then writes in a second step
// is found only if requests meet between the two, as versitygw 1.7 was in 9 probes of 10.
//
// Errors: as [Open]; ErrUnavailable also where a limiter turns racing writers away.
func Probe(ctx context.Context, client S3, bucket string, opts *Options) (*Report, error) {
	b, err := newBucket(client, bucket, opts)
	if err != nil {
		return nil, err
	}
	return b.probe(ctx, true)
}

// probe checks what is between this program and the store and, if whole, how the
// store behaves under concurrency.
func (b *Bucket) probe(ctx context.Context, whole bool) (*Report, error) {
	found, err := b.prober().Run(ctx, whole)
	if u, ok := errors.AsType[*s3probe.Unsuitable](err); ok {
		return nil, b.unsuitable(u.Check, u.Problem)
	}
	if err != nil {
		return nil, guard.Unavailable(fmt.Sprintf("probe bucket %q", b.name), guard.Claim{}, err)
	}
	r := &Report{
		Version: reportVersion, Endpoint: b.endpoint, Bucket: b.name, At: found.At.UTC().Truncate(time.Second),
		OpaqueETags: found.OpaqueETags, Requests: found.Requests,
	}
	for _, c := range found.Checks {
		r.Checks = append(r.Checks, Check(c))
	}
	return r, nil
}

// prober sees the store as the client, and each of Options.ProbeClients, does.
func (b *Bucket) prober() *s3probe.Prober {
	stores := []s3probe.Store{probed{b.driver}}
	for _, client := range b.opts.ProbeClients {
		stores = append(stores, probed{&sdk{client, b.name, b.opts.RequestTimeout}})
	}
	return s3probe.New(b.opts.Prefix+"probe/", stores...)
}

// probed is a driver as the probe uses it.
type probed struct{ driver }

func (d probed) Read(ctx context.Context, key string, last int) (*s3probe.Object, error) {
	o, err := d.get(ctx, key, last, 1<<20)
	switch {
	case errors.Is(err, errAbsent):
		return nil, s3probe.ErrAbsent
	case err != nil:
		return nil, err
	}
	return &s3probe.Object{
		ETag: o.etag, ContentEncoding: o.headers.ContentEncoding, Size: o.size, Content: o.content,
		Metadata: o.headers.Metadata, Date: o.date, ShortRange: o.shortRange,
	}, nil
}

func (d probed) Write(ctx context.Context, key, over string, w s3probe.Write) s3probe.Result {
	p := payload{headers: Headers{ContentEncoding: w.ContentEncoding}, metadata: w.Metadata, body: w.Body, hold: w.Hold}
	if w.Cacheable {
		p.headers.ContentType, p.headers.CacheControl = "text/csv", "public, max-age=3600"
	}
	return probeResult(d.put(ctx, key, condition(over), p))
}

func (d probed) Delete(ctx context.Context, key string) s3probe.Result {
	return probeResult(d.remove(ctx, key))
}

func probeResult(r result) s3probe.Result {
	out := s3probe.Result{ETag: r.etag, Mismatch: r.outcome == mismatch, Final: r.outcome == refused, Err: r.err}
	if f, ok := errors.AsType[*failure](r.err); ok {
		out.Code = f.code
	}
	return out
}
