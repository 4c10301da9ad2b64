// Package lockserver tests lockclient/lockhttp with what the root module does
// not depend on: its description by a validator of OpenAPI, its page in headless
// Chromium, and workers in Python and Node.
package lockserver
