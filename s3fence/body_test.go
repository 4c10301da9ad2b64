package s3fence_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/s3fence"
	"github.com/fencepost-go/fencepost/s3fence/s3test"
)

// Bodies of every length up to the longest, written, raised and read; one byte more
// is refused before anything is sent, and what another writer stored beyond that by its
// length.
func TestBodyLengths(t *testing.T) {
	t.Parallel()
	const longest = 100_000
	eachMode(t, func(t *testing.T, mode s3fence.Mode) {
		server := newServer(t, &s3test.Options{ETags: s3test.ETagOpaque})
		o := objects(t, open(t, server, &s3fence.Options{MaxBody: longest}), mode, nil)
		if mode != s3fence.Pointer {
			invalid(t, o.Put(t.Context(), claim(5, "a"), key, bytes.NewReader(bytesOf(longest+1)), nil), "body")
		}
		if n := server.Count(); n != 0 {
			t.Errorf("%d requests were sent", n)
		}
		token := guard.Token(0)
		for _, n := range []int{1, 1277, 4096, longest, 0} {
			token++
			put(t, o, claim(token, "a"), string(bytesOf(n)))
			o.Bucket().Forget()
			token++
			must(t, o.Raise(t.Context(), claim(token, "b"), key))
			want(t, o, string(bytesOf(n)), guard.Mark{Token: token, LeaseID: "b"})
		}
		if mode == s3fence.Pointer {
			return
		}
		put(t, objects(t, open(t, server, nil), mode, nil), claim(token, "b"), string(bytesOf(2*longest)))
		_, err := o.Get(t.Context(), key)
		if invalid(t, err, "body"); err != nil && !strings.Contains(err.Error(), "Options.MaxBody, 100000") {
			t.Error(err)
		}
	})
}

func pointers(t *testing.T) (*s3test.Server, *s3fence.Pointers) {
	t.Helper()
	server := newServer(t, nil)
	return server, objects(t, open(t, server, nil), s3fence.Pointer, nil).Pointers()
}

// A body is written whole or not at all: after a Put that failed, whenever it did, the
// same call with the same reader writes all of it, from where the reader stood.
func TestRetriedBodyIsWhole(t *testing.T) {
	t.Parallel()
	const text = "a body"
	data := s3test.Rule{Ops: puts, Prefix: ".fencepost/data/"}
	for name, c := range map[string]struct {
		rule  s3test.Rule
		fault s3test.Fault
		claim guard.Claim
		ended bool
	}{
		"denied": {s3test.Rule{}, s3test.Respond(403), claim(5, "a"), false}, "data denied": {data, s3test.Respond(403), claim(5, "a"), false},
		"pointer denied": {s3test.Rule{Ops: puts, Key: key}, s3test.Respond(403), claim(5, "a"), false},
		"data lost":      {data, s3test.LoseRequest(), claim(5, "a"), false},
		"stale":          {s3test.Rule{}, s3test.Fault{}, claim(3, "a"), false}, "context ended": {s3test.Rule{}, s3test.Fault{}, claim(5, "a"), true},
	} {
		server, o := pointers(t)
		for _, from := range []int64{0, 6} {
			path := filepath.Join(t.TempDir(), "body")
			must(t, os.WriteFile(path, []byte("before"[:from]+text), 0o600))
			file, err := os.Open(path)
			must(t, err)
			defer file.Close()
			for _, body := range []io.ReadSeeker{file, strings.NewReader("before"[:from] + text), bytes.NewReader([]byte("before"[:from] + text))} {
				if _, err := body.Seek(from, io.SeekStart); err != nil {
					t.Fatal(err)
				}
				must(t, o.InsecureDelete(t.Context(), key))
				must(t, o.Put(t.Context(), claim(4, "z"), key, strings.NewReader("before"), nil))
				ctx, cancel := context.WithCancel(t.Context())
				if c.ended {
					cancel()
				}
				c.rule.Fault = c.fault
				in := server.Inject(c.rule)
				if err := o.Put(ctx, c.claim, key, body, nil); err == nil {
					t.Fatalf("%s: the first try did not fail", name)
				}
				in.Remove()
				cancel()
				if err := o.Put(t.Context(), claim(6, "b"), key, body, nil); err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				if got, _ := content(t, s3fence.HandleOf(o), key); got != text {
					t.Errorf("%s, from %d on: a retry stored %q", name, from, got)
				}
			}
		}
	}
}

// pipe is an io.ReadSeeker only by its type, like os.Stdin.
type pipe struct{ io.Reader }

func (pipe) Seek(int64, int) (int64, error) { return 0, os.ErrInvalid }

// growing reads as one byte more than it says, as a file to which somebody writes.
type growing struct{ *strings.Reader }

func (g growing) Seek(offset int64, whence int) (int64, error) {
	at, err := g.Reader.Seek(offset, whence)
	if whence == io.SeekEnd {
		at--
	}
	return at, err
}

// failing breaks in the middle.
type failing struct {
	io.Reader
	io.Seeker
}

// What is not a body that can be sent whole is refused, and nothing is stored; what was
// empty from the start is stored as such.
func TestBadBodies(t *testing.T) {
	t.Parallel()
	server, o := pointers(t)
	used := strings.NewReader("x")
	_, _ = io.Copy(io.Discard, used)
	for name, body := range map[string]io.ReadSeeker{"used up": used, "a pipe": pipe{used}} {
		err := o.Put(t.Context(), claim(5, "a"), key, body, nil)
		if invalid(t, err, "body"); len(server.Objects(bucketName)) != 0 {
			t.Errorf("%s: something was stored", name)
		}
	}
	broken := errors.New("the disk is gone")
	short := strings.NewReader("a body")
	err := o.Put(t.Context(), claim(5, "a"), key, failing{io.MultiReader(strings.NewReader("a"), iotest.ErrReader(broken)), short}, nil)
	if !errors.Is(err, broken) || errors.Is(err, guard.ErrUnavailable) {
		t.Errorf("the reader's own error is %v", err)
	}
	if err := o.Put(t.Context(), claim(5, "a"), key, growing{strings.NewReader("a body")}, nil); err == nil {
		t.Error("a body that grows is stored in part")
	}
	if left := server.Objects(bucketName); len(left) != 0 {
		t.Errorf("%d objects are stored", len(left))
	}
	for i, body := range []io.ReadSeeker{nil, strings.NewReader(""), bytes.NewReader(nil)} {
		k := fmt.Sprint("empty/", i)
		must(t, o.Put(t.Context(), claim(5, "a"), k, body, nil))
		if got, _ := content(t, s3fence.HandleOf(o), k); got != "" {
			t.Errorf("%d: %q", i, got)
		}
	}
}

// early loses the response to the first sending of data, and refuses the second before
// it reads the body, as a store does to a client that waits for 100 Continue.
type early struct {
	*http.Client
	sent  int
	reads bool   // it reads the body first
	lost  func() // called when the response is lost
}

func (e *early) Do(r *http.Request) (*http.Response, error) {
	if r.Method != http.MethodPut || !strings.Contains(r.URL.Path, ".fencepost/data/") {
		return e.Client.Do(r)
	}
	if e.sent++; e.sent == 1 {
		resp, err := e.Client.Do(r)
		if err == nil {
			resp.Body.Close()
			err = io.ErrUnexpectedEOF
			e.lost()
		}
		return nil, errors.Join(errors.New("the answer was lost"), err)
	}
	if e.reads {
		io.Copy(io.Discard, r.Body)
	}
	r.Body.Close()
	return response(r, http.StatusPreconditionFailed, "<Error><Code>PreconditionFailed</Code></Error>"), nil
}

// changing is a body that another program changes.
type changing struct {
	*bytes.Reader
	changed bool
}

func (c *changing) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	if c.changed {
		clear(p[:n])
	}
	return n, err
}

// TestLostAnswerOfLongData: data whose response was lost is found to be stored although
// the store did not read it again. If the body has changed by then nothing tells which
// of the two is stored, and no pointer says either.
func TestLostAnswerOfLongData(t *testing.T) {
	t.Parallel()
	for _, changes := range []bool{false, true} {
		server := newServer(t, nil)
		body := &changing{Reader: bytes.NewReader(bytesOf(4 << 20))}
		client := &early{Client: server.HTTPClient(), reads: changes, lost: func() { body.changed = changes }}
		b := open(t, server, nil).On(newClient(server, func(o *s3.Options) { o.HTTPClient = client }), bucketName)
		o := objects(t, b, s3fence.Pointer, nil)
		err := o.Pointers().Put(t.Context(), claim(5, "a"), key, body, nil)
		if client.sent != 2 {
			t.Fatalf("%d sendings", client.sent)
		}
		if changes {
			if invalid(t, err, "body"); len(server.Objects(bucketName)) != 0 {
				t.Errorf("%q are left", dataKeys(server))
			}
			continue
		}
		must(t, err)
		if got, _ := content(t, o, key); got != string(bytesOf(4<<20)) {
			t.Errorf("read %d bytes", len(got))
		}
	}
}
