package s3fence

import (
	"errors"
	"slices"
	"strconv"

	"github.com/fencepost-go/fencepost/guard"
)

// DamagedError says that an object is not as this package wrote it: its trailer is
// missing, cut, altered or another object's, its body does not match, its metadata says
// something else, or its data is gone, in two consecutive reads. It is the cause of a
// [*guard.FailedError] of the reason unavailable: nothing was written, and nothing will
// be until somebody repairs it.
//
// The ways out are to put the right bytes back, or InsecureDelete.
type DamagedError struct {
	// Key is the object's key.
	Key string
	// Problem says what is wrong with it.
	Problem string
}

// Error names the object and the problem.
func (e *DamagedError) Error() string {
	return "object " + strconv.QuoteToASCII(e.Key) + " is damaged: " + e.Problem
}

// ErrUnsuitableStore is the error, for [errors.Is], of a store that cannot be fenced,
// or not in the requested mode. It is permanent: trying again does not change a store.
// The error is a [*UnsuitableError].
var ErrUnsuitableStore = errors.New("the store is unsuitable for fencing")

// UnsuitableError says which property keeps a store, or a bucket, from being fenced. It
// unwraps to [ErrUnsuitableStore]. Nothing was written except the probe's own objects.
type UnsuitableError struct {
	Bucket string
	// Check is what was tested, Problem what the store did.
	Check, Problem string
}

// Error begins with the reason.
func (e *UnsuitableError) Error() string {
	return e.Check + ": " + e.Problem + ": the store of bucket " + strconv.QuoteToASCII(e.Bucket) + " is unsuitable for fencing"
}

// Unwrap returns ErrUnsuitableStore.
func (e *UnsuitableError) Unwrap() error { return ErrUnsuitableStore }

func damaged(key, problem string) error { return &DamagedError{Key: key, Problem: problem} }

// outcome is what the response shows about a conditional write.
type outcome uint8

const (
	outcomeApplied outcome = iota
	// outcomeNotMatched: the condition was false, the write had no effect.
	outcomeNotMatched
	// outcomeUnknown: it may have had effect, or may yet have.
	outcomeUnknown
	// outcomeLater: it was signed by a wrong clock and not processed. It may be sent
	// again.
	outcomeLater
	// outcomeRefused: the store refused it for a reason that a retry does not change.
	outcomeRefused
)

// codeSkewed is the code of the 403 for a signature whose time is a quarter of an hour
// or more from the store's. The SDK corrects its clock from the response and would retry,
// if its retries were not off for conditional writes.
const codeSkewed = "RequestTimeTooSkewed"

// raceCodes are the codes of a 409 for a write that met another. Every other code
// of a 409 is a refusal that a retry does not change, such as versitygw's
// ExistingObjectIsDirectory and ObjectParentIsFile.
var raceCodes = []string{"ConditionalRequestConflict", "OperationAborted"}

// classify reads an SDK error through the interfaces that the SDK's errors satisfy.
// Whatever it does not understand, or has no response, is outcomeUnknown: a refused
// connection says nothing about earlier attempts that an HTTP client may have made.
//
// Sources: Amazon S3 User Guide, "How to prevent object overwrites with
// conditional writes": 412 if the condition is false, 404 for If-Match without
// an object, 409 if another write or delete was under way, after which the
// ETag is to be fetched again.
func classify(err error) outcome {
	if err == nil {
		return outcomeApplied
	}
	status := httpStatus(err)
	switch code := errorCode(err); {
	case status == 0:
		return outcomeUnknown
	case status == 412, status == 404 && noObject(code):
		return outcomeNotMatched
	case code == "NotImplemented":
		return outcomeRefused
	case code == codeSkewed:
		return outcomeLater // the SDK has taken the store's time from this response
	case status == 409:
		if slices.Contains(raceCodes, code) || !amazonCode(code) {
			return outcomeUnknown
		}
		return outcomeRefused
	case status >= 500, status < 300, status == 408, status == 429, code == "RequestTimeout":
		return outcomeUnknown
	}
	return outcomeRefused
}

// amazonCode reports whether code is the store's own word. The SDK makes up
// UnknownError, or a name for the status, where the response has none.
func amazonCode(code string) bool { return code != "" && code != "UnknownError" && code != "Conflict" }

// skippable reports whether err is about one object only, so that a listing can go
// on behind it: the object is damaged, or the store refuses to read or delete it.
func skippable(err error) bool {
	return errors.As(err, new(*DamagedError)) || err != nil && classify(err) == outcomeRefused && !bucketWide(errorCode(err))
}

// bucketWide reports whether a refusal is about more than one object.
func bucketWide(code string) bool {
	switch code {
	case "NoSuchBucket", "PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException",
		"ExpiredToken", "ExpiredTokenException", "RequestExpired", "InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken",
		"XAdminUserNotFound", "NotImplemented":
		return true
	}
	return false
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

// errorCode is Amazon's name for the error; "" if there is none.
func errorCode(err error) string {
	var c interface{ ErrorCode() string }
	if errors.As(err, &c) {
		return c.ErrorCode()
	}
	return ""
}

// missing reports the store's explicit word that there is no such object.
func missing(err error) bool {
	return httpStatus(err) == 404 && noObject(errorCode(err))
}

// noObject reports whether a 404 is about the object, or has no body to say what it is
// about, which the SDK calls NotFound. Others are about the bucket, about the user
// (from versitygw), or from something that is not an S3 store.
func noObject(code string) bool { return code == "NoSuchKey" || code == "NotFound" }

// classifyPut is classify for a conditional PUT. A 404 does not
// say that the condition of a PUT that creates an object was false.
func classifyPut(err error, creates bool) outcome {
	o := classify(err)
	if creates && o == outcomeNotMatched && httpStatus(err) == 404 {
		return outcomeRefused
	}
	return o
}

// explain says what an error of the SDK means for the caller. What it can name, no
// retry cures: that is guard.ErrSetup.
func (b *Bucket) explain(err error) error {
	if err == nil {
		return nil
	}
	bucket := "bucket " + strconv.QuoteToASCII(b.name)
	status, problem := httpStatus(err), ""
	switch code := errorCode(err); {
	case code == "NoSuchBucket":
		problem = bucket + " does not exist"
	case status == 301, code == "PermanentRedirect", code == "AuthorizationHeaderMalformed", code == "IllegalLocationConstraintException":
		problem = bucket + " is in another region than the client is configured for"
	case code == "ExpiredToken", code == "ExpiredTokenException", code == "RequestExpired":
		problem = "the credentials have expired"
	case code == "SignatureDoesNotMatch", code == "XAmzContentSHA256Mismatch":
		problem = "the signature was refused: the secret key is wrong, or something on the way has changed a signed header or the body"
	case code == "InvalidAccessKeyId", code == "InvalidToken", code == "XAdminUserNotFound": // the last is versitygw's, a 404
		problem = "the credentials were refused"
	case code == codeSkewed:
		problem = "this machine's clock and the store's differ too much"
	case code == "InvalidObjectState":
		problem = "the object is archived; restore it, or copy it to another storage class, before it can be read or written"
	case status == 403 && code == "":
		problem = "the store responded with 403, for the credentials or the rights to " + bucket + ", and its reason could not be read"
	case status == 403:
		problem = "access to " + bucket + " is denied (without s3:ListBucket also for a missing object)"
	case status == 413, code == "EntityTooLarge":
		problem = "the body is longer than the store, or something on the way, takes in one request; use Pointers, or raise that limit"
	case code == "KeyTooLongError", code == "ExistingObjectIsDirectory", code == "ObjectParentIsFile":
		problem = "the store cannot hold an object of that name, or not next to the ones that it has"
	case code == "NotImplemented":
		problem = "the store does not implement the request"
	default:
		return err
	}
	return &setupError{problem, err}
}

// setupError is a refusal that recurs until somebody does something about it.
type setupError struct {
	problem string
	err     error
}

func (e *setupError) Error() string   { return e.problem + ": " + e.err.Error() }
func (e *setupError) Unwrap() []error { return []error{guard.ErrSetup, e.err} }

// quoteShort quotes the beginning of what a store responded.
func quoteShort(s string) string {
	if len(s) > 64 {
		return strconv.QuoteToASCII(s[:64]) + "..."
	}
	return strconv.QuoteToASCII(s)
}
