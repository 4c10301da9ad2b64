package s3fence_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/s3fence"
	"github.com/fencepost-go/fencepost/s3fence/s3test"
)

// Also in internal/suites/s3, beside a store that must be refused as often.
func TestProbeAccepts(t *testing.T) {
	runs := 2
	if long {
		runs = 30
	}
	for name, mode := range map[string]s3test.ETagMode{"MD5": s3test.ETagMD5, "opaque": s3test.ETagOpaque} {
		t.Run(name, func(t *testing.T) {
			server := newServer(t, &s3test.Options{ETags: mode})
			for i := range runs {
				b, err := s3fence.Open(t.Context(), newClient(server), bucketName, &s3fence.Options{AtomicDelete: i%2 == 0})
				if err != nil {
					t.Fatal(err)
				}
				if got := b.Probe(); got.OpaqueETags != (mode == s3test.ETagOpaque) {
					t.Errorf("the probe found %+v", got)
				}
			}
			if left := server.Objects(bucketName); len(left) != 0 {
				t.Errorf("%d objects are left, such as %q", len(left), left[0].Key)
			}
		})
	}
}

// What the probe reports, property by property.
func TestProbeReport(t *testing.T) {
	server := newServer(t, nil)
	b := openProbed(t, server, &s3fence.Options{AtomicDelete: true})
	var seen []string
	for _, c := range b.Probe().Checks {
		if c.Seen == "" {
			t.Errorf("nothing was seen of %q", c.Property)
		}
		seen = append(seen, c.Property)
	}
	want := []string{"conditions", "metadata", "ranges", "ETags", "DELETE with If-Match", "racing writers", "reads beside writes"}
	if !slices.Equal(seen, want) {
		t.Errorf("the checks are %q, want %q", seen, want)
	}
}

// Stores that do not enforce preconditions, each in its own way.
func TestProbeRefuses(t *testing.T) {
	puts, gets, heads := []s3test.Op{s3test.PutObject}, []s3test.Op{s3test.GetObject}, []s3test.Op{s3test.HeadObject}
	deep := func(r *s3test.Request) bool { return strings.Contains(r.Key, "/0/1/2/") } // created in a race
	var meeting s3test.Meeting
	race := s3test.Fault{Between: meeting.Join}
	for name, rule := range map[string]s3test.Rule{
		"conditions ignored":    {Ops: puts, Fault: s3test.IgnoreConditions()},
		"If-Match ignored":      {Ops: puts, Fault: s3test.Fault{Ignore: []string{"If-Match"}}},
		"If-None-Match ignored": {Ops: puts, Fault: s3test.Fault{Ignore: []string{"If-None-Match"}}},
		"metadata merged":       {Ops: puts, Fault: s3test.Fault{MergeMetadata: true}},
		"racing creations":      {Ops: puts, Fault: race, Match: deep},
		"racing creations, once": {Ops: puts, Fault: race, Match: func(r *s3test.Request) bool {
			return deep(r) && strings.Contains(r.Key, "-11/")
		}},
		// Twelve such writes come before the races, one after the other.
		"racing replacements": {Ops: puts, Fault: race, Skip: 12, Match: func(r *s3test.Request) bool {
			return r.Header.Get("If-Match") != "" && !strings.HasSuffix(r.Key, "-absent")
		}},
		"short ranges":        {Ops: gets, Fault: s3test.Fault{ShortRanges: true}},
		"HEAD without ETag":   {Ops: heads, Fault: s3test.Fault{Empty: []string{"Etag"}}, Skip: 3},
		"GET without ETag":    {Ops: gets, Fault: s3test.Fault{Omit: []string{"Etag"}}, Skip: 60},
		"HEAD without fields": {Ops: heads, Fault: s3test.Fault{Omit: []string{"X-Amz-Meta-Fencepost-Probe"}}, Skip: 3},
		"GET without fields":  {Ops: gets, Fault: s3test.Fault{Omit: []string{"X-Amz-Meta-Fencepost-Probe"}}, Skip: 60},
		"not there":           {Ops: heads, Fault: s3test.Answer(404), Skip: 5, Times: 1},
		"not implemented": {Ops: puts, Fault: s3test.Fault{Status: http.StatusNotImplemented, Code: "NotImplemented"}, Match: func(r *s3test.Request) bool {
			return r.Header.Get("If-None-Match")+r.Header.Get("If-Match") != ""
		}},
	} {
		t.Run(name, func(t *testing.T) {
			server := newServer(t, nil)
			for range 2 {
				in := server.Inject(rule)
				b, err := s3fence.Open(t.Context(), newClient(server), bucketName, nil)
				in.Remove()
				var p *s3fence.UnsuitableError
				if b != nil || !errors.As(err, &p) || !errors.Is(err, s3fence.ErrUnsuitableStore) || errors.Is(err, guard.ErrUnavailable) ||
					p.Bucket != bucketName || !strings.HasPrefix(err.Error(), p.Check+": "+p.Problem) {
					t.Fatalf("Open = %v", err)
				}
			}
			if left := server.Objects(bucketName); len(left) != 0 {
				t.Errorf("%d objects are left, such as %q", len(left), left[0].Key)
			}
		})
	}
}

// A store whose deletions ignore their condition is refused if AtomicDelete is
// declared, and otherwise accepted: then no mark is deleted.
func TestProbeOfDeletion(t *testing.T) {
	for name, fault := range map[string]s3test.Fault{
		"ignored": {Ignore: []string{"If-Match"}}, "refused": {Status: http.StatusNotImplemented, Code: "NotImplemented"},
		"racing": s3test.Race(),
	} {
		t.Run(name, func(t *testing.T) {
			server := newServer(t, nil)
			conditional := func(r *s3test.Request) bool {
				return r.Header.Get("If-Match") != "" && !strings.HasSuffix(r.Key, "-absent")
			}
			server.Inject(s3test.Rule{Ops: []s3test.Op{s3test.DeleteObject}, Fault: fault, Match: conditional})
			var certain []*s3test.Injection
			if name == "racing" { // two deletions and twelve writes come before the race, one after the other
				var deletes s3test.OvertakenDeletes
				for op, skip := range map[s3test.Op]int{s3test.DeleteObject: 2, s3test.PutObject: 12} {
					certain = append(certain, server.Inject(s3test.Rule{Ops: []s3test.Op{op}, Skip: skip, Decide: deletes.Fault, Match: conditional}))
				}
			}
			_, err := s3fence.Open(t.Context(), newClient(server), bucketName, &s3fence.Options{AtomicDelete: true})
			if !errors.As(err, new(*s3fence.UnsuitableError)) {
				t.Errorf("Open = %v", err)
			}
			for _, in := range certain {
				in.Remove()
			}
			store := open(t, server, nil).Store()
			if _, err := store.Admit(t.Context(), claim(5, "a")); err != nil {
				t.Fatal(err)
			}
			server.ResetCounts()
			if r, err := store.Retire(t.Context(), time.Now().Add(time.Hour)); err != nil || r != (guard.Retired{Count: 1, Floor: 5}) {
				t.Errorf("Retire = %+v, %v", r, err)
			}
			if n := server.Count(s3test.DeleteObject); n != 0 {
				t.Errorf("%d deletions were sent", n)
			}
			if m, err := store.Mark(t.Context(), resource); err != nil || m != (guard.Mark{Token: 5, Floor: true}) {
				t.Errorf("the mark is %+v, %v", m, err)
			}
		})
	}
}

// Answers lost during the probe are no reason to refuse a store.
func TestProbeOfABadConnection(t *testing.T) {
	for name, fault := range map[string]s3test.Fault{
		"requests lost": s3test.LoseRequest(), "responses lost": s3test.LoseResponse(), "503": s3test.Answer(503), "409": s3test.Answer(409),
	} {
		t.Run(name, func(t *testing.T) {
			server := newServer(t, &s3test.Options{Seed: 3})
			server.Inject(s3test.Rule{Ops: []s3test.Op{s3test.PutObject}, Fault: fault, Probability: 0.1})
			for range 1 {
				if _, err := s3fence.Open(t.Context(), newClient(server), bucketName, nil); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

func TestProbeCancelled(t *testing.T) {
	server := newServer(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	// After its effect, because a request in flight may land after the clean-up.
	pause := server.Pause(s3test.Rule{Ops: []s3test.Op{s3test.PutObject}, Skip: 3, Times: 1}, s3test.AfterApply)
	go func() {
		if held, err := pause.Wait(context.Background()); err == nil {
			cancel()
			held.Release()
		}
	}()
	_, err := s3fence.Open(ctx, newClient(server), bucketName, nil)
	refused(t, err, guard.ReasonUnavailable)
	if left := server.Objects(bucketName); len(left) != 0 {
		t.Errorf("%d objects are left", len(left))
	}
}

// A client that keeps fewer connections than there are racing writers: they
// cannot wait for each other, and the probe must not wait forever.
func TestProbeWithFewConnections(t *testing.T) {
	server := newServer(t, nil)
	few := &http.Transport{MaxConnsPerHost: 2}
	defer few.CloseIdleConnections()
	client := newClient(server, func(o *s3.Options) { o.HTTPClient = &http.Client{Transport: few} })
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute) // ends a hang; two seconds are usual
	defer cancel()
	if _, err := s3fence.Open(ctx, client, bucketName, nil); err != nil {
		t.Error(err)
	}
}

func TestInsecureSkipProbe(t *testing.T) {
	server := newServer(t, nil)
	b, err := s3fence.Open(t.Context(), newClient(server), bucketName, &s3fence.Options{InsecureSkipProbe: true})
	if err != nil || b.Probe().Version != 0 || server.Count() != 0 {
		t.Errorf("Open = %v after %d requests", err, server.Count())
	}
}

// staleHeads is a store whose HEAD answers come from a cache.
type staleHeads struct {
	*s3.Client
	kept sync.Map // by key
}

func (c *staleHeads) HeadObject(ctx context.Context, in *s3.HeadObjectInput, opts ...func(*s3.Options)) (*s3.HeadObjectOutput, error) {
	if out, ok := c.kept.Load(*in.Key); ok {
		return out.(*s3.HeadObjectOutput), nil
	}
	out, err := c.Client.HeadObject(ctx, in, opts...)
	if err == nil && out.Metadata["fencepost-probe"] != "" {
		c.kept.Store(*in.Key, out)
	}
	return out, err
}

// mixedBodies is a store whose GET answers end with bytes of another version.
type mixedBodies struct{ *s3.Client }

func (c *mixedBodies) GetObject(ctx context.Context, in *s3.GetObjectInput, opts ...func(*s3.Options)) (*s3.GetObjectOutput, error) {
	out, err := c.Client.GetObject(ctx, in, opts...)
	if err == nil && out.Metadata["fencepost-probe"] != "" {
		body, err := io.ReadAll(out.Body)
		if err != nil {
			return nil, err
		}
		copy(body, "00000001")
		out.Body = io.NopCloser(strings.NewReader(string(body)))
	}
	return out, err
}

func TestProbeRefusesWhatReadersSee(t *testing.T) {
	server := newServer(t, nil)
	for says, client := range map[string]s3fence.S3{
		"was acknowledged": &staleHeads{Client: newClient(server)}, "a mixture": &mixedBodies{newClient(server)},
	} {
		_, err := s3fence.Open(t.Context(), client, bucketName, nil)
		if !errors.Is(err, s3fence.ErrUnsuitableStore) || !strings.HasPrefix(err.Error(), "reads beside writes: ") || !strings.Contains(err.Error(), says) {
			t.Errorf("Open = %v, want it to say %q", err, says)
		}
	}
}

// versitygw reads the ETag first, and the rest of an overwritten object then: a
// write that is decided on such an answer fails, so it does no harm. Nor does a
// mixed answer to HEAD, on which nothing is decided. The other way around a stale
// write is accepted: its condition is the ETag of a version newer than the mark it
// saw.
func TestProbeOfTornReads(t *testing.T) {
	for _, c := range []struct {
		name   string
		op     s3test.Op
		fault  s3test.Fault
		refuse bool
	}{
		{"GET, ETag first", s3test.GetObject, s3test.Fault{ETagFirst: true}, false},
		{"HEAD, metadata first", s3test.HeadObject, s3test.Fault{MetadataFirst: true}, false},
		{"GET, metadata first", s3test.GetObject, s3test.Fault{MetadataFirst: true}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			server := newServer(t, nil)
			var written atomic.Int64 // of the versions that reads race with
			var torn atomic.Int64
			server.Inject(s3test.Rule{Ops: []s3test.Op{s3test.PutObject}, Match: func(r *s3test.Request) bool {
				if len(r.Body) > 16 && bytes.Equal(r.Body[:8], r.Body[8:16]) { // the version's number, over and over
					written.Add(1)
				}
				return false
			}})
			c.fault.Between = func(r *s3test.Request) {
				first, _ := server.Object(r.Bucket, r.Key)
				for begin := time.Now(); time.Since(begin) < time.Minute; time.Sleep(time.Millisecond) {
					if now, _ := server.Object(r.Bucket, r.Key); now.ETag != first.ETag {
						torn.Add(1)
						return
					}
				}
			}
			server.Inject(s3test.Rule{
				Ops: []s3test.Op{c.op}, Times: 3, Fault: c.fault,
				// In the first half of a burst of 24 writes, so that more will follow.
				Match: func(*s3test.Request) bool { n := written.Load() % 24; return n > 2 && n < 12 },
			})
			_, err := s3fence.Open(t.Context(), newClient(server), bucketName, nil)
			if torn.Load() == 0 { // how many depends on the scheduler, and on when the store is refused
				t.Error("no read was torn, so this shows nothing")
			}
			if refused := errors.Is(err, s3fence.ErrUnsuitableStore); refused != c.refuse || err != nil && !refused {
				t.Errorf("Open = %v", err)
			}
		})
	}
}

// A result is kept as JSON and passed back: no request is sent. A result about
// something else is refused; one that is too old or too weak is replaced.
func TestKeptProbe(t *testing.T) {
	server := newServer(t, &s3test.Options{ETags: s3test.ETagOpaque})
	server.CreateBucket("other")
	first := openProbed(t, server, nil).Probe()
	text, err := json.Marshal(first)
	if err != nil {
		t.Fatal(err)
	}
	kept := func(change func(*s3fence.Probe)) *s3fence.Options {
		var p s3fence.Probe
		if err := json.Unmarshal(text, &p); err != nil {
			t.Fatal(err)
		}
		if change != nil {
			change(&p)
		}
		return &s3fence.Options{Probe: &p}
	}
	for name, c := range map[string]struct {
		opts  *s3fence.Options
		asked bool
	}{
		"as it was":    {kept(nil), false},
		"too old":      {kept(func(p *s3fence.Probe) { p.At = p.At.Add(-25 * time.Hour) }), true},
		"too new":      {kept(func(p *s3fence.Probe) { p.At = p.At.Add(2 * time.Hour) }), true},
		"of a build":   {kept(func(p *s3fence.Probe) { p.Version-- }), true},
		"without keys": {kept(func(p *s3fence.Probe) { p.Encryption = "aws:kms" }), true},
		"of deletes":   {&s3fence.Options{Probe: &first, AtomicDelete: true}, true},
		"older is well": {&s3fence.Options{Probe: kept(func(p *s3fence.Probe) { p.At = p.At.Add(-25 * time.Hour) }).Probe,
			ProbeMaxAge: 26 * time.Hour}, false},
	} {
		server.ResetCounts()
		b, err := s3fence.Open(t.Context(), newClient(server), bucketName, c.opts)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if asked := server.Count() != 0; asked != c.asked || !b.Probe().OpaqueETags {
			t.Errorf("%s: asked %v, want %v; %+v", name, asked, c.asked, b.Probe())
		}
	}
	_, err = s3fence.Open(t.Context(), newClient(server), "other", kept(nil))
	invalid(t, err, "Options.Probe")
	_, err = s3fence.Open(t.Context(), newClient(newServer(t, nil)), bucketName, kept(nil))
	invalid(t, err, "Options.Probe")
	_, err = s3fence.Open(t.Context(), struct{ s3fence.S3 }{newClient(server)}, bucketName, kept(nil))
	invalid(t, err, "Options.Probe")
	// A resolver may lead to another store under the same options.
	resolved := newClient(server, func(o *s3.Options) {
		o.EndpointResolverV2 = struct{ s3.EndpointResolverV2 }{o.EndpointResolverV2}
	})
	_, err = s3fence.Open(t.Context(), resolved, bucketName, kept(nil))
	invalid(t, err, "Options.Probe")
	if b, err := s3fence.Open(t.Context(), resolved, bucketName, nil); err != nil || b.Probe().Endpoint != "" {
		t.Errorf("Open without a kept probe: %v", err)
	}
}

// Without permission to delete, a probe leaves one small object, however often it
// is run, and says what it needs.
func TestProbeWithoutTheRightToDelete(t *testing.T) {
	server := newServer(t, nil)
	server.Inject(s3test.Rule{Ops: []s3test.Op{s3test.DeleteObject}, Fault: s3test.Answer(403)})
	for range 3 {
		_, err := s3fence.Open(t.Context(), newClient(server), bucketName, nil)
		refused(t, err, guard.ReasonUnavailable)
		if err == nil || !strings.Contains(err.Error(), "s3:DeleteObject") {
			t.Errorf("it does not say what it needs: %v", err)
		}
	}
	if left := server.Objects(bucketName); len(left) != 1 {
		t.Errorf("%d objects are left", len(left))
	}
}

// twiceReading reads each body twice, as the SDK does for its checksum, and counts
// who reads for the second time.
type twiceReading struct {
	s3fence.S3
	ended, missed atomic.Int32 // the first reading; the second before all had ended the first
}

func (c *twiceReading) PutObject(_ context.Context, in *s3.PutObjectInput, _ ...func(*s3.Options)) (*s3.PutObjectOutput, error) {
	for reading := range 2 {
		if _, err := in.Body.(io.Seeker).Seek(0, io.SeekStart); err != nil {
			return nil, err
		}
		if _, err := io.ReadAll(in.Body); err != nil {
			return nil, err
		}
		if reading == 0 {
			c.ended.Add(1)
		} else if c.ended.Load() < s3fence.GateWriters {
			c.missed.Add(1)
		}
	}
	return &s3.PutObjectOutput{}, nil
}

// Racing writers go on together at the end of each reading of their bodies.
func TestRacingWritersMeet(t *testing.T) {
	server := newServer(t, nil)
	c := &twiceReading{S3: newClient(server)}
	b := open(t, server, nil).Handle(c, bucketName)
	for _, err := range b.RaceOfGate(t.Context(), "a/.fencepost/probe/x") {
		if err != nil {
			t.Error(err)
		}
	}
	if n := c.missed.Load(); n != 0 {
		t.Errorf("%d readings ended before all writers had come", n)
	}
}
