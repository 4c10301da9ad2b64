package s3fence

import (
	"context"
	"errors"
	"io"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/fencepost-go/fencepost/guard"
)

// meaning is what an error code says.
type meaning struct {
	outcome outcome // of the write that it responds to
	setup   bool    // it stays until somebody does something; else time, or new credentials, cure it
	wide    bool    // it is about more than one object
	says    string  // to people, where BUCKET is the bucket's name
}

// ofBucket and ofObject are refusals that last, of all requests or of those about one object.
func ofBucket(says string) meaning { return meaning{refused, true, true, says} }
func ofObject(says string) meaning { return meaning{refused, true, false, says} }

var (
	expired   = meaning{outcome: busy, wide: true, says: "the credentials have expired"} // the next request is signed anew
	elsewhere = ofBucket("BUCKET is in another region than the client is configured for")
	badKeys   = ofBucket("the credentials were refused")
	tampered  = ofBucket("the signature was refused: the secret key is wrong, or something on the way has changed a signed header or the body")
	badName   = ofObject("the store cannot hold an object of that name, or not next to the ones that it has")
	tooLarge  = ofObject("the body is longer than the store, or something on the way, takes in one request; use Pointers, or raise that limit")
)

// meanings has the codes of Amazon S3 and, where they differ, of versitygw and MinIO.
//
// Sources: Amazon S3 User Guide, "How to prevent object overwrites with
// conditional writes": 412 if the condition is false, 404 for If-Match without
// an object, 409 if another write or delete was under way, after which the
// ETag is to be fetched again.
var meanings = map[string]meaning{
	"PreconditionFailed":                 {outcome: mismatch},
	"NoSuchKey":                          {outcome: mismatch},
	"ConditionalRequestConflict":         {outcome: unknown}, // two met, which one stands is not said
	"OperationAborted":                   {outcome: unknown},
	"SlowDown":                           {outcome: busy, says: "the store asks for fewer requests"},
	"TooManyRequests":                    {outcome: busy, says: "the store asks for fewer requests"},
	"RequestTimeTooSkewed":               {outcome: busy, setup: true, wide: true, says: "this machine's clock and the store's differ too much"}, // the SDK takes the time from it
	"RequestTimeout":                     {outcome: unknown},
	"ExpiredToken":                       expired,
	"ExpiredTokenException":              expired,
	"TokenRefreshRequired":               expired,
	"RequestExpired":                     expired,
	"NoSuchBucket":                       ofBucket("BUCKET does not exist"),
	"PermanentRedirect":                  elsewhere,
	"AuthorizationHeaderMalformed":       elsewhere,
	"IllegalLocationConstraintException": elsewhere,
	"SignatureDoesNotMatch":              tampered,
	"XAmzContentSHA256Mismatch":          tampered,
	"InvalidAccessKeyId":                 badKeys,
	"InvalidToken":                       badKeys,
	"XAdminUserNotFound":                 badKeys, // versitygw's, a 404
	"AccessDenied":                       ofObject("access to BUCKET is denied (without s3:ListBucket also for a missing object)"),
	"InvalidObjectState":                 ofObject("the object is archived; restore it, or copy it to another storage class, before it can be read or written"),
	"EntityTooLarge":                     tooLarge,
	"KeyTooLongError":                    badName,
	"ExistingObjectIsDirectory":          badName, // versitygw's, as the next
	"ObjectParentIsFile":                 badName,
	"NotImplemented":                     ofBucket("the store does not implement the request"),
}

// meaningOf reads an error through the interfaces that the SDK's errors satisfy. code is
// the store's own. The meaning of what it does not understand is unknown.
func meaningOf(err error) (m meaning, code string) {
	status := httpStatus(err)
	code = storeCode(err, status)
	m, known := meanings[code]
	switch {
	case status == 0:
		return meaning{outcome: unknown}, ""
	case known && status >= 300 && (code != "NoSuchKey" || status == 404):
	case status == 412:
		m = meaning{outcome: mismatch}
	case status == 301:
		m = elsewhere
	case status == 404, status >= 500, status < 300, status == 408, status == 429, code == "" && (status < 400 || status == 409):
		m = meaning{outcome: unknown}
	case status == 403 && code == "":
		m = meaning{outcome: refused, wide: true, says: "the response is 403, for the credentials or the rights to BUCKET, and it gives no reason of the store's"}
	case status == 413:
		m = tooLarge
	default:
		m = meaning{outcome: refused}
	}
	return m, code
}

// saysAbsent reports the store's own word that there is no such object: nothing else is.
func saysAbsent(m meaning, code string) bool { return m.outcome == mismatch && code == "NoSuchKey" }

// resultOf makes the result of a write or deletion that has an error.
func (s *sdk) resultOf(ctx context.Context, way *tracker, over condition, err error) result {
	m, code := meaningOf(err)
	o := m.outcome
	if over == noObject && saysAbsent(m, code) { // that condition is not false for lack of one
		o = refused
	}
	return result{outcome: way.judge(o), err: s.explain(ctx, m, code, err)}
}

// readError makes the error of a read.
func (s *sdk) readError(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	m, code := meaningOf(err)
	if saysAbsent(m, code) {
		return errAbsent
	}
	return s.explain(ctx, m, code, err)
}

// explain makes the error of a request that failed, as far as it is understood.
func (s *sdk) explain(ctx context.Context, m meaning, code string, err error) error {
	m.says = strings.ReplaceAll(m.says, "BUCKET", "bucket "+strconv.QuoteToASCII(s.bucket))
	if context.Cause(ctx) == errIdle {
		m.says = "nothing was sent or received for " + s.idle.String() + ", which is Options.RequestTimeout"
	}
	return &failure{m, code, err}
}

// failure is a request that failed.
type failure struct {
	meaning
	code string // the store's own
	err  error
}

// oneObject reports whether the store refuses something of one object, and may not of
// others.
func (e *failure) oneObject() bool { return e.outcome == refused && !e.wide }

func (e *failure) Error() string {
	if e.says == "" {
		return e.err.Error()
	}
	return e.says + ": " + e.err.Error()
}

// Unwrap makes what somebody must repair a setup error.
func (e *failure) Unwrap() []error {
	if e.setup {
		return []error{guard.ErrSetup, e.err}
	}
	return []error{e.err}
}

// httpStatus returns the status of the response that err is about; 0 if there was none,
// or err does not say.
func httpStatus(err error) int {
	var s interface{ HTTPStatusCode() int }
	if errors.As(err, &s) {
		return s.HTTPStatusCode()
	}
	return 0
}

// storeCode is the store's name for the error, "" if there is none. The SDK makes names up
// where a response has none: UnknownError, or one of the status, with the status as the
// message.
func storeCode(err error, status int) string {
	var c interface{ ErrorCode() string }
	if !errors.As(err, &c) || c.ErrorCode() == "UnknownError" {
		return ""
	}
	text := http.StatusText(status)
	var m interface{ ErrorMessage() string }
	if c.ErrorCode() == strings.ReplaceAll(text, " ", "") && errors.As(err, &m) && m.ErrorMessage() == text {
		return ""
	}
	return c.ErrorCode()
}

// untouched makes a read ask for the store's own response, not for a stored or a
// transformed one. The signature does not cover the header, because a proxy may
// rewrite it.
func untouched(o *s3.Options) {
	before(o, func(r *http.Request) { r.Header.Set("Cache-Control", "no-cache, no-store, no-transform") })
}

// errIdle is the cause of a context that watch has ended.
var errIdle = errors.New("no progress")

// watchdog ends a request on which nothing has moved for some time. A limit for the whole
// would end long bodies on slow lines.
type watchdog struct {
	timer *time.Timer
	after time.Duration
	end   context.CancelCauseFunc
}

func watch(ctx context.Context, after time.Duration) (context.Context, *watchdog) {
	ctx, end := context.WithCancelCause(ctx)
	return ctx, &watchdog{time.AfterFunc(after, func() { end(errIdle) }), after, end}
}

func (w *watchdog) stop() { w.timer.Stop(); w.end(nil) }

// Write makes w one end of an io.TeeReader: what is read moves.
func (w *watchdog) Write(p []byte) (int, error) {
	w.timer.Reset(w.after)
	return len(p), nil
}

// option lets w see the body of a response that the SDK reads by itself.
func (w *watchdog) option(o *s3.Options) {
	next := o.HTTPClient
	o.HTTPClient = httpFunc(func(r *http.Request) (*http.Response, error) {
		out, err := next.Do(r)
		if err == nil {
			out.Body = struct {
				io.Reader
				io.Closer
			}{io.TeeReader(out.Body, w), out.Body}
		}
		return out, err
	})
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

// oneStore refuses names that stand for more than one store, or for something that changes
// what a store responds. No condition holds for all of them.
func oneStore(bucket, endpoint string) error {
	arn := strings.SplitN(bucket, ":", 6) // arn:partition:service:region:account:resource
	switch isARN := len(arn) == 6 && arn[0] == "arn"; {
	case isARN && arn[2] == "s3" && arn[3] == "", strings.HasSuffix(bucket, ".mrap"), strings.Contains(endpoint, ".s3-global."):
		return guard.Invalid("bucket", bucket, "is a Multi-Region Access Point, which is several buckets: a mark raised in one is not in the others; name one bucket of them")
	case isARN && arn[2] == "s3-object-lambda", strings.HasSuffix(bucket, "--ol-s3"):
		return guard.Invalid("bucket", bucket, "is an Object Lambda access point, which changes what the bucket responds; name the bucket")
	}
	return nil
}
