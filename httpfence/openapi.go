package httpfence

import (
	_ "embed"
	"slices"
)

//go:embed openapi.json
var openAPI []byte

// OpenAPI returns the description of what this package adds to an operation,
// as an OpenAPI 3.1 document with components only: the header fields as
// parameters, the problems as schemas, and one response for each status. It is
// the file openapi.json beside this package's source; copy it next to your own
// description and refer to it:
//
//	post:
//	  parameters:
//	    - $ref: "openapi.json#/components/parameters/FencingToken"
//	    - $ref: "openapi.json#/components/parameters/FencingLease"
//	  responses:
//	    "412": { $ref: "openapi.json#/components/responses/FencingPreconditionFailed" }
//	    "428": { $ref: "openapi.json#/components/responses/FencingPreconditionRequired" }
//
// It describes the defaults: a service that changes header names or statuses
// by [Options] has to change its copy.
func OpenAPI() []byte { return slices.Clone(openAPI) }
