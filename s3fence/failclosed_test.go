package s3fence_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/s3fence"
	"github.com/fencepost-go/fencepost/s3fence/s3test"
)

// A store that responds with 416 to a suffix range longer than the object, as rclone
// and gofakes3 do: an object of any length is not taken for absent.
func TestShortRangesAreNotAbsence(t *testing.T) {
	t.Parallel()
	eachMode(t, func(t *testing.T, mode s3fence.Mode) {
		for _, size := range []int{0, 10, 4096, 10_000} {
			server, b, o := setup(t, mode, 0)
			server.Inject(s3test.Rule{Ops: gets, Fault: s3test.Fault{ShortRanges: true}})
			put(t, o, claim(5, "a"), string(bytesOf(size)))
			b.Forget()
			if m, err := o.Mark(t.Context(), key); err != nil || m != (guard.Mark{Token: 5, LeaseID: "a"}) {
				t.Errorf("%d bytes: the mark is %+v, %v", size, m, err)
			}
			b.Forget()
			refused(t, o.Put(t.Context(), claim(4, "z"), key, strings.NewReader("old"), nil), guard.ReasonStale)
			want(t, o, string(bytesOf(size)), guard.Mark{Token: 5, LeaseID: "a"})
		}
	})
}

// The same on a correct store: an empty foreign object is adopted between the two
// requests that reading an empty object takes.
func TestAdoptedBetweenTwoReads(t *testing.T) {
	t.Parallel()
	eachBody(t, func(t *testing.T, mode s3fence.Mode) {
		server, b, o := setup(t, mode, 0)
		other := objects(t, b.On(newClient(server), bucketName), mode, nil)
		bypass(t, server, key, nil, nil)
		adopted := false
		server.Inject(s3test.Rule{
			Ops: gets, Key: key, Times: 1,
			Fault: s3test.Fault{After: func(*s3test.Request, int) {
				if err := other.Adopt(context.Background(), claim(5, "a"), key); err != nil {
					t.Error(err)
				}
				adopted = true
			}},
		})
		m, err := o.Mark(t.Context(), key)
		if !adopted {
			t.Fatal("the fault did not fire")
		}
		if m != (guard.Mark{Token: 5, LeaseID: "a"}) && !errors.Is(err, guard.ErrUnfenced) {
			t.Errorf("the mark is %+v, %v", m, err)
		}
	})
}

// retrying is an HTTP client that retries on its own: the first try of the first PUT of
// the key is applied and its response lost, and this is what the second one meets.
func retrying(server *s3test.Server, second httpFunc) *s3.Client {
	done := false
	return newClient(server, func(o *s3.Options) {
		o.HTTPClient = httpFunc(func(r *http.Request) (*http.Response, error) {
			answer, err := server.HTTPClient().Do(r)
			if done || err != nil || r.Method != http.MethodPut || !strings.HasSuffix(r.URL.Path, key) {
				return answer, err
			}
			done = true
			answer.Body.Close()
			return second(r)
		})
	})
}

var refusedConnection = &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("connection refused")}

// A refused connection says nothing about the attempts before it, and neither does a
// refusal.
func TestDialErrorIsNotUnsent(t *testing.T) {
	t.Parallel()
	second := func(*http.Request) (*http.Response, error) {
		return nil, fmt.Errorf("giving up after 2 attempts: %w", refusedConnection)
	}
	eachMode(t, func(t *testing.T, mode s3fence.Mode) {
		server, b, o := setup(t, mode, 0)
		put(t, o, claim(4, "z"), "before")
		put(t, objects(t, b.On(retrying(server, second), bucketName), mode, nil), claim(5, "a"), "mine")
		want(t, o, "mine", guard.Mark{Token: 5, LeaseID: "a"})
		denied := retrying(server, func(r *http.Request) (*http.Response, error) {
			again, err := http.NewRequestWithContext(r.Context(), http.MethodGet, r.URL.String(), nil) // any that is sent
			must(t, err)
			if answer, err := server.HTTPClient().Do(again); err == nil {
				answer.Body.Close()
			}
			return response(r, http.StatusForbidden, "<Error><Code>AccessDenied</Code></Error>"), nil
		})
		put(t, objects(t, b.On(denied, bucketName), mode, nil), claim(5, "a"), "and this")
		want(t, o, "and this", guard.Mark{Token: 5, LeaseID: "a"})
		// And when nothing can be read afterwards, the outcome is unknown, and no
		// data is deleted.
		mine := objects(t, b.On(retrying(server, second), bucketName), mode, nil)
		mine.Bucket().CopyCache(b)
		once := false
		server.Inject(s3test.Rule{Key: key, Match: func(r *s3test.Request) bool {
			first := !once && r.Op == s3test.PutObject
			once = once || first
			return !first
		}, Fault: s3test.LoseRequest()})
		refused(t, mine.Put(t.Context(), claim(6, "b"), key, strings.NewReader("and more"), nil), guard.ReasonOutcomeUnknown)
		server.ClearFaults()
		want(t, o, "and more", guard.Mark{Token: 6, LeaseID: "b"})
	})
}

// A deletion whose connection was refused may have been carried out.
func TestDialErrorOfADeletion(t *testing.T) {
	t.Parallel()
	server, b, o := setup(t, s3fence.Sealed, 0)
	put(t, o, claim(5, "a"), "body")
	refusing := &http.Client{Transport: httpFunc(func(r *http.Request) (*http.Response, error) {
		if r.Method == http.MethodDelete {
			return nil, refusedConnection
		}
		return server.HTTPClient().Transport.RoundTrip(r)
	})}
	client := newClient(server, func(opts *s3.Options) { opts.HTTPClient = refusing })
	err := objects(t, b.On(client, bucketName), s3fence.Sealed, nil).InsecureDelete(t.Context(), key)
	refused(t, err, guard.ReasonOutcomeUnknown)
}

// A bucket whose ETags become content hashes after it was opened: a writer paused
// before that is not admitted, and Plain writers get an error that makes them stop.
func TestP1PlainWhenETagsBecomeHashes(t *testing.T) {
	t.Parallel()
	for _, size := range []int{1, 10_000} {
		server, b, o := setup(t, s3fence.Plain, 0)
		other := objects(t, b.On(newClient(server), bucketName), s3fence.Plain, nil)
		body := string(bytesOf(size))
		put(t, o, claim(8, "z"), "before")
		server.SetETags(s3test.ETagMD5)
		put(t, o, claim(9, "a"), body) // takes effect on a random ETag, and is the first that shows it
		// If it were sent, another writer would restore the same body, and the
		// same ETag, before it is applied.
		third := objects(t, b.On(newClient(server), bucketName), s3fence.Plain, nil)
		server.Inject(s3test.Rule{Ops: puts, Key: key, Times: 1, Fault: s3test.Fault{
			Before: func(*s3test.Request) {
				_ = third.Put(context.Background(), claim(11, "c"), key, strings.NewReader(body), nil)
			},
		}})
		err := other.Put(t.Context(), claim(10, "b"), key, strings.NewReader("old"), nil)
		if !errors.Is(err, s3fence.ErrUnsuitableStore) || guard.ReasonOf(err) != guard.ReasonSetup {
			t.Errorf("%d bytes: a reader of a hash for an ETag: %v, want unsuitable", size, err)
		}
		server.ClearFaults()
		err = o.Put(t.Context(), claim(11, "c"), key, strings.NewReader("more"), nil)
		if !errors.Is(err, s3fence.ErrUnsuitableStore) || !strings.Contains(fmt.Sprint(err), "MD5") {
			t.Errorf("%d bytes: the writer that saw it: %v, want unsuitable", size, err)
		}
		if late := olderAfterNewer(t, server.History(bucketName, key)); late != 0 {
			t.Errorf("%d bytes: %d stale writes were accepted", size, late)
		}
		if got := string(stored(t, server, key).Body); got != body {
			t.Errorf("%d bytes: the body is %.20q", size, got)
		}
		err = o.Put(t.Context(), claim(11, "c"), "another", strings.NewReader("more"), nil)
		if !errors.Is(err, s3fence.ErrUnsuitableStore) {
			t.Errorf("%d bytes: another key, after it was seen: %v, want unsuitable", size, err)
		}
		// Sealed objects do not depend on it.
		sealed := objects(t, b, s3fence.Sealed, nil)
		if err := sealed.Put(t.Context(), claim(5, "a"), "sealed", bytes.NewReader([]byte("x")), nil); err != nil {
			t.Error(err)
		}
	}
}

// A store that responds to a read during a write with metadata of one version and
// bytes of the next: the object is read once more, and not reported as damaged.
// Real damage is reported, after two reads.
func TestReadsOfTwoVersions(t *testing.T) {
	t.Parallel()
	eachMode(t, func(t *testing.T, mode s3fence.Mode) {
		server, b, o := setup(t, mode, 0)
		other := objects(t, b.On(newClient(server), bucketName), mode, nil)
		token := guard.Token(5)
		put(t, o, claim(token, "a"), "old")
		for _, verb := range []string{"get", "mark", "raise", "put"} {
			in := server.Inject(s3test.Rule{Ops: gets, Key: key, Times: 1, Fault: s3test.Fault{
				MetadataFirst: true, ETagFirst: true, Between: func(*s3test.Request) {
					token++
					put(t, other, claim(token, "a"), "version "+token.String())
				},
			}})
			b.Forget()
			if err := calls(o, claim(token+1, "a"), key)[verb](t.Context()); err != nil || in.Fired() != 1 {
				t.Errorf("%s: %v, %d reads were torn", verb, err, in.Fired())
			}
			in.Remove()
		}
		bypass(t, server, key, []byte("x"), map[string]string{"fencing-token": "7"})
		server.ResetCounts()
		_, err := o.Mark(t.Context(), key)
		damage(t, err)
		if n := server.Count(); n != 2 {
			t.Errorf("a damaged object was read %d times", n)
		}
	})
}

// A store that never responds: each call names itself, the key and the claim.
func TestFailuresNameTheCall(t *testing.T) {
	t.Parallel()
	eachMode(t, func(t *testing.T, mode s3fence.Mode) {
		server, _, o := setup(t, mode, 0)
		server.Inject(s3test.Rule{Fault: s3test.Respond(403)})
		mine, ctx := claim(5, "a"), t.Context()
		all := calls(o, mine, key)
		if mode == s3fence.Pointer {
			delete(all, "adopt") // is a raise
			_, err := o.Collect(ctx, "p")
			var f *guard.FailedError
			if !errors.As(err, &f) || f.Op != `collect "p"` || f.Claim != (guard.Claim{}) || f.Reason != guard.ReasonSetup {
				t.Errorf("collect: %+v, %v", f, err)
			}
		}
		for name, call := range all {
			op, of := name, mine
			switch name {
			case "mark":
				op, of = "read mark of", guard.Claim{}
			case "get":
				of = guard.Claim{}
			case "remove":
				op, of = "delete", guard.Claim{}
			}
			var f *guard.FailedError
			if err := call(ctx); !errors.As(err, &f) || f.Reason != guard.ReasonSetup || f.Op != op+` "`+key+`"` || f.Claim != of || !strings.Contains(err.Error(), "denied") {
				t.Errorf("%s: %+v, %v", name, f, err)
			}
		}
		for _, err := range o.List(ctx, "p") {
			var f *guard.FailedError
			if !errors.As(err, &f) || f.Op != `list "p"` || !strings.Contains(err.Error(), "denied") {
				t.Errorf("list: %v", err)
			}
		}
	})
}

// A write whose first sending was lost and whose second is refused is not known to
// have had no effect, if nothing can be read.
func TestDoubtIsKept(t *testing.T) {
	t.Parallel()
	eachMode(t, func(t *testing.T, mode s3fence.Mode) {
		for _, second := range []int{403, 412, 503} {
			server, _, o := setup(t, mode, 0)
			put(t, o, claim(4, "z"), "before")
			server.Inject(firstPut(s3test.LoseResponse()))
			server.Inject(s3test.Rule{Ops: puts, Key: key, Skip: 1, Fault: s3test.Respond(second)})
			server.Inject(s3test.Rule{Ops: gets, Key: key, Fault: s3test.Respond(403)})
			err := o.Put(t.Context(), claim(5, "a"), key, strings.NewReader("mine"), nil)
			refused(t, err, guard.ReasonOutcomeUnknown)
			var f *guard.FailedError
			if !errors.As(err, &f) || f.Claim != claim(5, "a") || f.Op != `put "`+key+`"` {
				t.Errorf("%+v", f)
			}
			server.ClearFaults()
			want(t, o, "mine", guard.Mark{Token: 5, LeaseID: "a"}) // and so is the data of a pointer
			// Refused with no earlier sending in doubt, it has no effect.
			server.Inject(s3test.Rule{Ops: puts, Key: key, Fault: s3test.Respond(403)})
			refused(t, o.Put(t.Context(), claim(6, "a"), key, strings.NewReader("more"), nil), guard.ReasonSetup)
			server.ClearFaults()
			want(t, o, "mine", guard.Mark{Token: 5, LeaseID: "a"})
		}
	})
}

// A write that is overtaken reads the object once, and decides by that.
func TestRequestsOfAnOvertakenWrite(t *testing.T) {
	t.Parallel()
	server, b, o := setup(t, s3fence.Sealed, 0)
	other := objects(t, b.On(newClient(server), bucketName), s3fence.Sealed, nil)
	put(t, o, claim(4, "z"), "before")
	put(t, other, claim(6, "b"), "after")
	server.ResetCounts()
	refused(t, o.Put(t.Context(), claim(5, "a"), key, nil, nil), guard.ReasonStale)
	if n := server.Count(); n != 2 { // the remembered state admits it, so it is sent
		t.Errorf("a stale write took %d requests, want 2", n)
	}
	_, err := o.Mark(t.Context(), key) // which is known then, and old
	must(t, err)
	put(t, other, claim(7, "b"), "more")
	server.ResetCounts()
	put(t, o, claim(8, "c"), "mine")
	if n := server.Count(); n != 3 {
		t.Errorf("an overtaken write took %d requests, want 3", n)
	}
}

// bodies counts the bodies of responses that are opened and closed.
type bodies struct {
	s3fence.S3
	opened, closed atomic.Int64
}

func (c *bodies) GetObject(ctx context.Context, in *s3.GetObjectInput, opts ...func(*s3.Options)) (*s3.GetObjectOutput, error) {
	out, err := c.S3.GetObject(ctx, in, opts...)
	if err == nil {
		c.opened.Add(1)
		out.Body = &countedBody{out.Body, c}
	}
	return out, err
}

type countedBody struct {
	io.ReadCloser
	c *bodies
}

func (b *countedBody) Close() error { b.c.closed.Add(1); return b.ReadCloser.Close() }

// Whatever a call returns, the bodies of all responses are closed: otherwise the
// connection is lost.
func TestEveryBodyIsClosed(t *testing.T) {
	t.Parallel()
	eachMode(t, func(t *testing.T, mode s3fence.Mode) {
		for name, fault := range map[string]s3test.Fault{
			"none": {}, "ETag missing": {Omit: []string{"Etag"}}, "cut": {Cut: true}, "range ignored": {Ignore: []string{"Range"}},
			"range not named": {Omit: []string{"Content-Range"}}, "another ETag": {ETagFirst: true}, "no metadata": {Omit: []string{"X-Amz-Meta-Fencing-Mode"}},
		} {
			server, b, _ := setup(t, mode, 0)
			c := &bodies{S3: newClient(server)}
			handle := b.On(c, bucketName)
			o := objects(t, handle, mode, nil)
			ctx := t.Context()
			for _, size := range []int{0, 10_000} {
				put(t, o, claim(5, "a"), string(bytesOf(size)))
				bypass(t, server, "foreign", bytesOf(size), nil)
				in := server.Inject(s3test.Rule{Ops: gets, Fault: fault})
				for range 2 {
					handle.Forget()
					if object, err := o.Get(ctx, key); err == nil {
						_, _ = io.Copy(io.Discard, object.Body)
						object.Body.Close()
					}
					_, _ = o.Mark(ctx, key)
					_ = o.Raise(ctx, claim(6, "b"), key)
					_ = o.Adopt(ctx, claim(6, "b"), "foreign")
				}
				in.Remove()
				must(t, o.InsecureDelete(ctx, key))
			}
			if opened, closed := c.opened.Load(), c.closed.Load(); opened == 0 || closed < opened {
				t.Errorf("%s: %d bodies were opened, %d closed", name, opened, closed)
			}
		}
	})
}
