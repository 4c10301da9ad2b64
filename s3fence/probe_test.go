package s3fence_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/s3fence"
	"github.com/fencepost-go/fencepost/s3fence/s3test"
)

var (
	puts = []s3test.Op{s3test.PutObject}
	gets = []s3test.Op{s3test.GetObject}
)

// probed are the objects of a probe, without its canary.
func probed(r *s3test.Request) bool { return !strings.HasSuffix(r.Key, "/canary") }

// report probes a store, which must be accepted.
func report(t *testing.T, client s3fence.S3, opts *s3fence.Options) *s3fence.Report {
	t.Helper()
	r, err := s3fence.Probe(t.Context(), client, bucketName, opts)
	must(t, err)
	return r
}

// A correct store is accepted, with a report for people and one for programs, and
// nothing is left of the probe. The documented numbers of requests are upper bounds.
func TestProbeAccepts(t *testing.T) {
	t.Parallel()
	for name, etags := range map[string]s3test.ETagMode{"opaque": s3test.ETagOpaque, "MD5": s3test.ETagMD5} {
		t.Run(name, func(t *testing.T) {
			server := newServer(t, &s3test.Options{ETags: etags})
			r := report(t, newClient(server), nil)
			opaque := etags == s3test.ETagOpaque
			if r.OpaqueETags != opaque || r.Bucket != bucketName || r.Endpoint != server.URL() || len(r.Checks) != 5 {
				t.Errorf("the report is %+v", r)
			}
			for _, want := range []string{"conditions", "reads", "ETags", "racing writers", "reads during writes", bucketName, server.URL()} {
				if !strings.Contains(r.String(), want) {
					t.Errorf("the report has no %q:\n%s", want, r)
				}
			}
			if sent := int64(server.Count()); sent < 350 || sent > 750 || r.Requests > sent || r.Requests < sent-16 {
				t.Errorf("it took %d requests, the report says %d", sent, r.Requests)
			}
			if left := server.Objects(bucketName); len(left) != 0 {
				t.Errorf("%d objects are left", len(left))
			}
			server.ResetCounts()
			b, err := s3fence.Open(t.Context(), newClient(server), bucketName, &s3fence.Options{Report: r})
			must(t, err)
			if n := server.Count(); n != 0 || b.Report() != r {
				t.Errorf("Open took %d requests on a store that is known", n)
			}
			if b.Opaque() != opaque {
				t.Error("Open takes other ETags for opaque than the probe")
			}
			_, err = b.Objects(s3fence.Plain, &s3fence.ObjectsOptions{InsecureAnyResource: true})
			if (err == nil) != opaque {
				t.Errorf("Plain: %v", err)
			}
		})
	}
}

// Each fault of a store, or of something in between, is refused by Open, with what
// was seen. The short checks see all that a single program can see.
func TestProbeRefuses(t *testing.T) {
	t.Parallel()
	stale := func(skip, times int, from string) s3test.Rule { // what a cache serves
		return s3test.Rule{Ops: gets, Match: probed, Skip: skip, Times: times, Fault: s3test.Fault{Status: 404, Code: from}}
	}
	for name, c := range map[string]struct {
		rule  s3test.Rule
		whole bool // only the whole probe sees it
		says  string
	}{
		"no conditions":          {s3test.Rule{Fault: s3test.IgnoreConditions()}, false, "If-None-Match: * over an object: a write was accepted"},
		"no If-Match":            {s3test.Rule{Fault: s3test.Fault{Ignore: []string{"If-Match"}}}, false, "If-Match with an old ETag: a write was accepted"},
		"no If-None-Match":       {s3test.Rule{Fault: s3test.Fault{Ignore: []string{"If-None-Match"}}}, false, "If-None-Match: * over an object: a write was accepted"},
		"conditions unknown":     {s3test.Rule{Ops: puts, Match: probed, Fault: s3test.Fault{Status: 501}}, false, "501"},
		"every write is refused": {s3test.Rule{Ops: puts, Match: probed, Fault: s3test.Respond(412)}, false, "If-None-Match: *: a write was refused"},
		"no right ETag": {s3test.Rule{Ops: puts, Match: func(r *s3test.Request) bool { return r.Header.Get("If-Match") != "" }, Fault: s3test.Respond(412)},
			false, "If-Match with the right ETag: a write was refused"},
		"old metadata stays":  {s3test.Rule{Fault: s3test.Fault{MergeMetadata: true}}, false, "does not show the metadata"},
		"no metadata":         {s3test.Rule{Ops: puts, Fault: s3test.Fault{Ignore: []string{"X-Amz-Meta-Fencepost-Probe-A"}}}, false, "does not show the metadata"},
		"short ranges":        {s3test.Rule{Ops: gets, Fault: s3test.Fault{ShortRanges: true}}, false, "416"},
		"no ETag to a write":  {s3test.Rule{Ops: puts, Fault: s3test.Fault{Omit: []string{"Etag"}}}, false, "the response to a write has the ETag"},
		"no ETag to a read":   {s3test.Rule{Ops: gets, Fault: s3test.Fault{Omit: []string{"Etag"}}}, false, "on which no write can be conditional"},
		"a cached 404":        {stale(1, 1, "NoSuchKey"), false, "shows none after its write was acknowledged"},
		"an encoding removed": {s3test.Rule{Ops: gets, Fault: s3test.Fault{Omit: []string{"Content-Encoding"}}}, false, "something on the way has transformed it"},
		"no creation after a deletion": {s3test.Rule{Ops: puts, Match: func(r *s3test.Request) bool {
			return probed(r) && r.Header.Get("If-None-Match") != ""
		}, Skip: 2, Fault: s3test.Respond(412)}, false, "If-None-Match: * after a deletion: a write was refused"},
		"no condition without an object": {s3test.Rule{Ops: puts, Match: func(r *s3test.Request) bool { return r.Header.Get("If-Match") != "" },
			Skip: 4, Times: 1, Fault: s3test.Fault{Ignore: []string{"If-Match"}}}, false, "If-Match without an object: a write was accepted"},
		"no deletion": {s3test.Rule{Ops: []s3test.Op{s3test.DeleteObject}, Match: probed, Times: 1, Fault: s3test.Fault{Status: 204}},
			false, "a read shows an object that was deleted"},
		"racing writes":     {s3test.Rule{}, true, "racing writers: "},
		"metadata read old": {s3test.Rule{}, true, "reads during writes: "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := newServer(t, nil)
			switch name {
			case "racing writes":
				c.rule = meeting()
			case "metadata read old":
				torn, held := tearing()
				server.Inject(held)
				c.rule = torn
			}
			for whole, probe := range map[bool]func(context.Context, s3fence.S3, string) (*s3fence.Report, error){
				true: func(ctx context.Context, client s3fence.S3, name string) (*s3fence.Report, error) {
					_, err := s3fence.Open(ctx, client, name, nil)
					return nil, err
				}, false: s3fence.ProbeShort,
			} {
				if whole && !c.whole {
					continue // begins with the same checks
				}
				in := server.Inject(c.rule)
				_, err := probe(t.Context(), newClient(server), bucketName)
				in.Remove()
				if c.whole && !whole {
					if err != nil {
						t.Errorf("the short checks: %v", err)
					}
					continue
				}
				var u *s3fence.UnsuitableError
				if !errors.As(err, &u) || u.Bucket != bucketName || !errors.Is(err, s3fence.ErrUnsuitableStore) || !strings.Contains(err.Error(), c.says) {
					t.Errorf("Open = %v, want it to say %q", err, c.says)
				}
			}
			if left := server.Objects(bucketName); len(left) != 0 {
				t.Errorf("%d objects are left", len(left))
			}
		})
	}
}

// raced are the objects for which the probe's writers race.
func raced(r *s3test.Request) bool { return strings.HasSuffix(r.Key, "/d/e/f") }

// meeting is the rule of a store that compares first and writes later: two racing writes or
// more are compared before any of them is applied.
func meeting() s3test.Rule {
	var compared atomic.Int32
	two := make(chan struct{})
	return s3test.Rule{Ops: puts, Match: raced, Fault: s3test.Fault{Between: func(*s3test.Request) {
		if compared.Add(1) == 2 {
			close(two)
		}
		<-two
	}}}
}

// tearing are the rules of a store that reads an object's metadata, and the rest of it only
// after the next write; and of that write, which comes in between. They are for the object
// that the probe overwrites while it is read, once the writers have raced and each reader
// has begun.
func tearing() (torn, held s3test.Rule) {
	reading, written := make(chan struct{}), make(chan struct{})
	read, wrote := sync.OnceFunc(func() { close(reading) }), sync.OnceFunc(func() { close(written) })
	var begun atomic.Bool
	of := func(r *s3test.Request) bool {
		begun.Store(begun.Load() || raced(r))
		return begun.Load() && probed(r) && !raced(r)
	}
	writes := 0
	torn = s3test.Rule{Ops: gets, Match: of, Skip: 5, Times: 1, Fault: s3test.Fault{MetadataFirst: true, Between: func(*s3test.Request) {
		read()
		<-written
	}}}
	held = s3test.Rule{Ops: puts, Match: func(r *s3test.Request) bool {
		if of(r) {
			writes++
		}
		return of(r) && writes == 2
	}, Times: 1, Fault: s3test.Fault{Before: func(*s3test.Request) { <-reading }, After: func(*s3test.Request, int) { wrote() }}}
	return torn, held
}

// cached is a cache between the program and the store: it keeps the first response to
// a read of a key, and forgets it never.
type cached struct {
	next http.RoundTripper
	kept map[string]*kept
	obey bool // Cache-Control: no-cache
}

type kept struct {
	*http.Response
	body []byte
}

func (c *cached) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method != http.MethodGet || c.obey && strings.Contains(r.Header.Get("Cache-Control"), "no-cache") {
		return c.next.RoundTrip(r)
	}
	name := r.URL.Path + r.Header.Get("Range")
	k := c.kept[name]
	if k == nil {
		answer, err := c.next.RoundTrip(r)
		if err != nil {
			return nil, err
		}
		body, err := io.ReadAll(answer.Body)
		if err != nil {
			return nil, err
		}
		k = &kept{answer, body}
		c.kept[name] = k
	}
	answer := *k.Response
	answer.Body, answer.Request = io.NopCloser(bytes.NewReader(k.body)), r
	return &answer, nil
}

// A cache is refused by Open. One that obeys a reader's wish for the store's own
// answer does no harm.
func TestCacheInBetween(t *testing.T) {
	t.Parallel()
	for _, obey := range []bool{false, true} {
		server := newServer(t, &s3test.Options{ETags: s3test.ETagOpaque})
		via := func() func(*s3.Options) {
			c := &cached{next: server.HTTPClient().Transport, kept: map[string]*kept{}, obey: obey}
			return func(o *s3.Options) { o.HTTPClient = &http.Client{Transport: c} }
		}
		_, err := s3fence.ProbeShort(t.Context(), newClient(server, via()), bucketName)
		if obey != (err == nil) || !obey && !errors.Is(err, s3fence.ErrUnsuitableStore) {
			t.Errorf("obeying %v: Open = %v", obey, err)
		}
		// One that comes later shows in a write, which does not go on for long.
		eachMode(t, func(t *testing.T, mode s3fence.Mode) {
			name := "later/" + s3fence.NameOf(mode)
			b := open(t, server, nil)
			b.SetOpaque(true)
			behind := objects(t, b.On(newClient(server, via()), bucketName), mode, nil)
			_, _ = behind.Mark(t.Context(), name) // a 404, which the cache keeps
			must(t, objects(t, b, mode, nil).Put(t.Context(), claim(5, "a"), name, strings.NewReader("five"), nil))
			server.ResetCounts()
			err := behind.Put(t.Context(), claim(6, "b"), name, strings.NewReader("six"), nil)
			if obey {
				testkit.Check(t, err)
				return
			}
			refused(t, err, guard.ReasonOutcomeUnknown) // the cache would hide a write that something below sent twice
			if err == nil || !strings.Contains(err.Error(), "a cache serves them") {
				t.Errorf("it does not name the cache: %v", err)
			}
			if n := server.Count(s3test.PutObject); n > 4 {
				t.Errorf("%d writes were sent", n)
			}
		})
	}
}

// What the program may not do is an error that says so, and leaves nothing,
// however often it happens.
func TestProbeWithoutRights(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		rule s3test.Rule
		says string
	}{
		"s3:DeleteObject": {s3test.Rule{Ops: []s3test.Op{s3test.DeleteObject}, Fault: s3test.Respond(403)}, "s3:DeleteObject"},
		"s3:PutObject":    {s3test.Rule{Ops: puts, Fault: s3test.Respond(403)}, "denied"},
		// Without it Amazon responds with 403 for what is not there, and no object can be created.
		"s3:ListBucket": {s3test.Rule{Ops: gets, Times: 3, Fault: s3test.Respond(403)}, "s3:ListBucket"},
	} {
		server := newServer(t, nil)
		for range 3 {
			in := server.Inject(c.rule)
			_, err := s3fence.Open(t.Context(), newClient(server), bucketName, nil)
			in.Remove()
			refused(t, err, guard.ReasonSetup)
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s: it does not say what it needs: %v", name, err)
			}
		}
		if left := server.Objects(bucketName); len(left) != 0 {
			t.Errorf("%s: %d objects are left", name, len(left))
		}
	}
}

// Answers lost during the probe are no reason to refuse a store.
func TestProbeOfABadConnection(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]s3test.Fault{
		"requests lost": s3test.LoseRequest(), "responses lost": s3test.LoseResponse(), "503": s3test.Respond(503), "409": s3test.Respond(409),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := newServer(t, &s3test.Options{Seed: 3})
			server.Inject(s3test.Rule{Ops: puts, Fault: fault, Probability: 0.1})
			report(t, newClient(server), nil)
		})
	}
}

func TestProbeCancelled(t *testing.T) {
	t.Parallel()
	server := newServer(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	// After its effect, because a request in flight may land after the clean-up.
	server.Inject(s3test.Rule{Ops: puts, Skip: 3, Times: 1, Fault: s3test.Fault{After: func(*s3test.Request, int) { cancel() }}})
	_, err := s3fence.Open(ctx, newClient(server), bucketName, nil)
	refused(t, err, guard.ReasonUnavailable)
	if left := server.Objects(bucketName); len(left) != 0 {
		t.Errorf("%d objects are left", len(left))
	}
}

// A client that keeps fewer connections than there are racing writers: they
// cannot wait for each other, and the probe must not wait forever.
func TestProbeWithFewConnections(t *testing.T) {
	t.Parallel()
	server := newServer(t, nil)
	few := &http.Transport{MaxConnsPerHost: 2}
	defer few.CloseIdleConnections()
	client := newClient(server, func(o *s3.Options) { o.HTTPClient = &http.Client{Transport: few} })
	if _, err := s3fence.Open(t.Context(), client, bucketName, nil); err != nil {
		t.Error(err)
	}
}

// Amazon's endpoints are known: Open does not let writers race there.
func TestAmazonIsKnown(t *testing.T) {
	t.Parallel()
	server := newServer(t, nil)
	to := server.HTTPClient().Transport
	client := newClient(server, func(o *s3.Options) {
		o.BaseEndpoint, o.Region = nil, "eu-central-1"
		o.HTTPClient = &http.Client{Transport: httpFunc(func(r *http.Request) (*http.Response, error) {
			if r.URL.Host != "s3.eu-central-1.amazonaws.com" {
				t.Errorf("a request went to %s", r.URL.Host)
			}
			r.URL.Scheme, r.URL.Host = "http", strings.TrimPrefix(server.URL(), "http://")
			return to.RoundTrip(r)
		})}
	})
	if _, err := s3fence.Open(t.Context(), client, bucketName, nil); err != nil {
		t.Fatal(err)
	}
	if n := server.Count(); n == 0 || n > 18 {
		t.Errorf("it took %d requests", n)
	}
}

// A report is kept as JSON and passed back. One on something else is refused; one
// that is too old or too weak is replaced by a whole probe.
func TestKeptReport(t *testing.T) {
	t.Parallel()
	server := newServer(t, &s3test.Options{ETags: s3test.ETagOpaque})
	server.CreateBucket("other")
	text, err := json.Marshal(report(t, newClient(server), nil))
	must(t, err)
	kept := func(change func(*s3fence.Report)) *s3fence.Options {
		var r s3fence.Report
		must(t, json.Unmarshal(text, &r))
		if change != nil {
			change(&r)
		}
		return &s3fence.Options{Report: &r}
	}
	for name, c := range map[string]struct {
		opts  *s3fence.Options
		whole bool
	}{
		"as it was":  {kept(nil), false},
		"of a build": {kept(func(r *s3fence.Report) { r.Version-- }), true},
	} {
		server.ResetCounts()
		b, err := s3fence.Open(t.Context(), newClient(server), bucketName, c.opts)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if whole := server.Count() > 0; whole != c.whole || !b.Opaque() {
			t.Errorf("%s: %d requests", name, server.Count())
		}
	}
	_, err = s3fence.Open(t.Context(), newClient(server), "other", kept(nil))
	invalid(t, err, "Options.Report")
}

// versitygw reads the ETag first, and the rest of an overwritten object then: a
// write that is decided on such a response fails, so it does no harm, and the store is
// accepted. The other way around a stale write is accepted, which TestProbeRefuses
// shows.
func TestProbeOfTornReads(t *testing.T) {
	t.Parallel()
	server := newServer(t, nil)
	torn, held := tearing()
	torn.Fault.MetadataFirst, torn.Fault.ETagFirst = false, true
	server.Inject(held)
	in := server.Inject(torn)
	report(t, newClient(server), nil)
	if in.Fired() != 1 {
		t.Error("no read was torn")
	}
}

// Racing writers send the last bytes of their bodies together.
func TestRacingWritersMeet(t *testing.T) {
	t.Parallel()
	server := newServer(t, nil)
	var there, early atomic.Int32 // who has sent all but the last byte, and who sent that before all had come
	client := newClient(server, func(o *s3.Options) {
		o.HTTPClient = httpFunc(func(r *http.Request) (*http.Response, error) {
			if _, err := io.ReadFull(r.Body, make([]byte, r.ContentLength-1)); err != nil {
				return nil, err
			}
			there.Add(1)
			if rest, err := io.ReadAll(r.Body); err != nil || len(rest) != 1 {
				return nil, fmt.Errorf("the last byte: %q, %w", rest, err)
			}
			if there.Load() < s3fence.GateWriters {
				early.Add(1)
			}
			answer := response(r, http.StatusOK, "")
			answer.Header.Set("Etag", `"e"`)
			return answer, nil
		})
	})
	_, _, err := open(t, server, nil).On(client, bucketName).RaceOfGate(t.Context(), "a/.fencepost/probe/x", testkit.Patience)
	if err == nil || !strings.Contains(err.Error(), "16 of 16") {
		t.Errorf("all were accepted: %v", err)
	}
	if n := early.Load(); n != 0 {
		t.Errorf("%d writes ended before all writers had come", n)
	}
}
