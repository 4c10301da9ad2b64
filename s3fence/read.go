package s3fence

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
)

// peek reads the state of an object: its headers and its last few KiB. plain
// asks for the headers first, where those of a Plain object say everything.
// The error is the SDK's or a [*DamagedError].
func (b *Bucket) peek(ctx context.Context, key string, plain bool) (state, error) {
	ctx, cancel := context.WithTimeout(ctx, b.opts.RequestTimeout)
	defer cancel()
	if plain {
		s, sealed, err := b.peekHeaders(ctx, key)
		if err != nil || !sealed {
			return s, err
		}
	}
	out, err := b.client.GetObject(ctx, b.get(key, tailSize))
	switch {
	case err != nil && missing(err):
		return state{}, nil
	case err != nil && errorCode(err) == "InvalidRange": // how S3 says that it is empty
		s, _, err := b.peekHeaders(ctx, key)
		return s, err
	case err != nil:
		return state{}, err
	}
	defer out.Body.Close()
	h := headOf(out)
	tail, err := b.tail(out.Body, &h, aws.ToString(out.ContentRange))
	if err != nil {
		return state{}, err
	}
	return parse(key, h, tail)
}

// peekHeaders asks for the headers alone. sealed says that they do not suffice.
func (b *Bucket) peekHeaders(ctx context.Context, key string) (s state, sealed bool, err error) {
	out, err := b.head(ctx, key)
	switch {
	case err != nil && missing(err):
		return state{}, false, nil
	case err != nil:
		return state{}, false, err
	}
	h := head{etag: aws.ToString(out.ETag), size: aws.ToInt64(out.ContentLength), modified: aws.ToTime(out.LastModified), metadata: out.Metadata}
	mode := reserved(out.Metadata)[metaMode]
	if h.size > 0 && mode != "" && mode != kindNames[kindPlain] {
		return state{}, true, nil
	}
	s, err = parse(key, h, nil)
	return s, false, err
}

// tail reads the last bytes of an object and completes its size. A store that
// does not know suffix ranges sends all of it.
func (b *Bucket) tail(body io.Reader, h *head, contentRange string) ([]byte, error) {
	if contentRange == "" {
		return lastBytes(body, h)
	}
	_, total, ok := strings.Cut(contentRange, "/")
	size, err := strconv.ParseInt(total, 10, 64)
	if !ok || err != nil {
		return nil, fmt.Errorf("the store answered with the range %s", quoteShort(contentRange))
	}
	h.size = size
	tail, err := io.ReadAll(io.LimitReader(body, tailSize+1))
	if err != nil {
		return nil, err
	}
	if want := min(size, tailSize); int64(len(tail)) != want {
		return nil, fmt.Errorf("the store answered a range of %d bytes with %d", want, len(tail))
	}
	return tail, nil
}

func lastBytes(body io.Reader, h *head) ([]byte, error) {
	var kept []byte
	h.size = 0
	chunk := make([]byte, tailSize)
	for {
		n, err := body.Read(chunk)
		h.size += int64(n)
		kept = append(kept, chunk[:n]...)
		if over := len(kept) - tailSize; over > 0 {
			kept = kept[over:]
		}
		if err == io.EOF {
			return kept, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// fetch reads an object whole: its state with body and headers.
func (b *Bucket) fetch(ctx context.Context, key string) (state, error) {
	ctx, cancel := context.WithTimeout(ctx, b.opts.RequestTimeout)
	defer cancel()
	out, err := b.client.GetObject(ctx, b.get(key, 0))
	switch {
	case err != nil && missing(err):
		return state{}, nil
	case err != nil:
		return state{}, err
	}
	defer out.Body.Close()
	h := headOf(out)
	limit := b.opts.MaxBody + tailSize
	if h.size > limit {
		return state{}, tooLong(h.size, b.opts.MaxBody)
	}
	object := make([]byte, 0, max(h.size, 0)+1) // and one byte to see the end by
	for {
		if len(object) == cap(object) {
			object = append(object, 0)[:len(object)]
		}
		n, err := out.Body.Read(object[len(object):cap(object)])
		object = object[:len(object)+n]
		if int64(len(object)) > limit {
			return state{}, tooLong(int64(len(object)), b.opts.MaxBody)
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return state{}, err
		}
	}
	h.size = int64(len(object))
	s, err := parse(key, h, object)
	if err != nil {
		return state{}, err
	}
	if !s.kind.sealed() {
		s.body = object
	}
	h.headers.Metadata = userMetadata(h.metadata)
	s.headers = &h.headers
	return s, nil
}

// headOf reads the headers of an answer to GET.
func headOf(out *s3.GetObjectOutput) head {
	h := head{
		etag: aws.ToString(out.ETag), size: aws.ToInt64(out.ContentLength),
		modified: aws.ToTime(out.LastModified), metadata: out.Metadata,
		headers: Headers{
			ContentType: aws.ToString(out.ContentType), CacheControl: aws.ToString(out.CacheControl),
			ContentDisposition: aws.ToString(out.ContentDisposition), ContentLanguage: aws.ToString(out.ContentLanguage),
			StorageClass: out.StorageClass,
		},
	}
	// The SDK's framing of a body with a trailing checksum is stored by some
	// gateways as if it were the caller's encoding.
	var encodings []string
	for e := range strings.SplitSeq(aws.ToString(out.ContentEncoding), ",") {
		if e = strings.TrimSpace(e); e != "" && e != "aws-chunked" {
			encodings = append(encodings, e)
		}
	}
	h.headers.ContentEncoding = strings.Join(encodings, ",")
	if t, err := http.ParseTime(aws.ToString(out.ExpiresString)); err == nil {
		h.headers.Expires = t
	}
	return h
}
