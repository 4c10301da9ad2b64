package s3fence_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/s3fence"
	"github.com/fencepost-go/fencepost/s3fence/s3test"
)

// Also in internal/s3integration, beside a store that must be refused as often.
func TestProbeAccepts(t *testing.T) {
	runs := 4
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

// Stores that do not enforce preconditions, each in its own way.
func TestProbeRefuses(t *testing.T) {
	puts := []s3test.Op{s3test.PutObject}
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
		// Eight such writes come before the races, one after the other.
		"racing replacements": {Ops: puts, Fault: race, Skip: 8, Match: func(r *s3test.Request) bool {
			return r.Header.Get("If-Match") != "" && !strings.HasSuffix(r.Key, "-absent")
		}},
		"not implemented": {Ops: puts, Fault: s3test.Fault{Status: http.StatusNotImplemented, Code: "NotImplemented"}, Match: func(r *s3test.Request) bool {
			return r.Header.Get("If-None-Match")+r.Header.Get("If-Match") != ""
		}},
	} {
		t.Run(name, func(t *testing.T) {
			server := newServer(t, nil)
			for range 10 {
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

// A store whose deletions do not keep to their condition is refused if they are
// declared to, and otherwise accepted: then no mark is deleted.
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
			if name == "racing" { // two deletions and eight writes come before the race, one after the other
				var deletes s3test.OvertakenDeletes
				for op, skip := range map[s3test.Op]int{s3test.DeleteObject: 2, s3test.PutObject: 8} {
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

// Answers that are lost while it is probed are no reason to refuse a store.
func TestProbeOfABadConnection(t *testing.T) {
	for name, fault := range map[string]s3test.Fault{
		"requests lost": s3test.LoseRequest(), "responses lost": s3test.LoseResponse(), "503": s3test.Answer(503), "409": s3test.Answer(409),
	} {
		t.Run(name, func(t *testing.T) {
			server := newServer(t, &s3test.Options{Seed: 3})
			server.Inject(s3test.Rule{Ops: []s3test.Op{s3test.PutObject}, Fault: fault, Probability: 0.1})
			for range 5 {
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
	// After its effect, because a request on its way may land after the cleaning.
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
// cannot wait for each other, and the probe must not wait for ever.
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
	if err != nil || b.Probe() != (s3fence.Probe{}) || server.Count() != 0 {
		t.Errorf("Open = %v after %d requests", err, server.Count())
	}
}
