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
	"github.com/fencepost-go/fencepost/internal/testkit"
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
				testkit.Check(t, other.Adopt(context.Background(), claim(5, "a"), key))
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
		testkit.Check(t, sealed.Put(t.Context(), claim(5, "a"), "sealed", bytes.NewReader([]byte("x")), nil))
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

// foreign404s are what things in front of a store respond with while they have no route
// to it.
var foreign404s = map[string]string{
	"empty": "", "text": "404 page not found\n", "HTML": "<html><body><h1>404 Not Found</h1>\nThe resource could not be found.\n</body></html>\n",
	"JSON": `{"Code":"NoSuchKey"}`, "XML of another kind": "<Error><Code>NotFound</Code><Message>NoSuchKey</Message></Error>",
}

// P5: a 404 that the store has not written says nothing about an object: it is not absent,
// has no mark of zero, is not written as if it were new, and was not deleted. The control is
// the store's own word.
func TestP5OnlyTheStoreSaysAbsent(t *testing.T) {
	t.Parallel()
	eachMode(t, func(t *testing.T, mode s3fence.Mode) {
		for name, page := range foreign404s {
			server, b, o := setup(t, mode, 0)
			put(t, o, claim(5, "a"), "balance 100")
			must(t, o.Raise(t.Context(), claim(6, "b"), key))
			b.Forget() // as a program that has just started
			front := server.Inject(s3test.Rule{Fault: s3test.NotFoundByProxy(page)})
			for call, f := range calls(o, claim(6, "b"), key) {
				if err := f(t.Context()); guard.ReasonOf(err) != guard.ReasonUnavailable && !(call == "remove" && errors.Is(err, guard.ErrOutcomeUnknown)) {
					t.Errorf("%s: %s of an object that exists: %v", name, call, err)
				}
			}
			if m, err := o.Mark(t.Context(), key); err == nil {
				t.Errorf("%s: the mark is %+v", name, m)
			}
			for _, err := range o.List(t.Context(), "") {
				refused(t, err, guard.ReasonUnavailable)
			}
			front.Remove()
			// Only the data of a pointer.
			if mode == s3fence.Pointer {
				front := server.Inject(s3test.Rule{Ops: gets, Prefix: b.DataPrefix(key), Fault: s3test.NotFoundByProxy(page)})
				refused(t, got(t, o, key), guard.ReasonUnavailable) // it is not called damaged
				front.Remove()
			}
			want(t, o, "balance 100", guard.Mark{Token: 6, LeaseID: "b"})
			server.Inject(s3test.Rule{Fault: s3test.Respond(404)}) // NoSuchKey
			refused(t, got(t, o, key), guard.ReasonNotFound)
			if m, err := o.Mark(t.Context(), key); err != nil || m != (guard.Mark{}) {
				t.Errorf("the store's own word: %+v, %v", m, err)
			}
			must(t, o.InsecureDelete(t.Context(), key))
		}
	})
}

// The program that loses a total: whoever finds nothing begins from zero.
func TestP5ABalanceIsNotBegunAnew(t *testing.T) {
	t.Parallel()
	server, b, o := setup(t, s3fence.Sealed, 0)
	put(t, o, claim(5, "a"), "balance 100")
	b.Forget()
	add := func() error {
		must(t, o.Raise(t.Context(), claim(6, "b"), key))
		front := server.Inject(s3test.Rule{Ops: gets, Times: 1, Fault: s3test.NotFoundByProxy("404 page not found\n")})
		defer front.Remove()
		if _, err := o.Get(t.Context(), key); errors.Is(err, guard.ErrNotFound) {
			return o.Put(t.Context(), claim(6, "b"), key, strings.NewReader("balance 0"), nil)
		} else if err != nil {
			return err
		}
		return nil
	}
	refused(t, add(), guard.ReasonUnavailable)
	want(t, o, "balance 100", guard.Mark{Token: 6, LeaseID: "b"})
}

// A 404 of a front in answer to a write says nothing about the write either: it is sent
// again until the front is back, and if it stays away the outcome is not known.
func TestP5AWriteBehindAFront(t *testing.T) {
	t.Parallel()
	eachMode(t, func(t *testing.T, mode s3fence.Mode) {
		for _, applied := range []bool{false, true} {
			server, _, o := setup(t, mode, 0)
			put(t, o, claim(4, "z"), "before")
			page := s3test.NotFoundByProxy("404 page not found\n")
			page.Applied = applied
			server.Inject(firstPut(page))
			put(t, o, claim(5, "a"), "mine")
			want(t, o, "mine", guard.Mark{Token: 5, LeaseID: "a"})
			server.Inject(s3test.Rule{Key: key, Fault: page})
			refused(t, o.Put(t.Context(), claim(6, "b"), key, strings.NewReader("more"), nil), guard.ReasonOutcomeUnknown)
		}
	})
}

// A page that something in between responds with, 200 and all, is neither a listing nor an
// empty one, and no write or deletion was acknowledged by it. As the second page of a listing
// it does not end the listing in silence.
func TestP5APageIsNoAnswer(t *testing.T) {
	t.Parallel()
	for name, page := range map[string]string{
		"empty": "", "text": "OK", "HTML": "<!DOCTYPE html><html><body>We are back soon</body></html>", "JSON": `{"status":"ok"}`,
		"an error": "<Error><Code>InternalError</Code></Error>", "a root without a name": "<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>",
		"another bucket's": "<ListBucketResult><Name>other</Name><IsTruncated>false</IsTruncated></ListBucketResult>",
	} {
		server, b, _ := setup(t, s3fence.Pointer, 0)
		o := objects(t, b.On(paged{newClient(server)}, bucketName), s3fence.Pointer, nil)
		for i := range 12 {
			must(t, o.Put(t.Context(), claim(5, "a"), string(rune('a'+i)), nil, nil))
		}
		for skip := range 2 {
			in := server.Inject(s3test.Rule{Ops: []s3test.Op{s3test.ListObjectsV2}, Skip: skip, Fault: s3test.Fault{Foreign: true, Page: page}})
			var last error
			for _, err := range o.List(t.Context(), "") {
				last = err
			}
			if refused(t, last, guard.ReasonUnavailable); last != nil && !strings.Contains(last.Error(), "listing") && name != "an error" {
				t.Logf("%s: %v", name, last)
			}
			in.Remove()
			in = server.Inject(s3test.Rule{Ops: []s3test.Op{s3test.ListObjectsV2}, Skip: skip, Fault: s3test.Fault{Foreign: true, Page: page}})
			_, err := o.Collect(t.Context(), "")
			refused(t, err, guard.ReasonUnavailable)
			in.Remove()
		}
		in := server.Inject(s3test.Rule{Key: "a", Ops: []s3test.Op{s3test.PutObject, s3test.DeleteObject}, Fault: s3test.Fault{Foreign: true, Page: page}})
		refused(t, o.Put(t.Context(), claim(6, "b"), "a", nil, nil), guard.ReasonOutcomeUnknown)
		refused(t, o.InsecureDelete(t.Context(), "a"), guard.ReasonOutcomeUnknown)
		in.Remove()
		must(t, got(t, o, "a"))
	}
}

// rewriting changes the body of a listing.
func rewriting(server *s3test.Server, change func(string) string) func(*s3.Options) {
	return func(o *s3.Options) {
		next := o.HTTPClient
		o.HTTPClient = httpFunc(func(r *http.Request) (*http.Response, error) {
			answer, err := next.Do(r)
			if err != nil || !r.URL.Query().Has("list-type") {
				return answer, err
			}
			body, err := io.ReadAll(answer.Body)
			if err != nil {
				return nil, err
			}
			text := change(string(body))
			answer.Body, answer.ContentLength = io.NopCloser(strings.NewReader(text)), int64(len(text))
			return answer, nil
		})
	}
}

// A foreign key that XML cannot hold does not end every listing, since keys are asked for
// encoded; one that is encoded wrongly is named, and the rest is listed and collected.
func TestForeignKeysInListings(t *testing.T) {
	t.Parallel()
	server, b, o := setup(t, s3fence.Pointer, 0)
	for token := guard.Token(5); token < 7; token++ {
		must(t, o.Put(t.Context(), claim(token, "l"), "k", strings.NewReader("x"), nil))
	}
	for _, name := range []string{"a\x04b", "a b+c%d", "z\n"} {
		bypass(t, server, name, []byte("theirs"), nil)
	}
	if keys := list(t, o, ""); len(keys) != 4 || keys[0] != "a\x04b" || keys[1] != "a b+c%d" && keys[2] != "a b+c%d" {
		t.Errorf("listed %q", keys)
	}
	wrong := objects(t, b.On(newClient(server, rewriting(server, func(page string) string {
		return strings.Replace(page, "<Key>z%0A</Key>", "<Key>z%ZZ</Key>", 1)
	})), bucketName), s3fence.Pointer, nil)
	keys, unread := 0, 0
	for e, err := range wrong.List(t.Context(), "") {
		if keys++; err != nil {
			unread++
			if e.Key != "z%ZZ" || !strings.Contains(err.Error(), `list "z%ZZ"`) {
				t.Errorf("%q: %v", e.Key, err)
			}
		}
	}
	if keys != 4 || unread != 1 {
		t.Errorf("%d keys, %d of them unread", keys, unread)
	}
	if done, err := wrong.Collect(t.Context(), ""); err != nil || done.Skipped != 1 || done.Pointers != 1 || !strings.Contains(done.Err.Error(), "z%ZZ") {
		t.Errorf("Collect = %+v, %v", done, err)
	}
}

// What is cut in its body is asked for once more, and no more often.
func TestCutResponses(t *testing.T) {
	t.Parallel()
	eachMode(t, func(t *testing.T, mode s3fence.Mode) {
		server, b, o := setup(t, mode, 0)
		put(t, o, claim(5, "a"), "body")
		for name, call := range map[string]func(context.Context) error{
			"mark": calls(o, claim(5, "a"), key)["mark"], "raise": calls(o, claim(6, "a"), key)["raise"],
			"list": func(ctx context.Context) error {
				for _, err := range o.List(ctx, "") {
					return err
				}
				return nil
			},
		} {
			for times, reason := range map[int]guard.Reason{1: guard.ReasonNone, 100: guard.ReasonUnavailable} {
				b.Forget()
				in := server.Inject(s3test.Rule{Ops: []s3test.Op{s3test.GetObject, s3test.ListObjectsV2}, Times: times, Fault: s3test.Fault{Cut: true}})
				if err := call(t.Context()); guard.ReasonOf(err) != reason || in.Fired() < min(times, 2) || name != "list" && in.Fired() > 2 {
					t.Errorf("%s: cut %d times: %v", name, in.Fired(), err)
				}
				in.Remove()
			}
		}
	})
}

// A directory bucket lists whole folders only, and not in the order of keys.
func TestDirectoryBuckets(t *testing.T) {
	t.Parallel()
	const name = "invoices--euc1-az1--x-s3"
	server, b, _ := setup(t, s3fence.Pointer, 0)
	server.CreateBucket(name)
	o := objects(t, b.On(newClient(server, func(o *s3.Options) { o.DisableS3ExpressSessionAuth = new(true) }), name), s3fence.Pointer, nil)
	for prefix, ok := range map[string]bool{"": true, "a/": true, "a": false, "a/b": false} {
		_, err := o.Collect(t.Context(), prefix)
		if ok {
			must(t, err)
		} else {
			invalid(t, err, "prefix")
		}
		for _, err := range o.List(t.Context(), prefix) {
			invalid(t, err, "prefix")
		}
	}
}
