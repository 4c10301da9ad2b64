package httpfence

import (
	"encoding/json"
	"maps"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/fencepost-go/fencepost/guard"
)

// TestTablesOfReasons: FORMAT.md, doc.go and openapi.json have each reason with the status
// that the fence sends for it, and no other.
func TestTablesOfReasons(t *testing.T) {
	t.Parallel()
	sent := map[string]int{}
	for _, r := range rows {
		sent[string(r.reason)] = r.status
	}
	if len(sent) != len(guard.Reasons())+1 {
		t.Errorf("%d reasons have a status, guard has %d and the other", len(sent), len(guard.Reasons()))
	}
	read := func(name string) string {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	for from, named := range map[string]map[string]int{
		"FORMAT.md":                   inText(t, read("FORMAT.md"), "(?m)^\\| (`[a-z_]+`) \\| (\\d{3})\\b"),
		"doc.go":                      inText(t, read("doc.go"), `(?m)^//\t([a-z_]+(?:, [a-z_]+)*) +(\d{3})\b`),
		"the answers of openapi.json": inDescription(t, read("openapi.json")),
	} {
		for reason, status := range sent {
			if named[reason] != status {
				t.Errorf("%s has %d for %s, the fence sends %d", from, named[reason], reason, status)
			}
			delete(named, reason)
		}
		if len(named) > 0 {
			t.Errorf("%s has reasons that are none: %v", from, named)
		}
	}
}

// inText returns the statuses by reason that a pattern finds in a text: its first group is one
// or more reasons, its second the status.
func inText(t *testing.T, text, pattern string) map[string]int {
	t.Helper()
	named := map[string]int{}
	for _, line := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
		status, err := strconv.Atoi(line[2])
		if err != nil {
			t.Fatal(err)
		}
		for reason := range strings.SplitSeq(line[1], ", ") {
			reason = strings.Trim(reason, "`")
			if _, twice := named[reason]; twice {
				t.Errorf("%s is there twice: %s", reason, line[0])
			}
			named[reason] = status
		}
	}
	return named
}

// inDescription returns the statuses by reason of the responses of an OpenAPI document. A
// response has the name of its status, and the problems that it lists say the same status.
func inDescription(t *testing.T, text string) map[string]int {
	t.Helper()
	type reference struct {
		Ref string `json:"$ref"`
	}
	var doc struct {
		Components struct {
			Responses map[string]struct {
				Content map[string]struct {
					Schema struct {
						reference
						OneOf []reference
					}
				}
			}
			Schemas map[string]struct {
				Description string
				Properties  struct {
					Status struct{ Const int }
					Type   struct{ Const string }
				}
			}
		}
	}
	if err := json.Unmarshal([]byte(text), &doc); err != nil {
		t.Fatal(err)
	}
	statuses := map[string]int{}
	for status := 400; status < 600; status++ {
		statuses["Fencing"+strings.ReplaceAll(http.StatusText(status), " ", "")] = status
	}
	named, problems := map[string]int{}, maps.Clone(doc.Components.Schemas)
	for name, response := range doc.Components.Responses {
		schema := response.Content["application/problem+json"].Schema
		listed := schema.OneOf
		if schema.Ref != "" {
			listed = append(listed, schema.reference)
		}
		for _, to := range listed {
			at := strings.TrimPrefix(to.Ref, "#/components/schemas/")
			problem := doc.Components.Schemas[at]
			reason, _ := reasonOfType(problem.Properties.Type.Const)
			if problem.Properties.Status.Const != statuses[name] {
				t.Errorf("%s has the status %d and is a %s", at, problem.Properties.Status.Const, name)
			}
			if want := rowOf(reason).title + "."; problem.Description != want {
				t.Errorf("%s is described as %q, want %q", at, problem.Description, want)
			}
			named[string(reason)] = statuses[name]
			delete(problems, at)
		}
	}
	for at, problem := range problems {
		if problem.Properties.Type.Const != "" {
			t.Errorf("%s is in no response", at)
		}
	}
	return named
}
