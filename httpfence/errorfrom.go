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
// longest problem of this package has about a kilobyte.
const maxProblem = 64 << 10

// ErrorFrom returns the error that resp stands for, as the server's guard had
// it: a *guard.RejectedError, *guard.InvalidError or *guard.FailedError, so
// that errors.Is works with the sentinels of package guard on both sides. The
// claim is the one in the context of resp.Request; the mark is there if the
// server disclosed it.
//
// It recognises an answer by the problem type in its body, whatever the
// status, because statuses can be overridden and proxies have their own. It
// returns nil for every other answer: a success, a 412 of somebody's own
// If-Match, a 502 or 504 of a proxy. nil therefore does not mean that the
// request succeeded: look at the status as well, and treat a 5xx of a proxy to
// a request that writes as an unknown outcome. A problem type that only
// a later version of this package knows is a *guard.RejectedError of
// [guard.ReasonOther].
//
// Only a body of status 400 or above with the type application/problem+json is
// read, at most 64 KiB of it; larger is not ours. The caller can read the body
// again in full, and closes it as always. If reading it fails, the error is
// that failure, of none of guard's kinds.
//
// ErrorFrom believes the server. Call it for answers of origins that you trust
// with your tokens.
func ErrorFrom(resp *http.Response) error {
	if resp == nil || resp.Body == nil || resp.StatusCode < 400 {
		return nil
	}
	if mt, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type")); err != nil || mt != problemType {
		return nil
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxProblem+1))
	resp.Body = &replayed{Reader: io.MultiReader(bytes.NewReader(body), failing{err}, resp.Body), Closer: resp.Body}
	if err != nil {
		return fmt.Errorf("httpfence: reading the problem of a %d answer: %w", resp.StatusCode, err)
	}
	if len(body) > maxProblem {
		return nil
	}
	// A map, because member names are compared exactly (RFC 9457 follows RFC
	// 8259), which decoding into a struct does not do.
	var members map[string]any
	if json.Unmarshal(body, &members) != nil {
		return nil
	}
	uri, _ := members["type"].(string)
	reason, ours := reasonOfType(uri)
	if !ours {
		return nil
	}
	op, claim := "request", guard.Claim{}
	if r := resp.Request; r != nil {
		claim, _ = guard.ClaimFrom(r.Context())
		if op = method(r); r.URL != nil {
			op += " " + r.URL.EscapedPath()
		}
	}
	return errorOf(reason, op, claim, disclosedMark(members))
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

// replayed is a body that has been read in part and put together again.
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
