package httpfence

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/guard/proof"
)

// problemPrefix begins the type of every problem this package sends.
// Tag URIs (RFC 4151) identify without implying that there is a page to fetch.
const problemPrefix = "tag:fencepost-go.github.io,2026:problem/"

// row is a row of the status table.
type row struct {
	reason guard.Reason
	status int
	title  string
	detail string
}

// rows is the table between reasons and the wire, read from left to right
// by [Middleware.Reject] and from right to left by [ErrorFrom]. It covers all
// [guard.Reasons]; the last row stands for every other error.
//
// A refusal by comparison is 412 (RFC 9110, sections 13.1 and 15.5.13), never
// 409: proxies are configured to retry 409, and a stale claim stays stale.
// A misdirected claim is 400: the request contradicts itself, whatever the
// state of the resource. It is not 421, which clients retry elsewhere.
var rows = [...]row{
	{guard.ReasonMissing, http.StatusPreconditionRequired, "Claim incomplete",
		"Send the claim of your lease, each field once: the fencing token in " + TokenHeader + ", the lease ID in " + LeaseHeader + ", the percent-encoded name of the resource in " + ResourceHeader + "."},
	{guard.ReasonInvalid, http.StatusBadRequest, "Invalid fencing request",
		TokenHeader + " must be one decimal number from 1 to 9223372036854775806 without sign, space or leading zero, " + LeaseHeader + " one percent-encoded lease ID of 1 to 128 bytes, " + ResourceHeader + " one percent-encoded name, and the URL must name a valid resource."},
	{guard.ReasonMisdirected, http.StatusBadRequest, "Claim for another resource",
		ResourceHeader + " names a resource other than the one that this route guards. Nothing was changed."},
	{guard.ReasonStale, http.StatusPreconditionFailed, "Stale fencing token",
		"A newer holder has taken over this resource. Stop; do not repeat the request."},
	{guard.ReasonSpent, http.StatusPreconditionFailed, "Fencing token already spent",
		"This token has already written to this resource."},
	{guard.ReasonConflict, http.StatusPreconditionFailed, "Fencing token belongs to another lease",
		"The resource admitted this token under another lease: two holders have one token. Stop and raise an alarm."},
	{guard.ReasonMarkAhead, http.StatusPreconditionFailed, "Mark is ahead of the issuer",
		"The resource's mark is above every token issued. An operator must repair the issuer or the mark."},
	{guard.ReasonNotFound, http.StatusNotFound, "Resource not found",
		"There is no such resource to write to."},
	{guard.ReasonUnfenced, http.StatusConflict, "Resource is not fenced",
		"The resource exists and was never written under a fencing token."},
	{guard.ReasonSetup, http.StatusInternalServerError, "Store of marks not set up",
		"The claim could not be verified and this request wrote nothing. An operator must repair the server; do not repeat the request before."},
	{guard.ReasonUnavailable, http.StatusServiceUnavailable, "Store of marks unavailable",
		"The claim could not be verified, so this request wrote nothing and may be repeated. A copy that a proxy sent before may have been written."},
	{guard.ReasonOutcomeUnknown, http.StatusInternalServerError, "Outcome unknown",
		"It is unknown whether the write took effect. Do not repeat it blindly."},
	// No server refuses for a lost lease: only the holder's own clock knows.
	// The row is for a handler that holds a lease of its own.
	{guard.ReasonLeaseLost, http.StatusInternalServerError, "Lease lost",
		"The lease under which the request was handled is over."},
	{guard.ReasonOther, http.StatusInternalServerError, "Internal error",
		"The request failed for a reason other than its claim. The server's log has the error."},
}

// rowOf returns the row of reason; the row of [guard.ReasonOther] for a
// string that is not a reason, so that no refusal ever becomes a success.
func rowOf(reason guard.Reason) *row {
	for i := range rows {
		if rows[i].reason == reason {
			return &rows[i]
		}
	}
	return &rows[len(rows)-1]
}

// typeURI returns the problem type of reason.
func typeURI(reason guard.Reason) string { return problemPrefix + string(reason) }

// reasonOfType returns the reason that a problem type stands for, and whether
// the type is one of this module's. A reason that only a later version knows is
// returned as it is.
func reasonOfType(uri string) (guard.Reason, bool) {
	name, ours := strings.CutPrefix(uri, problemPrefix)
	return guard.Reason(name), ours
}

// errorOf is the client's half of the table: the error that a guard on this side would
// have returned for reason. field is what the server found missing or invalid, "" if it
// did not say. It does not include the server's human-readable text, which would carry
// another machine's text into this one's log.
func errorOf(reason guard.Reason, op, field string, status int, claim guard.Claim, mark guard.Mark) error {
	switch reason {
	case guard.ReasonMissing:
		if field == proof.Header {
			return &guard.InvalidError{Field: field + " of " + op, Problem: "did not reach the server; TransportOptions.Proof returns what is sent", Missing: true}
		}
		return &guard.InvalidError{Field: cmp.Or(field, "claim") + " of " + op, Problem: "did not reach the server; Transport sends the claim in the request's context, and only to its configured origins", Missing: true}
	case guard.ReasonInvalid:
		problem := "the server found it malformed"
		switch {
		case field == "":
			field, problem = "claim or another part", "the server found one of them malformed"
		case field == bodyField && status == http.StatusRequestEntityTooLarge:
			problem = "is longer than the server takes"
		case field == bodyField:
			problem = "did not reach the server whole and in time"
		}
		return &guard.InvalidError{Field: field + " of " + op, Problem: problem}
	case guard.ReasonUnavailable, guard.ReasonSetup, guard.ReasonOutcomeUnknown:
		return &guard.FailedError{Reason: reason, Op: op, Claim: claim}
	case guard.ReasonLeaseLost:
		return &guard.LostError{Claim: claim, Cause: errors.New("the server of " + op + " reported it")}
	case guard.ReasonOther:
		return fmt.Errorf("httpfence: %s: the server failed for a reason other than the claim; its log has the error", op)
	}
	return &guard.RejectedError{Reason: rowOf(reason).reason, Claim: claim, Mark: mark}
}
