package s3fence

import (
	"errors"
	"fmt"
	"net"
	"strconv"
)

// outcome is what is known of a conditional write by its answer.
type outcome uint8

const (
	outcomeApplied outcome = iota
	// outcomeNotMatched: the condition was false, the write had no effect.
	outcomeNotMatched
	// outcomeUnknown: it may have had effect, or may yet have.
	outcomeUnknown
	// outcomeUnsent: it did not leave this machine, or was signed by a wrong clock
	// and not looked at. It may be sent again.
	outcomeUnsent
	// outcomeRefused: the store, or the SDK before sending, said no for a reason
	// that trying again does not change.
	outcomeRefused
)

// codeSkewed is the 403 for a signature whose time is a quarter of an hour or
// more from the store's. The SDK corrects its clock by the answer and would try
// again, if its retries were not off for conditional writes.
const codeSkewed = "RequestTimeTooSkewed"

// classify reads an SDK error by the interfaces that the SDK's errors satisfy.
// What is not understood is outcomeUnknown.
//
// Sources: Amazon S3 User Guide, "How to prevent object overwrites with
// conditional writes": 412 if the condition is false, 404 for If-Match without
// an object, 409 if another write or delete was under way, after which the
// ETag is to be fetched again.
func classify(err error) outcome {
	if err == nil {
		return outcomeApplied
	}
	status, answered := httpStatus(err)
	switch code := errorCode(err); {
	case !answered && fromSDK(err):
		return outcomeRefused // no credentials, no endpoint, not valid
	case status == 0: // the SDK's status for a connection that gave no answer
		var op *net.OpError
		if errors.As(err, &op) && op.Op == "dial" {
			return outcomeUnsent
		}
		return outcomeUnknown
	case status == 412, status == 404 && noObject(code):
		return outcomeNotMatched
	case code == "NotImplemented":
		return outcomeRefused
	case code == codeSkewed:
		return outcomeUnsent // the SDK has taken the store's time from this answer
	case status >= 500, status < 300, status == 408, status == 409, status == 429, code == "RequestTimeout":
		return outcomeUnknown
	}
	return outcomeRefused
}

// httpStatus returns the status of the answer that err is about; 0 if the
// request was sent, or may have been, and there was none. It reports false if
// err says nothing of the kind.
func httpStatus(err error) (status int, ok bool) {
	var s interface{ HTTPStatusCode() int }
	if errors.As(err, &s) {
		return s.HTTPStatusCode(), true
	}
	var c interface{ ConnectionError() bool }
	return 0, errors.As(err, &c)
}

// fromSDK reports an error that the SDK's client built. One without a status
// arose before the request was sent, because what comes after is wrapped
// with the response, an empty one if there was none.
func fromSDK(err error) bool {
	var op interface {
		Service() string
		Operation() string
	}
	return errors.As(err, &op)
}

// errorCode is Amazon's name for the error; "" if there is none.
func errorCode(err error) string {
	var c interface{ ErrorCode() string }
	if errors.As(err, &c) {
		return c.ErrorCode()
	}
	return ""
}

// missing reports that a read found no object. A HEAD has no body to say
// whether it is the bucket that is missing; the write that follows finds out.
func missing(err error) bool {
	status, _ := httpStatus(err)
	return status == 404 && noObject(errorCode(err))
}

// noObject reports that a 404 is about the object, or has no body to say about
// what, for which the SDK's name is NotFound. Others are about the bucket, about
// the user (from versitygw), or from something that is no S3 store.
func noObject(code string) bool { return code == "NoSuchKey" || code == "NotFound" }

// classifyPut is classify for a conditional PUT. One that creates asks nothing of
// an object, so that a 404 does not answer it.
func classifyPut(err error, creates bool) outcome {
	o := classify(err)
	if status, _ := httpStatus(err); creates && o == outcomeNotMatched && status == 404 {
		return outcomeRefused
	}
	return o
}

// explain says in words what an error of the SDK means for the caller.
func (b *Bucket) explain(err error) error {
	if err == nil {
		return nil
	}
	bucket := "bucket " + strconv.QuoteToASCII(b.name)
	status, _ := httpStatus(err)
	switch code := errorCode(err); {
	case code == "NoSuchBucket":
		return fmt.Errorf("%s does not exist: %w", bucket, err)
	case status == 301, code == "PermanentRedirect", code == "AuthorizationHeaderMalformed", code == "IllegalLocationConstraintException":
		return fmt.Errorf("%s is in another region than the client is configured for: %w", bucket, err)
	case code == "ExpiredToken", code == "ExpiredTokenException", code == "RequestExpired":
		return fmt.Errorf("the credentials have expired: %w", err)
	case code == "InvalidAccessKeyId", code == "SignatureDoesNotMatch", code == "InvalidToken",
		code == "XAdminUserNotFound": // versitygw's, a 404
		return fmt.Errorf("the credentials were refused: %w", err)
	case code == codeSkewed:
		return fmt.Errorf("this machine's clock and the store's differ too much: %w", err)
	case status == 403:
		return fmt.Errorf("access to %s is denied (without s3:ListBucket also for a missing object): %w", bucket, err)
	case code == "NotImplemented":
		return fmt.Errorf("the store does not implement the request: %w", err)
	}
	return err
}

func quoteShort(s string) string {
	if len(s) > 64 {
		return strconv.QuoteToASCII(s[:64]) + "..."
	}
	return strconv.QuoteToASCII(s)
}
