package httpfence

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/fencepost-go/fencepost/guard"
)

// statusNames name the responses; a status of the table without a name fails.
var statusNames = map[int]string{
	400: "BadRequest", 404: "NotFound", 409: "Conflict", 412: "PreconditionFailed",
	428: "PreconditionRequired", 500: "InternalServerError", 503: "ServiceUnavailable",
}

// schemaName is "FencingMarkAhead" for mark_ahead.
func schemaName(reason guard.Reason) string {
	name := "Fencing"
	for _, part := range strings.Split(string(reason), "_") {
		name += strings.ToUpper(part[:1]) + part[1:]
	}
	return name + "Problem"
}

func openAPI(t *testing.T) []byte {
	t.Helper()
	b, err := os.ReadFile("openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestOpenAPIDescribesTheAnswers: openapi.json describes the responses of the status
// table. An OpenAPI validator checks it in examples/thirdparty/openapi. It compares real responses with the document: each
// has the response of its status, and the type and status of one of its
// problems.
func TestOpenAPIDescribesTheAnswers(t *testing.T) {
	var doc struct {
		Components struct {
			Schemas map[string]struct {
				Required   []string
				Properties map[string]struct{ Const any }
			}
			Responses map[string]struct {
				Headers map[string]any
				Content map[string]struct{ Schema any }
			}
			Parameters map[string]struct{ Name string }
		}
	}
	if err := json.Unmarshal(openAPI(t), &doc); err != nil {
		t.Fatal(err)
	}
	c := doc.Components
	if c.Parameters["FencingToken"].Name != TokenHeader || c.Parameters["FencingLease"].Name != LeaseHeader || c.Parameters["FencingResource"].Name != ResourceHeader {
		t.Errorf("parameters %+v", c.Parameters)
	}
	fence := newFence(newStore(), literal("r"), nil)
	for _, reason := range append(guard.Reasons(), guard.ReasonOther) {
		err := reason.Err()
		if err == nil {
			err = errors.New("x")
		}
		w := httptest.NewRecorder()
		fence.Reject(w, newRequest("", "5", ""), err)
		a := read(t, w.Result())
		schema := c.Schemas[schemaName(reason)]
		if schema.Properties["type"].Const != a.problem["type"] || schema.Properties["status"].Const != a.problem["status"] {
			t.Errorf("%s: %+v does not describe %s", reason, schema, a.body)
		}
		for _, member := range c.Schemas["FencingProblem"].Required {
			if a.problem[member] == nil {
				t.Errorf("%s: no %s in %s", reason, member, a.body)
			}
		}
		response := c.Responses["Fencing"+statusNames[a.status]]
		if !strings.Contains(fmt.Sprint(response.Content[problemType].Schema), schemaName(reason)) {
			t.Errorf("%s: not in the response for %d: %+v", reason, a.status, response)
		}
		for name := range response.Headers {
			if a.header.Get(name) == "" {
				t.Errorf("%s: no %s", reason, name)
			}
		}
		if len(response.Headers) == 0 || a.header.Get("Retry-After") != "" && response.Headers["Retry-After"] == nil {
			t.Errorf("%s: header %v is not described", reason, a.header)
		}
	}
}
