package s3fence_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

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

// sendFunc sends a request on to the store.
type sendFunc func(*http.Request) (*http.Response, error)

// via is a client on whose way to the store f stands. The store carries out what f sends on,
// whatever becomes of the caller, which does not see it sent.
func via(client *s3.Client, f func(r *http.Request, send sendFunc) (*http.Response, error)) *s3.Client {
	return s3.New(client.Options(), func(o *s3.Options) {
		next := o.HTTPClient
		o.HTTPClient = httpFunc(func(r *http.Request) (*http.Response, error) {
			return f(r, func(r *http.Request) (*http.Response, error) { return next.Do(r.Clone(context.Background())) })
		})
	})
}

// staticPage is a page of a front, as a server of static files responds with it.
func staticPage(r *http.Request, age time.Duration) *http.Response {
	text := "<html>maintenance</html>"
	out := response(r, http.StatusOK, text)
	out.ContentLength = int64(len(text))
	out.Header.Set("Etag", `"68f1c2a0-18"`)
	out.Header.Set("Content-Type", "text/html")
	out.Header.Set("Date", time.Now().UTC().Format(http.TimeFormat))
	out.Header.Set("Last-Modified", time.Now().Add(-age).UTC().Format(http.TimeFormat))
	return out
}

// writes of the object itself, and of a pointer's data.
func putOf(r *http.Request, part string) bool {
	return r.Method == http.MethodPut && strings.Contains(r.URL.Path, part)
}

// A 2xx of something in between is no success, though it has a strong ETag: one with a body,
// also where the head does not say so, and one that is not a 200.
func TestP5PageIsNotWritten(t *testing.T) {
	t.Parallel()
	page := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Etag", `"page"`)
		_, _ = io.WriteString(w, "<html>down")
		w.(http.Flusher).Flush() // so it has no length
		_, _ = io.WriteString(w, "</html>")
	})
	chunked := httptest.NewServer(page)
	t.Cleanup(chunked.Close)
	h2 := httptest.NewUnstartedServer(page)
	h2.EnableHTTP2 = true
	h2.StartTLS()
	t.Cleanup(h2.Close)
	over := func(front *httptest.Server) sendFunc {
		return func(r *http.Request) (*http.Response, error) {
			r = r.Clone(r.Context())
			r.URL.Scheme, r.URL.Host, _ = strings.Cut(front.URL, "://")
			return front.Client().Transport.RoundTrip(r)
		}
	}
	for name, front := range map[string]sendFunc{
		"in chunks":   over(chunked),
		"over HTTP/2": over(h2),
		"an empty 202": func(r *http.Request) (*http.Response, error) {
			_, _ = io.Copy(io.Discard, r.Body)
			out := response(r, http.StatusAccepted, "")
			out.Header.Set("Etag", `"e"`)
			return out, nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			eachMode(t, func(t *testing.T, mode s3fence.Mode) {
				server, b, o := setup(t, mode, 0)
				put(t, o, claim(4, "z"), "before")
				for _, part := range []string{key, "/data/"} {
					if part == "/data/" && mode != s3fence.Pointer {
						continue
					}
					seen := 0
					client := via(newClient(server), func(r *http.Request, send sendFunc) (*http.Response, error) {
						if putOf(r, part) {
							seen++
							out, err := front(r)
							if err == nil && name == "over HTTP/2" && out.ProtoMajor != 2 {
								t.Errorf("the page came over %s", out.Proto)
							}
							return out, err
						}
						return send(r)
					})
					err := objects(t, b.On(client, bucketName), mode, nil).Put(t.Context(), claim(5, "a"), key, strings.NewReader("new"), nil)
					want := guard.ReasonOutcomeUnknown
					if part == "/data/" { // which no pointer names, so nothing was written
						want = guard.ReasonUnavailable
					}
					if refused(t, err, want); seen == 0 {
						t.Error("no PUT was sent")
					}
				}
				if text, mark := content(t, o, key); text != "before" || mark.Token != 4 {
					t.Errorf("the object is %q at %d", text, mark.Token)
				}
			})
		})
	}
}

// The response to a write is lost, or hidden from it, and what the next read then shows is a
// page: whether it was written is unknown, whatever the page's age, and the data that a pointer
// may name stays. A single page is not believed: the object is read once more, and the write found.
func TestP6PageAfterALostWrite(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		age    time.Duration
		after  func(r *http.Request, send sendFunc) (*http.Response, error) // the response to a write that was carried out
		reason guard.Reason
	}{
		"lost": {0, nil, guard.ReasonOutcomeUnknown}, "lost, and the page is old": {24 * time.Hour, nil, guard.ReasonOutcomeUnknown},
		// These say that it was not processed, which a hidden first copy makes untrue; the
		// page then counts as another program's object.
		"sent twice": {0, func(r *http.Request, send sendFunc) (*http.Response, error) { return send(r) }, guard.ReasonUnfenced},
		"busy": {0, func(r *http.Request, _ sendFunc) (*http.Response, error) {
			return response(r, http.StatusServiceUnavailable, "<Error><Code>SlowDown</Code></Error>"), nil
		}, guard.ReasonUnfenced},
	} {
		for _, pages := range []int32{1, 2} {
			eachMode(t, func(t *testing.T, mode s3fence.Mode) {
				server, b, o := setup(t, mode, 0)
				put(t, o, claim(4, "z"), "before")
				var sent atomic.Bool
				var paged atomic.Int32
				client := via(newClient(server), func(r *http.Request, send sendFunc) (*http.Response, error) {
					switch {
					case r.Method == http.MethodGet && sent.Load() && paged.Add(1) <= pages:
						return staticPage(r, c.age), nil
					case !putOf(r, key) || sent.Swap(true):
						return send(r)
					}
					body, err := io.ReadAll(r.Body)
					must(t, err)
					r.Body = io.NopCloser(bytes.NewReader(body))
					out, err := send(r)
					must(t, err)
					out.Body.Close()
					if c.after == nil {
						return nil, errors.New("the response is lost")
					}
					r.Body = io.NopCloser(bytes.NewReader(body))
					return c.after(r, send)
				})
				reason := c.reason
				if pages == 1 {
					reason = guard.ReasonNone
				}
				err := objects(t, b.On(client, bucketName), mode, nil).Put(t.Context(), claim(5, "a"), key, strings.NewReader("mine"), nil)
				if got := guard.ReasonOf(err); got != reason {
					t.Errorf("%s, %d pages: %v, want %q", name, pages, err, reason)
				}
				if reason == guard.ReasonUnfenced && !strings.Contains(err.Error(), `it is "text/html" of `) {
					t.Errorf("it does not say what was seen: %v", err)
				}
				want(t, objects(t, b.On(newClient(server), bucketName), mode, nil), "mine", guard.Mark{Token: 5, LeaseID: "a"})
			})
		}
	}
}

// A foreign write that another program began long ago, as a multipart upload, or a clock in
// between that is ahead, makes what replaced a write look older than it: unknown is said.
func TestP6UnfencedIsNeverOlder(t *testing.T) {
	t.Parallel()
	for header, at := range map[string]time.Duration{"Date": time.Minute, "Last-Modified": -time.Minute} {
		server, b, o := setup(t, s3fence.Sealed, 0)
		put(t, o, claim(4, "z"), "before")
		var sent atomic.Bool
		client := via(newClient(server), func(r *http.Request, send sendFunc) (*http.Response, error) {
			out, err := send(r)
			must(t, err)
			if putOf(r, key) && !sent.Swap(true) {
				out.Body.Close()
				bypass(t, server, key, []byte("foreign"), nil)
				return nil, errors.New("the response is lost")
			}
			out.Header.Set(header, time.Now().Add(at).UTC().Format(http.TimeFormat))
			return out, nil
		})
		refused(t, objects(t, b.On(client, bucketName), s3fence.Sealed, nil).Put(t.Context(), claim(5, "a"), key, strings.NewReader("mine"), nil), guard.ReasonOutcomeUnknown)
		if n := len(server.History(bucketName, key)); n != 3 {
			t.Errorf("%s: %d writes took effect, want 3", header, n)
		}
	}
}

// A proxy's clock that is ahead makes raises look older than the write that they follow. The
// pointer still names its data, so that stays, whatever the writer is told.
func TestRaisedPointerKeepsItsData(t *testing.T) {
	t.Parallel()
	server, b, o := setup(t, s3fence.Pointer, 0)
	put(t, o, claim(4, "z"), "before")
	var sent atomic.Bool
	client := via(newClient(server), func(r *http.Request, send sendFunc) (*http.Response, error) {
		out, err := send(r)
		must(t, err)
		out.Header.Set("Date", time.Now().Add(time.Hour).UTC().Format(http.TimeFormat))
		if putOf(r, key) && !sent.Swap(true) {
			for token := guard.Token(10); token < 10+34; token++ { // more than a list holds
				must(t, o.Raise(t.Context(), claim(token, "r"), key))
			}
			out.Body.Close()
			return nil, errors.New("the response is lost")
		}
		return out, nil
	})
	if err := objects(t, b.On(client, bucketName), s3fence.Pointer, nil).Put(t.Context(), claim(5, "a"), key, strings.NewReader("mine"), nil); err == nil {
		t.Error("it is called written")
	}
	want(t, o, "mine", guard.Mark{Token: 43, LeaseID: "r"})
}

// ownHTTP is a client that sends each write by an HTTP client of its own.
type ownHTTP struct {
	*s3.Client
	do httpFunc
}

func (o ownHTTP) PutObject(ctx context.Context, in *s3.PutObjectInput, opts ...func(*s3.Options)) (*s3.PutObjectOutput, error) {
	return o.Client.PutObject(ctx, in, append(opts, func(s *s3.Options) { s.HTTPClient = o.do })...)
}

// A client whose wrapper sends by an HTTP client of its own is not seen to send. What it has
// sent is not called unsent, whether that client is net/http's or leaves no trace at all.
func TestP6SentUnseen(t *testing.T) {
	t.Parallel()
	eachMode(t, func(t *testing.T, mode s3fence.Mode) {
		for _, traced := range []bool{true, false} {
			server, b, o := setup(t, mode, 0)
			put(t, o, claim(4, "z"), "before")
			var sent atomic.Bool
			client := ownHTTP{newClient(server), func(r *http.Request) (*http.Response, error) {
				if !traced {
					r = r.Clone(context.Background())
				}
				out, err := server.HTTPClient().Do(r)
				if err == nil && putOf(r, key) {
					sent.Store(true)
					out.Body.Close()
					return nil, errors.New("the response is lost")
				}
				return out, err
			}}
			err := objects(t, b.On(client, bucketName), mode, nil).Put(t.Context(), claim(5, "a"), key, strings.NewReader("mine"), nil)
			if err != nil || !sent.Load() {
				t.Errorf("traced %v: a write that a read shows to be stored: %v", traced, err)
			}
			want(t, o, "mine", guard.Mark{Token: 5, LeaseID: "a"})
		}
	})
}
