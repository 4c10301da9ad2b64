package s3fence_test

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/s3fence"
	"github.com/fencepost-go/fencepost/s3fence/s3test"
)

func TestBadOptions(t *testing.T) {
	t.Parallel()
	server := newServer(t, nil)
	for _, c := range []struct {
		field string
		opts  s3fence.Options
	}{
		{"Options.MaxBody", s3fence.Options{MaxBody: -1}},
		{"Options.MaxBody", s3fence.Options{MaxBody: 5 << 30}},
		{"Options.GracePeriod", s3fence.Options{GracePeriod: -time.Second}},
		{"Options.RequestTimeout", s3fence.Options{RequestTimeout: -time.Second}},
		{"Options.Prefix", s3fence.Options{Prefix: "/a"}},
		{"Options.Prefix", s3fence.Options{Prefix: "a/../b"}},
		{"Options.Prefix", s3fence.Options{Prefix: ".fencepost"}},
		{"Options.Prefix", s3fence.Options{Prefix: strings.Repeat("p", 513)}},
	} {
		_, err := s3fence.Open(t.Context(), newClient(server), bucketName, &c.opts)
		invalid(t, err, c.field)
	}
	_, err := s3fence.Open(t.Context(), nil, bucketName, nil)
	invalid(t, err, "client")
	for _, name := range []string{"", "ab", "a\nb"} {
		_, err := s3fence.Open(t.Context(), newClient(server), name, nil)
		invalid(t, err, "bucket")
	}
	if server.Count() != 0 {
		t.Error("requests were sent")
	}
}

// headersSent records the headers of requests.
type headersSent struct {
	mu sync.Mutex
	of map[s3test.Op][]http.Header
}

func record(server *s3test.Server) *headersSent {
	h := &headersSent{of: map[s3test.Op][]http.Header{}}
	server.Inject(s3test.Rule{Match: func(r *s3test.Request) bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.of[r.Op] = append(h.of[r.Op], r.Header.Clone())
		return false
	}})
	return h
}

// encrypting is a client that adds what a bucket's policy demands, as S3 says.
type encrypting struct{ *s3.Client }

func (c encrypting) PutObject(ctx context.Context, in *s3.PutObjectInput, opts ...func(*s3.Options)) (*s3.PutObjectOutput, error) {
	in.ServerSideEncryption, in.SSEKMSKeyId = "aws:kms", aws.String("alias/invoices")
	return c.Client.PutObject(ctx, in, opts...)
}

// What a client adds is in every write: of the probe, and of each mode's calls. Its
// endpoint is known, so that a report on it counts.
func TestClientThatEncrypts(t *testing.T) {
	t.Parallel()
	server := newServer(t, &s3test.Options{ETags: s3test.ETagOpaque})
	server.Inject(s3test.Rule{Ops: puts, Match: func(r *s3test.Request) bool {
		return r.Header.Get("X-Amz-Server-Side-Encryption-Aws-Kms-Key-Id") != "alias/invoices"
	}, Fault: s3test.Respond(403)})
	plain := newClient(server)
	_, err := s3fence.Open(t.Context(), plain, bucketName, &s3fence.Options{Report: s3fence.KnownReport(plain, bucketName)})
	refused(t, err, guard.ReasonSetup) // the control
	client := encrypting{plain}
	b, err := s3fence.Open(t.Context(), client, bucketName, &s3fence.Options{Report: s3fence.KnownReport(client, bucketName)})
	must(t, err)
	eachMode(t, func(t *testing.T, mode s3fence.Mode) {
		o := objects(t, b, mode, nil)
		put(t, o, claim(5, "a"), "body")
		must(t, o.Raise(t.Context(), claim(6, "b"), key))
		want(t, o, "body", guard.Mark{Token: 6, LeaseID: "b"})
		must(t, o.Delete(t.Context(), claim(6, "b"), key))
		must(t, o.InsecureDelete(t.Context(), key))
	})
}

func TestObserver(t *testing.T) {
	t.Parallel()
	var events []guard.Event
	server := newServer(t, nil)
	b := open(t, server, &s3fence.Options{Observer: guard.ObserverFunc(func(_ context.Context, e guard.Event) { events = append(events, e) })})
	for _, mode := range []s3fence.Mode{s3fence.Sealed, s3fence.Pointer} {
		events = nil
		o := objects(t, b, mode, nil)
		name := s3fence.NameOf(mode)
		_ = o.Put(t.Context(), claim(5, "a"), name, nil, nil)
		_ = o.Put(t.Context(), claim(4, "a"), name, nil, nil)
		_ = o.Raise(t.Context(), claim(6, "b"), name)
		_ = o.Delete(t.Context(), claim(6, "c"), name)
		if len(events) != 4 {
			t.Fatalf("%s: %d events: %+v", name, len(events), events)
		}
		for i, want := range []guard.Event{
			{Op: guard.OpWrite, Mark: guard.Mark{Token: 5, LeaseID: "a"}},
			{Op: guard.OpWrite, Mark: guard.Mark{Token: 5, LeaseID: "a"}, Reason: guard.ReasonStale},
			{Op: guard.OpRaise, Mark: guard.Mark{Token: 6, LeaseID: "b"}},
			{Op: guard.OpWrite, Mark: guard.Mark{Token: 6, LeaseID: "b"}, Reason: guard.ReasonConflict},
		} {
			e := events[i]
			if e.Surface != "s3" || e.Op != want.Op || e.Reason != want.Reason || e.Mark != want.Mark || e.Duration <= 0 {
				t.Errorf("%s: event %d is %+v, want %+v", name, i, e, want)
			}
		}
	}
}
