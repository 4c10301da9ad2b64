package httpfence

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"net/http"
	"slices"
	"strings"

	"github.com/fencepost-go/fencepost/guard"
)

// Do sends r with client, whose Transport is a [Transport], and returns nil as its error
// only for a status from 200 to 299: the server has done what was asked.
//
// It is client.Do, [ErrorFrom], and a look at the status: what a proxy or a server without
// a fence responds is not a success either. With an error the response, if there was one, is
// returned too; up to 64 KiB of its body can still be read, and it need not be closed.
//
// Errors of a write that carries a claim:
//   - those of [ErrorFrom], such as [guard.ErrStale]: the fence refused the claim; stop.
//   - [guard.ErrLeaseLost], [guard.ErrInvalid]: nothing was sent.
//   - [guard.ErrUnavailable]: the server did not handle it; it may be repeated.
//   - [guard.ErrOutcomeUnknown]: no response came, whatever bounded the wait,
//     [http.Client.Timeout] too; or one of 500 and above that no fence sent.
//   - an error that matches no sentinel: any other status of 300 and above.
func Do(client *http.Client, r *http.Request) (*http.Response, error) {
	claim, claims := guard.ClaimFrom(r.Context())
	claims = claims && !slices.Contains(defaultUnguarded, method(r))
	var told error
	resp, err := client.Do(r.WithContext(context.WithValue(r.Context(), toldKey{}, &told)))
	switch {
	case err != nil && guard.ReasonOf(err) != guard.ReasonOther || err != nil && !claims:
		return resp, err
	case err != nil: // client has replaced the Transport's error
		op := method(r) + " " + r.URL.Host
		if guard.ReasonOf(told) == guard.ReasonUnavailable {
			return resp, &requestError{guard.Unavailable(op, claim, err)}
		}
		return resp, &requestError{guard.OutcomeUnknown(op, claim, err)}
	case resp.StatusCode < 300:
		return resp, nil
	}
	refusal := ErrorFrom(resp)
	body, _ := io.ReadAll(io.LimitReader(resp.Body, maxProblem))
	_ = resp.Body.Close()
	resp.Body = io.NopCloser(bytes.NewReader(body))
	if refusal != nil {
		return resp, refusal
	}
	op := opOf(resp.Request)
	err = fmt.Errorf("httpfence: %s: the response is %d %s, and not from a fence", op, resp.StatusCode, http.StatusText(resp.StatusCode))
	if claims && resp.StatusCode >= 500 {
		err = guard.OutcomeUnknown(op, claim, err)
	}
	return resp, &guard.ElsewhereError{Err: err}
}

// toldKey is the context's key of where the Transport notes the error of a write.
type toldKey struct{}

// RaiseAt returns the Raise of a [guard.Place]: a POST with the claim to the URL of
// another service's [Middleware.Raise], for [guard.RaiseAll]:
//
//	guard.Place{Name: "ledger", Raise: httpfence.RaiseAt(client, "https://ledger.internal/accounts/acme/raise")}
//
// Its errors are those of [Do].
func RaiseAt(client *http.Client, url string) func(context.Context, guard.Claim) error {
	return func(ctx context.Context, claim guard.Claim) error {
		if current, ok := guard.ClaimFrom(ctx); !ok || current != claim { // else the context may have the lease as well
			ctx = guard.WithClaim(ctx, claim)
		}
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, nil)
		if err != nil {
			return guard.Invalid("URL", url, err.Error())
		}
		resp, err := Do(client, r)
		if err == nil {
			err = resp.Body.Close()
		}
		return err
	}
}

// maxProblem bounds, in bytes, how much of a body [ErrorFrom] reads. The
// longest problem of this package is about a kilobyte.
const maxProblem = 64 << 10

// ErrorFrom returns the error that resp stands for, which matches the same sentinel of package
// guard as on the server.
//
// nil does not mean success: no fence has refused the request, but a proxy or the handler may have.
// [Do] looks at that as well. ErrorFrom trusts the server: call it for origins that you trust with
// your tokens.
//
// It recognises a refusal by the problem type in the body or, where there is none to read, by
// [ReasonHeader]. It does not go by the status, because hooks and proxies have their own. It reads up
// to 64 KiB of a body of application/problem+json. The caller can read that again, and closes it.
//
// Errors, each a [*guard.ElsewhereError] around one with the claim in the context of resp.Request:
//   - *guard.RejectedError, *guard.MisdirectedError: the claim was refused. The mark is there if the
//     server disclosed it. A reason that only a later version knows matches no sentinel.
//   - *guard.InvalidError: the claim did not reach the server, or was malformed.
//   - *guard.FailedError: unavailable, setup or outcome unknown.
//   - an error that matches no sentinel: the server failed for another reason than the claim.
//
// If the body cannot be read and the header has no reason, the error is that failure.
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
	var claim guard.Claim
	if resp.Request != nil {
		claim, _ = guard.ClaimFrom(resp.Request.Context())
	}
	if reason == guard.ReasonMisdirected {
		claimed, ok := members["claimed"].(string)
		if !ok {
			claimed = claim.Resource
		}
		guarded, _ := members["guarded"].(string)
		return &guard.ElsewhereError{Err: &guard.MisdirectedError{Claimed: claimed, Guarded: guarded}}
	}
	field, _ := members["field"].(string)
	if len(field) > maxField || strings.ContainsFunc(field, func(c rune) bool { return c < ' ' || c > '~' }) {
		field = ""
	}
	return &guard.ElsewhereError{Err: errorOf(reason, opOf(resp.Request), field, resp.StatusCode, claim, disclosedMark(members))}
}

// maxField is how long the name of a field may be that is taken over, in bytes.
const maxField = 64

// opOf returns the method and the path of a request.
func opOf(r *http.Request) string {
	switch {
	case r == nil:
		return "request"
	case r.URL == nil:
		return method(r)
	}
	return method(r) + " " + r.URL.EscapedPath()
}

// problemOf returns the members of a problem, none if the body is not a
// problem. A map, because member names are compared exactly (RFC 9457 follows
// RFC 8259), which decoding into a struct does not do.
func problemOf(resp *http.Response) (members map[string]any, err error) {
	if mt, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type")); resp.Body == nil || err != nil || mt != problemType {
		return nil, nil
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxProblem+1))
	resp.Body = struct { // it can be read again
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(body), resp.Body), resp.Body}
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
