package s3test_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/fencepost-go/fencepost/s3fence/s3test"
)

const bucket = "bucket"

// client sends plain, unsigned requests.
type client struct {
	t      testing.TB
	server *s3test.Server
}

func newClient(t testing.TB, opts s3test.Options) *client {
	t.Helper()
	opts.Buckets = append(opts.Buckets, bucket)
	server := s3test.New(&opts)
	t.Cleanup(server.Close)
	return &client{t, server}
}

type reply struct {
	status int
	header http.Header
	body   string
}

// try sends a request; path follows the bucket, pairs are headers.
func (c *client) try(method, path, body string, pairs ...string) (*reply, error) {
	r, err := http.NewRequest(method, c.server.URL()+"/"+bucket+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	for i := 0; i+1 < len(pairs); i += 2 {
		r.Header.Set(pairs[i], pairs[i+1])
	}
	answer, err := c.server.Client().Do(r)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	got, err := io.ReadAll(answer.Body)
	return &reply{answer.StatusCode, answer.Header, string(got)}, err
}

// do is try with a status, and a part of the body, that must come back.
func (c *client) do(status int, part, method, path, body string, pairs ...string) *reply {
	c.t.Helper()
	r, err := c.try(method, path, body, pairs...)
	if err != nil {
		c.t.Fatal(err)
	}
	if r.status != status || !strings.Contains(r.body, part) {
		c.t.Fatalf("%s %s: %d %q, want %d and %q", method, path, r.status, r.body, status, part)
	}
	return r
}

func (c *client) put(key, body string, pairs ...string) string {
	c.t.Helper()
	return c.do(200, "", http.MethodPut, "/"+key, body, pairs...).header.Get("Etag")
}

// holds says whether the object has the body; an empty body is none at all.
func (c *client) holds(key, body string) {
	c.t.Helper()
	o, ok := c.server.Object(bucket, key)
	if string(o.Body) != body || ok != (body != "") {
		c.t.Fatalf("%s is there: %v, and holds %q, want %q", key, ok, o.Body, body)
	}
}
