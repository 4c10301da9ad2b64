package s3fence_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/s3fence"
	"github.com/fencepost-go/fencepost/s3fence/s3test"
)

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
