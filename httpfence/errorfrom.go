package httpfence

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"net/http"

	"github.com/fencepost-go/fencepost/guard"
)

// maxProblem bounds, in bytes, how much of a body [ErrorFrom] reads. The
// longest problem of this package is about a kilobyte.
const maxProblem = 64 << 10

// ErrorFrom returns the error that resp stands for, as on the server: a
// *guard.RejectedError, *guard.InvalidError or *guard.FailedError, so that
// errors.Is works with the sentinels of package guard on both sides. The claim
// is the one in the context of resp.Request; the mark is there if the server
// disclosed it.
//
// It recognises a refusal by the problem type in its body, or, where there is
// no body to read (HEAD, a body that a proxy compressed), by [ReasonHeader];
// not by the status, because hooks and proxies have their own. It returns nil
// for every other response: a success, a 412 for an application's own If-Match,
// a 502 or 504 from a proxy. nil therefore does not mean that the request
// succeeded: look at the status as well, and treat a 5xx from a proxy to
// a request that writes as an unknown outcome. A problem type
// that only a later version of this package knows gives a *guard.RejectedError
// of [guard.ReasonOther]; a server that failed for a reason other than the claim
// is an error that matches no sentinel.
//
// Only a body of status 400 or above with the type application/problem+json is
// read, at most 64 KiB of it; a larger body is not from this package. The
// caller can read the body again in full, and closes it as always. If reading
// it fails and the header does not give the reason, the error is that failure,
// which matches none of guard's sentinels.
//
// A misdirected claim gives a *guard.MisdirectedError with both names; without
// a body Guarded is empty.
//
// ErrorFrom trusts the server. Call it for responses from origins that you trust
// with your tokens.
func ErrorFrom(resp *http.Response) error {
	if resp == nil || resp.StatusCode < 400 {
		return nil
	}
	reason := guard.ReasonNone
	if lines := resp.Header[ReasonHeader]; len(lines) == 1 && lines[0] != "" {
		reason = guard.Reason(lines[0])
	}
	members, err := problemOf(resp)
	uri, _ := members["type"].(string)
	r, ours := reasonOfType(uri)
	if ours {
		reason = r
	}
	if !ours && reason == guard.ReasonNone {
		return err
	}
	op, claim := "request", guard.Claim{}
	if r := resp.Request; r != nil {
		claim, _ = guard.ClaimFrom(r.Context())
		if op = method(r); r.URL != nil {
			op += " " + r.URL.EscapedPath()
		}
	}
	if reason == guard.ReasonMisdirected {
		if claimed, ok := members["claimed"].(string); ok {
			claim.Resource = claimed
		}
		guarded, _ := members["guarded"].(string)
		return &guard.MisdirectedError{Claimed: claim.Resource, Guarded: guarded}
	}
	return errorOf(reason, op, claim, disclosedMark(members))
}

// problemOf returns the members of a problem, none if the body is not a
// problem. A map, because member names are compared exactly (RFC 9457 follows
// RFC 8259), which decoding into a struct does not do.
func problemOf(resp *http.Response) (members map[string]any, err error) {
	if mt, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type")); resp.Body == nil || err != nil || mt != problemType {
		return nil, nil
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxProblem+1))
	resp.Body = &replayed{Reader: io.MultiReader(bytes.NewReader(body), failing{err}, resp.Body), Closer: resp.Body}
	if err != nil {
		return nil, fmt.Errorf("httpfence: reading the problem of a response with status %d: %w", resp.StatusCode, err)
	}
	if len(body) <= maxProblem && json.Unmarshal(body, &members) != nil {
		members = nil
	}
	return members, nil
}

// disclosedMark returns the zero mark unless there is a well-formed one.
func disclosedMark(members map[string]any) guard.Mark {
	s, _ := members["mark"].(string)
	token, err := guard.ParseToken(s)
	if err != nil {
		return guard.Mark{}
	}
	floor, _ := members["floor"].(bool)
	return guard.Mark{Token: token, Floor: floor}
}

// replayed is a body that was partly read and can be read again in full.
type replayed struct {
	io.Reader
	io.Closer
}

// failing gives the error that ended the first reading, or nothing.
type failing struct{ err error }

func (f failing) Read([]byte) (int, error) {
	if f.err == nil {
		return 0, io.EOF
	}
	return 0, f.err
}
