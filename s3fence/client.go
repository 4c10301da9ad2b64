package s3fence

import (
	"context"
	"errors"
	"iter"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
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

// checked is the client that the rest of this package uses. Every request goes
// through it, so it enforces the rule that makes the fence hold: no conditional
// request has an empty or a weak condition, and nothing is written without
// one. A store treats If-Match with an empty value as no condition at all.
type checked struct{ S3 }

// unsentError is a request that this package did not hand to the SDK.
type unsentError struct{ problem string }

func (e *unsentError) Error() string { return "the request was not sent: " + e.problem }

func (c checked) PutObject(ctx context.Context, in *s3.PutObjectInput, opts ...func(*s3.Options)) (*s3.PutObjectOutput, error) {
	match, none := aws.ToString(in.IfMatch), aws.ToString(in.IfNoneMatch)
	switch {
	case in.IfMatch != nil && in.IfNoneMatch != nil, in.IfNoneMatch != nil && none != "*":
		return nil, &unsentError{"its condition is not one that this package makes"}
	case in.IfMatch != nil && !strongETag(match):
		return nil, &unsentError{"If-Match with the ETag " + quoteShort(match) + " is not a condition"}
	case in.IfMatch == nil && in.IfNoneMatch == nil:
		return nil, &unsentError{"it would write an object without a condition"}
	}
	return c.S3.PutObject(ctx, in, opts...)
}

func (c checked) GetObject(ctx context.Context, in *s3.GetObjectInput, opts ...func(*s3.Options)) (*s3.GetObjectOutput, error) {
	return c.S3.GetObject(ctx, in, append(opts, untouched)...)
}

func (c checked) ListObjectsV2(ctx context.Context, in *s3.ListObjectsV2Input, opts ...func(*s3.Options)) (*s3.ListObjectsV2Output, error) {
	return c.S3.ListObjectsV2(ctx, in, append(opts, untouched)...)
}

// untouched makes a read ask for the store's own response, not for a stored or a
// transformed one. The signature does not cover the header, because a proxy may
// rewrite it.
func untouched(o *s3.Options) {
	before(o, func(r *http.Request) { r.Header.Set("Cache-Control", "no-cache, no-store, no-transform") })
}

// before lets f see each request, once it is signed, before the HTTP client gets it.
func before(o *s3.Options, f func(*http.Request)) {
	next := o.HTTPClient
	o.HTTPClient = httpFunc(func(r *http.Request) (*http.Response, error) {
		f(r)
		return next.Do(r)
	})
}

type httpFunc func(*http.Request) (*http.Response, error)

func (f httpFunc) Do(r *http.Request) (*http.Response, error) { return f(r) }

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

// tracker records what became of one request below this package: whether it was
// handed on at all, and whether it went out more than once, of which HTTP
// clients that retry on their own give no other sign.
type tracker struct {
	opened atomic.Bool  // the SDK has taken our options, so calls are counted
	calls  atomic.Int32 // of the HTTP client
	wrote  atomic.Int32 // heads of requests on a connection
}

// trace counts what net/http puts on the wire.
func (t *tracker) trace(ctx context.Context) context.Context {
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteHeaders: func() { t.wrote.Add(1) }})
}

func (t *tracker) option(o *s3.Options) {
	t.opened.Store(true)
	before(o, func(*http.Request) { t.calls.Add(1) })
}

// handed reports whether the request may have left. Everything given to the SDK
// may have, unless this package saw that the SDK did not send it.
func (t *tracker) handed(err error) bool {
	if errors.As(err, new(*unsentError)) {
		return false
	}
	return !t.opened.Load() || t.calls.Load() > 0
}

// repeated reports whether more was sent than the response is about.
func (t *tracker) repeated() bool { return t.calls.Load() > 1 || t.wrote.Load() > 1 }

// once turns off the SDK's retries. After a lost response they would repeat a
// conditional write on their own, and our own success would come back as 412.
func once(o *s3.Options) {
	o.Retryer = aws.NopRetryer{}
	o.RetryMaxAttempts = 0 // a number would put another retryer around it
}

// str is nil for "", which the SDK takes for "not given".
func str(s string) *string {
	if s == "" {
		return nil
	}
	return aws.String(s) // &s would put every s on the heap
}

// put returns the request that stores something under key with h. The caller adds
// the body and the condition.
func (b *Bucket) put(key string, h Headers, metadata map[string]string) *s3.PutObjectInput {
	in := &s3.PutObjectInput{
		Bucket: &b.name, Key: &key, Metadata: metadata,
		ContentType: str(h.ContentType), CacheControl: str(h.CacheControl),
		ContentDisposition: str(h.ContentDisposition), ContentEncoding: str(h.ContentEncoding),
		ContentLanguage: str(h.ContentLanguage), StorageClass: h.StorageClass,
	}
	if !h.Expires.IsZero() {
		in.Expires = &h.Expires
	}
	return in
}

// get returns the request that reads key, or its last bytes.
func (b *Bucket) get(key string, last int) *s3.GetObjectInput {
	in := &s3.GetObjectInput{Bucket: &b.name, Key: &key}
	if last > 0 {
		in.Range = aws.String("bytes=-" + strconv.Itoa(last))
	}
	return in
}

// remove deletes key, whatever it is.
func (b *Bucket) remove(ctx context.Context, key string, opts ...func(*s3.Options)) error {
	_, err := b.client.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &b.name, Key: &key}, opts...)
	return err
}

// list yields the objects whose key begins with prefix. An error ends it.
func (b *Bucket) list(ctx context.Context, prefix string) iter.Seq2[types.Object, error] {
	in := &s3.ListObjectsV2Input{Bucket: &b.name, Prefix: str(prefix)}
	return func(yield func(types.Object, error) bool) {
		for {
			page, err := b.client.ListObjectsV2(ctx, in)
			if err != nil {
				yield(types.Object{}, err)
				return
			}
			for _, object := range page.Contents {
				if !yield(object, nil) {
					return
				}
			}
			if !aws.ToBool(page.IsTruncated) {
				return
			}
			token := aws.ToString(page.NextContinuationToken)
			if token == "" || token == aws.ToString(in.ContinuationToken) {
				yield(types.Object{}, errors.New("the store truncated the listing without a new continuation token"))
				return
			}
			in.ContinuationToken = &token
		}
	}
}
