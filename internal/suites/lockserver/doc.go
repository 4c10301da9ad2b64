// Package lockserver tests lockclient/lockhttp with tools that the root module
// does not depend on: its description with an OpenAPI validator, its page in
// headless Chromium, and workers in Python and Node.
package lockserver
