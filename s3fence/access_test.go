package s3fence_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/s3fence"
)

// answering is an HTTP client that has one response for everything.
type answering struct {
	status int
	body   string
}

func (a answering) Do(r *http.Request) (*http.Response, error) {
	out := &http.Response{StatusCode: a.status, Request: r, Header: http.Header{}, Body: http.NoBody}
	if r.Method != http.MethodHead {
		out.Body = io.NopCloser(strings.NewReader(a.body))
	}
	return out, nil
}

// Configurations that cannot work give a clear error at opening and at each
// call, and leave the object untouched.
func TestAccess(t *testing.T) {
	t.Parallel()
	gone := errors.New("the role is gone")
	answer := func(status int, code string) func(*s3.Options) {
		return func(o *s3.Options) { o.HTTPClient = answering{status, "<Error><Code>" + code + "</Code></Error>"} }
	}
	page := func(o *s3.Options) {
		o.HTTPClient = answering{http.StatusNotFound, "<!DOCTYPE html><title>Not here<br>"}
	}
	for name, c := range map[string]struct {
		change func(*s3.Options)
		bucket string
		says   string
		reason guard.Reason
	}{
		"expired credentials":      {answer(http.StatusBadRequest, "ExpiredToken"), bucketName, "credentials have expired", guard.ReasonSetup},
		"unknown credentials":      {answer(http.StatusForbidden, "InvalidAccessKeyId"), bucketName, "credentials were refused", guard.ReasonSetup},
		"unknown credentials, 404": {answer(http.StatusNotFound, "XAdminUserNotFound"), bucketName, "credentials were refused", guard.ReasonSetup}, /* versitygw */
		"no S3 at the endpoint":    {page, bucketName, "404", guard.ReasonUnavailable},
		"no credentials": {func(o *s3.Options) {
			o.Credentials = aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) { return aws.Credentials{}, gone })
		}, bucketName, gone.Error(), guard.ReasonUnavailable},
		"wrong bucket":           {func(*s3.Options) {}, "receipts", "does not exist", guard.ReasonSetup},
		"wrong region":           {answer(http.StatusBadRequest, "AuthorizationHeaderMalformed"), bucketName, "another region", guard.ReasonSetup},
		"nobody at the endpoint": {func(o *s3.Options) { o.BaseEndpoint = aws.String("http://127.0.0.1:1") }, bucketName, "refused", guard.ReasonUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			server := newServer(t, nil)
			b := open(t, server, nil)
			eachMode(t, func(t *testing.T, mode s3fence.Mode) {
				if mode == s3fence.Plain {
					b.SetOpaque(true)
				}
				must(t, objects(t, b, mode, nil).Put(t.Context(), claim(5, "a"), s3fence.NameOf(mode), strings.NewReader("x"), nil))
				bad := b.On(newClient(server, c.change), c.bucket)
				warm := objects(t, bad, mode, nil)
				bad.CopyCache(b) // so that the write itself is what fails
				for call, err := range map[string]error{
					"put":       objects(t, b.On(bad.Client(), c.bucket), mode, nil).Put(t.Context(), claim(6, "b"), s3fence.NameOf(mode), strings.NewReader("y"), nil),
					"put, warm": warm.Put(t.Context(), claim(6, "b"), s3fence.NameOf(mode), strings.NewReader("y"), nil),
					"raise":     warm.Raise(t.Context(), claim(6, "b"), s3fence.NameOf(mode)),
					"delete":    warm.Delete(t.Context(), claim(6, "b"), s3fence.NameOf(mode)),
					"get":       got(t, warm, s3fence.NameOf(mode)),
				} {
					reason := c.reason
					if name == "nobody at the endpoint" && guard.ReasonOf(err) == guard.ReasonOutcomeUnknown && call != "put" && call != "get" {
						reason = guard.ReasonOutcomeUnknown // it was handed to the SDK, and nothing can be read
					}
					refused(t, err, reason)
					if err != nil && !strings.Contains(err.Error(), c.says) {
						t.Errorf("%s does not say %q: %v", call, c.says, err)
					}
				}
			})
			if name != "nobody at the endpoint" {
				_, err := s3fence.Open(t.Context(), newClient(server, c.change), c.bucket, nil)
				refused(t, err, c.reason)
				if err != nil && !strings.Contains(err.Error(), c.says) {
					t.Errorf("Open does not say %q: %v", c.says, err)
				}
			}
			for _, o := range server.Objects(bucketName) {
				if o.Metadata["fencing-token"] != "5" && o.Metadata["fencing-token"] != "" {
					t.Errorf("%q was written", o.Key)
				}
			}
		})
	}
}

// got is the result of reading an object.
func got(t *testing.T, o *s3fence.Handle, key string) error {
	t.Helper()
	object, err := o.Get(t.Context(), key)
	if err == nil {
		object.Body.Close()
	}
	return err
}
