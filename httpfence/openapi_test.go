package httpfence

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/fencepost-go/fencepost/guard"
)

var update = flag.Bool("update", false, "write openapi.json anew from the status table")

type object = map[string]any

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

// describe builds the document from the table that the code uses for its
// answers.
func describe(t *testing.T) []byte {
	t.Helper()
	text := func(description string, more object) object {
		o := object{"type": "string", "description": description}
		for k, v := range more {
			o[k] = v
		}
		return o
	}
	token := object{"type": "string", "pattern": "^[1-9][0-9]{0,18}$", "maxLength": 19, "examples": []string{"11"}}
	schemas := object{
		"FencingToken": token,
		"FencingProblem": object{
			"type": "object", "description": "A problem details object (RFC 9457).",
			"required": []string{"type", "title", "status", "detail"},
			"properties": object{
				"type":    text("Identifies the outcome, whatever the status.", object{"format": "uri"}),
				"title":   text("Says the outcome, for people.", nil),
				"status":  object{"type": "integer", "minimum": 400, "maximum": 599},
				"detail":  text("Says what to do, for people.", nil),
				"token":   object{"$ref": "#/components/schemas/FencingToken", "description": "The token offered; only if the service discloses marks."},
				"mark":    object{"$ref": "#/components/schemas/FencingToken", "description": "The resource's highest token; only if the service discloses marks."},
				"floor":   object{"type": "boolean", "description": "Whether the mark is the floor of a store that has retired the resource's own."},
				"claimed": text("The resource that the claim is for; only of a misdirected claim.", nil),
				"guarded": text("The resource that the route guards; only of a misdirected claim.", nil),
			},
		},
	}
	responses, byStatus := object{}, map[int][]object{}
	titles := map[int][]string{}
	for _, o := range outcomes {
		schemas[schemaName(o.reason)] = object{
			"description": o.title + ".",
			"allOf":       []object{{"$ref": "#/components/schemas/FencingProblem"}},
			"properties":  object{"type": object{"const": typeURI(o.reason)}, "status": object{"const": o.status}},
		}
		byStatus[o.status] = append(byStatus[o.status], object{"$ref": "#/components/schemas/" + schemaName(o.reason)})
		titles[o.status] = append(titles[o.status], o.title)
	}
	for status, refs := range byStatus {
		name, ok := statusNames[status]
		if !ok {
			t.Fatalf("the status %d has no name", status)
		}
		headers := object{
			"Cache-Control": object{"required": true, "schema": object{"type": "string", "const": "no-store"}},
			ReasonHeader:    object{"required": true, "description": "The end of the problem's type.", "schema": object{"type": "string", "pattern": "^[a-z_]+$"}},
		}
		if status == 503 {
			headers["Retry-After"] = object{"required": true, "description": "Seconds.", "schema": object{"type": "string", "pattern": "^[0-9]+$"}}
		}
		schema := refs[0]
		if len(refs) > 1 {
			schema = object{"oneOf": refs}
		}
		responses["Fencing"+name] = object{
			"description": strings.Join(titles[status], "; ") + ".", "headers": headers,
			"content": object{problemType: object{"schema": schema}},
		}
	}
	doc := object{
		"openapi": "3.1.0",
		"info": object{
			"title": "Fencepost", "version": "1",
			"description": "Header fields, problems and responses of operations that a fencing token guards. Components only.",
		},
		"components": object{
			"parameters": object{
				"FencingToken": object{"name": TokenHeader, "in": "header", "required": true, "schema": object{"$ref": "#/components/schemas/FencingToken"},
					"description": "The fencing token of the caller's lease: exactly one field line."},
				"FencingLease": object{"name": LeaseHeader, "in": "header", "required": true,
					"schema":      object{"type": "string", "minLength": 1, "maxLength": guard.MaxLeaseIDLen},
					"description": "The ID of the caller's lease: exactly one field line."},
				"FencingResource": object{"name": ResourceHeader, "in": "header", "required": true,
					"schema":      object{"type": "string", "minLength": 1, "maxLength": 3 * guard.MaxResourceLen, "pattern": "^([A-Za-z0-9._~:/@!$&'()*+;=-]|%[0-9A-Fa-f]{2})+$"},
					"description": "The name of the resource that the caller's lease is for, percent-encoded: exactly one field line."},
			},
			"schemas": schemas, "responses": responses,
		},
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(doc); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestOpenAPIIsTheTable: the file describes the code's answers. An OpenAPI
// validator checks it in examples/thirdparty/openapi.
func TestOpenAPIIsTheTable(t *testing.T) {
	want := describe(t)
	if *update {
		if err := os.WriteFile("openapi.json", want, 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	if !bytes.Equal(openAPI(t), want) {
		t.Error("openapi.json is not what the table says; run go test ./httpfence -run OpenAPI -update and look at the difference")
	}
}

func openAPI(t *testing.T) []byte {
	t.Helper()
	b, err := os.ReadFile("openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestOpenAPIDescribesTheAnswers compares real answers with the document: each
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
