// Package openapi is an example of a service's OpenAPI description that
// includes Fencepost's (service.yaml), and the test that validates both and
// checks real responses against them.
package openapi
