package s3fence_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/s3fence"
	"github.com/fencepost-go/fencepost/s3fence/s3test"
)

// What time or new credentials cure is not a setup error, after which a worker would end:
// a session that is over is followed by another, for which the next request is signed.
func TestP6WhatTimeCuresIsNotSetup(t *testing.T) {
	t.Parallel()
	for _, code := range []string{"ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired", "SlowDown"} {
		eachMode(t, func(t *testing.T, mode s3fence.Mode) {
			server, b, o := setup(t, mode, 0)
			for _, warm := range []bool{true, false} {
				put(t, o, claim(5, "a"), "x")
				for op, call := range calls(o, claim(5, "a"), key) {
					if op == "remove" {
						continue
					}
					if !warm {
						b.Forget()
					}
					in := server.Inject(s3test.Rule{Fault: s3test.Fault{Status: 403, Code: code}})
					err := call(t.Context())
					if refused(t, err, guard.ReasonUnavailable); err != nil && !strings.Contains(err.Error(), code) {
						t.Errorf("%s %s: %v", op, code, err)
					}
					in.Remove()
				}
				// The next request is signed anew, which is all that it takes.
				server.Inject(s3test.Rule{Ops: puts, Key: key, Times: 1, Fault: s3test.Fault{Status: 400, Code: code}})
				put(t, o, claim(5, "a"), "y")
			}
		})
	}
}

// With a remembered version nothing is unknown where nothing was sent, or where the store
// says that it has not processed it. The control is a connection that breaks.
func TestP6NothingSentIsNotUnknown(t *testing.T) {
	t.Parallel()
	eachMode(t, func(t *testing.T, mode s3fence.Mode) {
		server, b, o := setup(t, mode, 0)
		put(t, o, claim(5, "a"), "x")
		for name, c := range map[string]struct {
			change func(*s3.Options)
			fault  *s3test.Fault
			reason guard.Reason
		}{
			"connection refused": {func(o *s3.Options) { o.BaseEndpoint = aws.String("http://127.0.0.1:1") }, nil, guard.ReasonUnavailable},
			"no such host":       {func(o *s3.Options) { o.BaseEndpoint = aws.String("http://store.invalid") }, nil, guard.ReasonUnavailable},
			"busy":               {nil, new(s3test.Respond(503)), guard.ReasonUnavailable},
			"connection refused unseen": {func(o *s3.Options) {
				o.HTTPClient = httpFunc(func(*http.Request) (*http.Response, error) { return nil, refusedConnection })
			}, nil, guard.ReasonOutcomeUnknown},
			"a page of a front": {nil, &s3test.Fault{Foreign: true, Status: 503, Page: "<html>"}, guard.ReasonOutcomeUnknown},
			"connection lost":   {nil, new(s3test.LoseRequest()), guard.ReasonOutcomeUnknown},
		} {
			client := newClient(server)
			if c.change != nil {
				client = newClient(server, c.change)
			}
			warm := b.On(client, bucketName)
			warm.CopyCache(b)
			if c.fault != nil {
				in := server.Inject(s3test.Rule{Key: key, Fault: *c.fault})
				defer in.Remove()
			}
			err := objects(t, warm, mode, nil).Delete(t.Context(), claim(6, "b"), key)
			if guard.ReasonOf(err) != c.reason {
				t.Errorf("%s: %v, want %s", name, err, c.reason)
			}
			server.ClearFaults()
			want(t, o, "x", guard.Mark{Token: 5, LeaseID: "a"})
		}
	})
}

// What is not there is named as what it is: an object, by its key, with the resource that the
// key belongs to if that is known. No token was given, so none is shown.
func TestP6NotFoundNamesTheObject(t *testing.T) {
	t.Parallel()
	_, b, _ := setup(t, s3fence.Sealed, 0)
	template := guard.Must(guard.NewTemplate("{tenant}:billing-close:{period}"))
	for _, c := range []struct {
		opts *s3fence.ObjectsOptions
		says string
	}{
		{nil, `fencepost: resource not found: object "tenant_123/2026-04.csv" does not exist`},
		{&s3fence.ObjectsOptions{Resource: template, KeyPattern: "{tenant}/{period}.csv"},
			`fencepost: resource not found: for "tenant_123:billing-close:2026-04": object "tenant_123/2026-04.csv" does not exist`},
	} {
		o := objects(t, b, s3fence.Sealed, c.opts)
		if err := got(t, o, key); err == nil || err.Error() != c.says {
			t.Errorf("Get = %v\nwant  %s", err, c.says)
		}
	}
}

// A key that is not of the pattern is no key of these objects, whatever is done with it.
func TestP9EveryCallHasThePattern(t *testing.T) {
	t.Parallel()
	server, b, _ := setup(t, s3fence.Sealed, 0)
	template := guard.Must(guard.NewTemplate("{tenant}:billing-close:{period}"))
	for _, mode := range []s3fence.Mode{s3fence.Sealed, s3fence.Pointer} {
		o := objects(t, b, mode, &s3fence.ObjectsOptions{Resource: template, KeyPattern: "{tenant}/{period}.csv"})
		for name, call := range calls(o, claim(5, "a"), "other/2026-04.txt") {
			if err := call(t.Context()); !errors.Is(err, guard.ErrInvalid) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	if n := server.Count(); n != 0 {
		t.Errorf("%d requests were sent", n)
	}
}

// A reader needs no probe and no right to write, and reads whatever any writer wrote.
func TestReaderNeedsNoWriting(t *testing.T) {
	t.Parallel()
	server, b, _ := setup(t, s3fence.Plain, 0) // all modes are possible here
	writes := []s3test.Op{s3test.PutObject, s3test.DeleteObject}
	server.ResetCounts()
	r, err := s3fence.NewReader(newClient(server), bucketName, nil)
	must(t, err)
	if server.Count() != 0 {
		t.Errorf("it sent %d requests", server.Count())
	}
	for _, mode := range allModes {
		name := s3fence.NameOf(mode)
		must(t, objects(t, b, mode, nil).Put(t.Context(), claim(5, "a"), name, strings.NewReader("of "+name), nil))
	}
	must(t, objects(t, b, s3fence.Sealed, nil).Delete(t.Context(), claim(5, "a"), "deleted"))
	bypass(t, server, "foreign", []byte("x"), nil)
	before := server.Count(writes...)
	for _, mode := range allModes {
		name := s3fence.NameOf(mode)
		object, err := r.Get(t.Context(), name)
		must(t, err)
		if got, mark := all(t, object); got != "of "+name || mark.Token != 5 {
			t.Errorf("%s: %q at %+v", name, got, mark)
		}
	}
	for name, want := range map[string]guard.Reason{"deleted": guard.ReasonNotFound, "missing": guard.ReasonNotFound, "foreign": guard.ReasonUnfenced, "": guard.ReasonInvalid} {
		_, err := r.Get(t.Context(), name)
		refused(t, err, want)
	}
	if m, err := r.Mark(t.Context(), "deleted"); err != nil || m.Token != 5 {
		t.Errorf("the mark is %+v, %v", m, err)
	}
	keys := 0
	for _, err := range r.List(t.Context(), "") {
		must(t, err)
		keys++
	}
	if n := server.Count(writes...) - before; keys != 5 || n != 0 {
		t.Errorf("%d keys are listed; it wrote %d times", keys, n)
	}
	_, err = s3fence.NewReader(nil, bucketName, nil)
	invalid(t, err, "client")
}

// An Expires that is no date, as another program may have stored it, cannot be written
// back: adopting the object says so, and does not drop it.
func TestAdoptKeepsExpires(t *testing.T) {
	t.Parallel()
	eachBody(t, func(t *testing.T, mode s3fence.Mode) {
		server, _, o := setup(t, mode, 0)
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPut, server.URL()+"/"+bucketName+"/"+key, strings.NewReader("theirs"))
		must(t, err)
		request.Header.Set("Expires", "0")
		answer, err := server.HTTPClient().Do(request)
		must(t, err)
		answer.Body.Close()
		invalid(t, o.Adopt(t.Context(), claim(5, "a"), key), "Headers.Expires")
		if at := stored(t, server, key); at.Header.Get("Expires") != "0" || string(at.Body) != "theirs" {
			t.Errorf("stored is %+v", at)
		}
	})
}

// A hidden copy of a write takes effect, the original is refused with 412, and more writes
// follow than a list holds before the writer reads: whether it was written is unknown, which is
// not said as stale. If what is there was stored long before the write was sent, it is stale.
func TestP6UnknownIsNotStale(t *testing.T) {
	t.Parallel()
	eachMode(t, func(t *testing.T, mode s3fence.Mode) {
		for _, fresh := range []bool{true, false} {
			server, b, o := setup(t, mode, 0)
			other := objects(t, b.On(newClient(server), bucketName), mode, nil)
			put(t, o, claim(4, "z"), "before")
			if fresh {
				b.Forget()
			}
			hidden := s3test.RespondApplied(http.StatusPreconditionFailed)
			hidden.After = func(*s3test.Request, int) {
				for token := guard.Token(6); token < 6+34; token++ {
					put(t, other, claim(token, "b"), "after")
				}
			}
			server.Inject(firstPut(hidden))
			refused(t, o.Put(t.Context(), claim(5, "a"), key, strings.NewReader("mine"), nil), guard.ReasonOutcomeUnknown)
			refused(t, o.Put(t.Context(), claim(5, "a"), key, strings.NewReader("mine"), nil), guard.ReasonStale) // it is known by now
		}
	})
}

// A holder that wakes up long after others took over is told that it is stale, though more
// writes followed than a list holds: the store's times show it.
func TestP6LateIsStale(t *testing.T) {
	t.Parallel()
	_, b, o := setup(t, s3fence.Plain, 0)
	put(t, o, claim(4, "z"), "before")
	late := later(t, o, time.Minute)
	late.Bucket().CopyCache(b)
	for token := guard.Token(6); token < 20; token++ {
		put(t, o, claim(token, "b"), "after")
	}
	refused(t, late.Put(t.Context(), claim(5, "a"), key, strings.NewReader("mine"), nil), guard.ReasonStale)
}
