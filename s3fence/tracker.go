package s3fence

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"slices"
	"sync/atomic"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go/middleware"
)

// tracker records what became of one request below this package, of which the SDK gives no
// other sign. Its results are judge and success.
type tracker struct {
	again  bool         // the SDK may send it more than once
	opened atomic.Bool  // the SDK has taken our options, so calls are counted
	signed atomic.Bool  // the SDK was ready to send, by whatever HTTP client a wrapper may have set
	direct atomic.Bool  // the HTTP client is net/http's own: it sends nothing unseen
	calls  atomic.Int32 // of the HTTP client
	asked  atomic.Int32 // for a connection
	given  atomic.Int32
	heads  atomic.Int32 // of requests, on a connection
	status atomic.Int32 // of the last response
	body   atomic.Bool  // the last response has one
}

// judge corrects what a response says of a write: for the response is about one sending,
// and only the last one.
func (t *tracker) judge(o outcome) outcome {
	switch {
	case t.opened.Load() && !t.signed.Load() && t.calls.Load() == 0:
		return refused // the SDK did not come so far: no credentials, no endpoint, not valid
	case t.direct.Load() && t.asked.Load() > 0 && t.given.Load() == 0:
		return busy // each sending was seen to find no connection
	case t.calls.Load() > 1 || t.heads.Load() > 1:
		return unknown // more was sent than the response is about: HTTP clients may retry on their own
	}
	return o
}

// success checks that a response without an error is a store's, and not a page of
// something in between.
func (t *tracker) success(want int32) error {
	switch status := t.status.Load(); {
	case status != want && status != 0: // 0 if a wrapper of the client does not show it
		return fmt.Errorf("the response to a write or deletion is %d, not the %d of a store", status, want)
	case t.body.Load():
		return errors.New("the response to a write or deletion is not a store's: it has a body")
	}
	return nil
}

// trace counts what net/http puts on the wire.
func (t *tracker) trace(ctx context.Context) context.Context {
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GetConn: func(string) { t.asked.Add(1) }, GotConn: func(httptrace.GotConnInfo) { t.given.Add(1) },
		WroteHeaders: func() { t.heads.Add(1) },
	})
}

// option lets t see the request.
func (t *tracker) option(o *s3.Options) {
	if !t.again {
		// After a lost response the SDK would repeat a conditional write on its own, and our
		// own success would come back as 412.
		o.Retryer = aws.NopRetryer{}
		o.RetryMaxAttempts = 0 // a number would put another retryer around it
	}
	t.opened.Store(true)
	o.APIOptions = append(slices.Clip(o.APIOptions), func(stack *middleware.Stack) error {
		return stack.Deserialize.Add(middleware.DeserializeMiddlewareFunc("fencepost:sent",
			func(ctx context.Context, in middleware.DeserializeInput, next middleware.DeserializeHandler) (middleware.DeserializeOutput, middleware.Metadata, error) {
				t.signed.Store(true)
				return next.HandleDeserialize(ctx, in)
			}), middleware.After)
	})
	switch c := o.HTTPClient.(type) {
	case *awshttp.BuildableClient:
		t.direct.Store(true)
	case *http.Client:
		_, own := c.Transport.(*http.Transport)
		t.direct.Store(own || c.Transport == nil)
	}
	next := o.HTTPClient
	o.HTTPClient = httpFunc(func(r *http.Request) (*http.Response, error) {
		t.calls.Add(1)
		out, err := next.Do(r)
		if err != nil {
			return out, err
		}
		t.status.Store(int32(out.StatusCode))
		t.body.Store(false)
		if out.StatusCode < 300 {
			err = t.peek(out)
		}
		return out, err
	})
}

// peek finds out whether a response has a body, which its head does not always say: one in
// chunks, or over HTTP/2, may have no length.
func (t *tracker) peek(out *http.Response) error {
	first := make([]byte, 1)
	switch _, err := io.ReadFull(out.Body, first); err {
	case io.EOF:
	case nil:
		t.body.Store(true)
		out.Body = struct {
			io.Reader
			io.Closer
		}{io.MultiReader(bytes.NewReader(first), out.Body), out.Body}
	default:
		out.Body.Close()
		return err
	}
	return nil
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

// gated holds a request's body back before its last byte. The bytes before it wait in
// the connection's buffer, so that all requests leave at once.
type gated struct {
	io.ReadCloser
	left int64
	hold func()
}

func (b *gated) Read(p []byte) (int, error) {
	switch {
	case b.left == 1:
		b.hold()
	case b.left > 1 && int64(len(p)) >= b.left:
		p = p[:b.left-1]
	}
	n, err := b.ReadCloser.Read(p)
	b.left -= int64(n)
	return n, err
}
