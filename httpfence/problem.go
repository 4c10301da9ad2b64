package httpfence

import (
	"bytes"
	"encoding/json"
	"strings"

	"github.com/fencepost-go/fencepost/guard"
)

// problemType is the media type of RFC 9457.
const problemType = "application/problem+json"

// problemBody is a problem details object (RFC 9457, section 3.1). The last
// three are extension members (section 3.2).
type problemBody struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
	Token  string `json:"token,omitempty"`
	Mark   string `json:"mark,omitempty"`
	Floor  bool   `json:"floor,omitempty"`
}

// problem is an answer rendered at construction. It has nothing of the request
// in it, so nothing can be injected and nothing is disclosed.
type problem struct {
	status int
	parts  problemBody
	body   []byte
}

// problems are in the order of the status table.
type problems [len(outcomes)]problem

func (m *Middleware) problem(reason guard.Reason) *problem { return &m.problems[indexOf(reason)] }

func renderAll(tokenHeader, leaseHeader string, statuses map[guard.Reason]int) (out problems) {
	names := strings.NewReplacer("{token}", tokenHeader, "{lease}", leaseHeader)
	for i, o := range outcomes {
		status := o.status
		if s, ok := statuses[o.reason]; ok {
			status = s
		}
		parts := problemBody{Type: typeURI(o.reason), Title: o.title, Status: status, Detail: names.Replace(o.detail)}
		out[i] = problem{status: status, parts: parts, body: render(parts)}
	}
	return out
}

// withMark renders p with the facts of the comparison, if there was one.
func (p *problem) withMark(e *guard.RejectedError) []byte {
	if e.Mark.Token == guard.NoToken {
		return p.body
	}
	parts := p.parts
	parts.Token = e.Claim.Token.String()
	parts.Mark = e.Mark.Token.String()
	parts.Floor = e.Mark.Floor
	return render(parts)
}

func render(parts problemBody) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(parts); err != nil {
		panic("httpfence: " + err.Error()) // strings, an int and a bool cannot fail
	}
	return b.Bytes()
}
