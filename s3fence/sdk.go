package s3fence

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/fencepost-go/fencepost/s3fence/internal/s3probe"
)

// S3 is what this package needs of a client; [*s3.Client] is one. Any other
// implementation must return errors that carry the HTTP status of a response
// (HTTPStatusCode() int) and Amazon's error code (ErrorCode() string), as the
// SDK's do: an error without a status counts as a request that may have been
// carried out.
//
// It must be safe for concurrent use, and read a body no more once it has returned.
//
// What every request is to have besides, such as server-side encryption, a checksum
// algorithm or the expected owner of the bucket, is added by a type that embeds
// [*s3.Client] and sets it in these methods. It must not change a condition.
type S3 interface {
	PutObject(context.Context, *s3.PutObjectInput, ...func(*s3.Options)) (*s3.PutObjectOutput, error)
	GetObject(context.Context, *s3.GetObjectInput, ...func(*s3.Options)) (*s3.GetObjectOutput, error)
	DeleteObject(context.Context, *s3.DeleteObjectInput, ...func(*s3.Options)) (*s3.DeleteObjectOutput, error)
	ListObjectsV2(context.Context, *s3.ListObjectsV2Input, ...func(*s3.Options)) (*s3.ListObjectsV2Output, error)
}

var _ S3 = (*s3.Client)(nil)

// sdk is the driver over Amazon's SDK. It holds all that is known of the SDK, of its
// errors and retries, and of what stores respond.
type sdk struct {
	client S3
	bucket string
	idle   time.Duration // Options.RequestTimeout
}

func (s *sdk) get(ctx context.Context, key string, last int, limit int64) (*object, error) {
	ctx, w := watch(ctx, s.idle)
	defer w.stop()
	o, err := s.getOnce(ctx, w, key, last, limit)
	if last > 0 && httpStatus(err) == http.StatusRequestedRangeNotSatisfiable {
		// The object is empty, or a gateway refuses a range longer than the object.
		if o, err = s.getOnce(ctx, w, key, 0, limit); err == nil {
			o.shortRange = true
		}
	}
	return o, s.readError(ctx, err)
}

func (s *sdk) getOnce(ctx context.Context, w *watchdog, key string, last int, limit int64) (*object, error) {
	in := &s3.GetObjectInput{Bucket: &s.bucket, Key: &key}
	if last > 0 {
		in.Range = aws.String("bytes=-" + strconv.Itoa(last))
	}
	out, err := s.client.GetObject(ctx, in, untouched)
	if err != nil {
		return nil, err
	}
	defer out.Body.Close()
	o, err := describe(out)
	if err != nil {
		return nil, err
	}
	announced := out.ContentLength
	part := aws.ToString(out.ContentRange)
	if part != "" {
		var from, to int64
		// For an empty object MinIO responds with the range "bytes 0--1/0".
		n, err := fmt.Sscanf(part, "bytes %d-%d/%d", &from, &to, &o.size)
		if last == 0 || n != 3 || err != nil || o.size < 0 || to != o.size-1 || from != max(0, o.size-int64(last)) {
			return nil, fmt.Errorf("the store responded to a request for the last %d bytes (0 for all) with the range %s", last, quoteShort(part))
		}
		limit = int64(last)
		announced = aws.Int64(min(o.size, limit))
	} else if o.size > limit {
		return nil, sizeError(o.size)
	}
	o.content, err = readAll(io.TeeReader(out.Body, w), aws.ToInt64(announced), limit)
	size := int64(len(o.content))
	switch {
	case err != nil:
		return nil, &truncatedError{err}
	case part == "" && size > limit:
		return nil, sizeError(size)
	case announced != nil && *announced != size:
		return nil, &truncatedError{fmt.Errorf("the store announced %d bytes and sent %d", *announced, size)}
	}
	if part == "" {
		o.size = size
	}
	return o, nil
}

// truncatedError is a response that ended before its body did. One more read is safe.
type truncatedError struct{ err error }

func (e *truncatedError) Error() string { return "the response was cut: " + e.err.Error() }
func (e *truncatedError) Unwrap() error { return e.err }

// readAll reads at most one byte more than the limit. size is how many are expected.
func readAll(from io.Reader, size, limit int64) ([]byte, error) {
	out := bytes.NewBuffer(make([]byte, 0, max(size, 0)+bytes.MinRead)) // room to detect the end
	if _, err := out.ReadFrom(io.LimitReader(from, limit+1)); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

func (s *sdk) open(ctx context.Context, key string) (*object, error) {
	ctx, w := watch(ctx, s.idle)
	out, err := s.client.GetObject(ctx, &s3.GetObjectInput{Bucket: &s.bucket, Key: &key}, untouched)
	if err != nil {
		defer w.stop()
		return nil, s.readError(ctx, err)
	}
	o, err := describe(out)
	if err != nil {
		w.stop()
		out.Body.Close()
		return nil, err
	}
	w.timer.Stop()
	o.body = &watched{out.Body, ctx, s, w}
	return o, nil
}

// watched is a body that its reader takes as fast as it likes, and the store does not: the
// time counts during a Read only.
type watched struct {
	io.ReadCloser
	ctx context.Context
	s   *sdk
	w   *watchdog
}

func (b *watched) Read(p []byte) (int, error) {
	b.w.timer.Reset(b.w.after)
	n, err := b.ReadCloser.Read(p)
	b.w.timer.Stop()
	if err != nil && err != io.EOF && context.Cause(b.ctx) == errIdle {
		err = b.s.readError(b.ctx, err)
	}
	return n, err
}

func (b *watched) Close() error {
	b.w.stop()
	return b.ReadCloser.Close()
}

// describe reads the headers of a response to GET. Without a strong ETag it gives a write
// nothing to be conditional on.
func describe(out *s3.GetObjectOutput) (*object, error) {
	o := &object{
		etag: aws.ToString(out.ETag), size: aws.ToInt64(out.ContentLength), modified: aws.ToTime(out.LastModified),
		headers: Headers{
			ContentType: aws.ToString(out.ContentType), CacheControl: aws.ToString(out.CacheControl),
			ContentDisposition: aws.ToString(out.ContentDisposition), ContentLanguage: aws.ToString(out.ContentLanguage),
			StorageClass: out.StorageClass,
		},
	}
	o.date, _ = awsmiddleware.GetServerTime(out.ResultMetadata)
	if strings.HasPrefix(o.etag, "W/") {
		return nil, &failure{meaning: meaning{setup: true}, err: &etagError{"the response has the weak ETag " + quoteShort(o.etag) + ": something between this program and the store has transformed it"}}
	}
	if !strongETag(o.etag) {
		return nil, &etagError{"the store responded with the ETag " + quoteShort(o.etag) + ", on which no write can be conditional"}
	}
	o.headers.Metadata, o.fencing = split(out.Metadata)
	// Some gateways store the SDK's framing of a body with a trailing checksum
	// as if it were the caller's encoding.
	var encodings []string
	for e := range strings.SplitSeq(aws.ToString(out.ContentEncoding), ",") {
		if e = strings.TrimSpace(e); e != "" && e != "aws-chunked" {
			encodings = append(encodings, e)
		}
	}
	o.headers.ContentEncoding = strings.Join(encodings, ",")
	if text := aws.ToString(out.ExpiresString); text != "" {
		var err error
		if o.headers.Expires, err = http.ParseTime(text); err != nil {
			o.expires = text
		}
	}
	return o, nil
}

// etagError is a response without an ETag that a write can be conditional on.
type etagError struct{ problem string }

func (e *etagError) Error() string        { return e.problem }
func (e *etagError) Is(target error) bool { return target == s3probe.ErrETag }

// strongETag reports whether a write can be conditional on the ETag: it is a
// single tag, not empty, not weak, and not the "*" that every object matches.
// Some gateways leave out the quotes.
func strongETag(etag string) bool {
	inner := etag
	if len(inner) >= 2 && inner[0] == '"' && inner[len(inner)-1] == '"' {
		inner = inner[1 : len(inner)-1]
	}
	return inner != "" && inner != "*" && !strings.HasPrefix(inner, "W/") && !strings.Contains(inner, `"`) && printable(inner)
}

func (s *sdk) put(ctx context.Context, key string, over condition, p payload) result {
	h := p.headers
	in := &s3.PutObjectInput{
		Bucket: &s.bucket, Key: &key, Metadata: p.metadata,
		ContentType: str(h.ContentType), CacheControl: str(h.CacheControl), ContentDisposition: str(h.ContentDisposition),
		ContentEncoding: str(h.ContentEncoding), ContentLanguage: str(h.ContentLanguage), StorageClass: h.StorageClass,
	}
	if !h.Expires.IsZero() {
		in.Expires = &h.Expires
	}
	switch {
	case over == noObject:
		in.IfNoneMatch = aws.String("*")
	case strongETag(string(over)): // a store takes an empty If-Match for no condition at all
		in.IfMatch = aws.String(string(over))
	default:
		return result{outcome: refused, err: errors.New("the request was not sent: If-Match with the ETag " + quoteShort(string(over)) + " is not a condition")}
	}
	ctx, w := watch(ctx, s.idle)
	defer w.stop()
	if p.from == nil { // an earlier sending may still be reading its own
		p.from, p.length = bytes.NewReader(p.body), int64(len(p.body))
	}
	in.Body, in.ContentLength = struct {
		io.Reader
		io.Seeker
	}{io.TeeReader(p.from, w), p.from}, &p.length
	way := &tracker{again: p.again}
	opts := []func(*s3.Options){way.option}
	if p.hold != nil {
		opts = append(opts, func(o *s3.Options) {
			before(o, func(r *http.Request) { r.Body = &gated{r.Body, r.ContentLength, p.hold} })
		})
	}
	out, err := s.client.PutObject(way.trace(ctx), in, opts...)
	if err != nil {
		return s.resultOf(ctx, way, over, err)
	}
	etag := aws.ToString(out.ETag)
	if err = way.success(http.StatusOK); err == nil && !strongETag(etag) {
		err = &etagError{"the response to a write has the ETag " + quoteShort(etag)}
	}
	if err != nil {
		return result{outcome: unknown, err: err}
	}
	date, _ := awsmiddleware.GetServerTime(out.ResultMetadata)
	return result{outcome: applied, etag: etag, date: date}
}

func (s *sdk) remove(ctx context.Context, key string) result {
	ctx, w := watch(ctx, s.idle)
	defer w.stop()
	way := &tracker{again: true} // it makes no difference how often it is sent
	_, err := s.client.DeleteObject(way.trace(ctx), &s3.DeleteObjectInput{Bucket: &s.bucket, Key: &key}, way.option)
	if err != nil {
		if saysAbsent(meaningOf(err)) {
			return result{outcome: applied} // there is nothing to delete
		}
		return s.resultOf(ctx, way, `"any"`, err)
	}
	if err := way.success(http.StatusNoContent); err != nil {
		return result{outcome: unknown, err: err}
	}
	return result{outcome: applied}
}

func (s *sdk) list(ctx context.Context, prefix, token string) (page, error) {
	ctx, w := watch(ctx, s.idle)
	defer w.stop()
	for again := false; ; again = true {
		got, err := s.listOnce(ctx, w, prefix, token)
		if err == nil || again || httpStatus(err) >= 300 || errors.As(err, new(*failure)) || ctx.Err() != nil {
			return got, s.readError(ctx, err)
		}
	}
}

func (s *sdk) listOnce(ctx context.Context, w *watchdog, prefix, token string) (page, error) {
	in := &s3.ListObjectsV2Input{Bucket: &s.bucket, Prefix: str(prefix), ContinuationToken: str(token), EncodingType: types.EncodingTypeUrl}
	out, err := s.client.ListObjectsV2(ctx, in, untouched, w.option)
	if err != nil {
		return page{}, err
	}
	decode := func(text *string) (string, error) { return aws.ToString(text), nil }
	if out.EncodingType == types.EncodingTypeUrl {
		decode = func(text *string) (string, error) { return url.QueryUnescape(aws.ToString(text)) }
	}
	// Any 200 whatever parses as an empty listing. A page of this bucket and prefix says so.
	name, raw := aws.ToString(out.Name), aws.ToString(out.Prefix)
	of, err := decode(out.Prefix)
	if name != s.bucket && !(alias(s.bucket) && name != "") || (err != nil || of != prefix) && raw != prefix {
		return page{}, fmt.Errorf("the response is not a listing of bucket %s and prefix %s, but of %s and %s",
			quoteShort(s.bucket), quoteShort(prefix), quoteShort(name), quoteShort(of))
	}
	p := page{next: aws.ToString(out.NextContinuationToken)}
	for _, o := range out.Contents {
		e := Entry{StoredSize: aws.ToInt64(o.Size), ETag: aws.ToString(o.ETag), LastModified: aws.ToTime(o.LastModified)}
		if e.Key, err = decode(o.Key); err != nil {
			e.Key = aws.ToString(o.Key)
		}
		p.entries = append(p.entries, entry{e, err})
	}
	switch {
	case !aws.ToBool(out.IsTruncated):
		p.next = ""
	case p.next == "":
		return page{}, &failure{err: errors.New("the store truncated the listing without a continuation token")}
	}
	return p, nil
}

// alias reports whether a bucket is named by an access point, whose listings have another
// name.
func alias(bucket string) bool {
	return strings.HasPrefix(bucket, "arn:") || strings.HasSuffix(bucket, "-s3alias") || strings.HasSuffix(bucket, "--op-s3")
}

// str is nil for "", which the SDK takes for "not given".
func str(s string) *string {
	if s == "" {
		return nil
	}
	return aws.String(s) // &s would put every s on the heap
}

// quoteShort quotes the beginning of what a store responded.
func quoteShort(s string) string {
	if len(s) > 64 {
		return strconv.QuoteToASCII(s[:64]) + "..."
	}
	return strconv.QuoteToASCII(s)
}
