package s3fence_test

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3/types"

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

// Each option is sent with every request that needs it: of each mode's write,
// raise, deletion, and of the probe.
func TestEncryptionAndChecksumsPassThrough(t *testing.T) {
	t.Parallel()
	kms := map[string]string{
		"X-Amz-Server-Side-Encryption": "aws:kms", "X-Amz-Server-Side-Encryption-Aws-Kms-Key-Id": "alias/invoices",
		"X-Amz-Server-Side-Encryption-Context": "e30=", "X-Amz-Server-Side-Encryption-Bucket-Key-Enabled": "true",
	}
	for name, c := range map[string]struct {
		e    s3fence.Encryption
		want map[s3test.Op]map[string]string
	}{
		"SSE-KMS": {s3fence.Encryption{Algorithm: "aws:kms", KMSKeyID: "alias/invoices", KMSContext: "e30=", BucketKey: true},
			map[s3test.Op]map[string]string{s3test.PutObject: kms}},
	} {
		t.Run(name, func(t *testing.T) {
			server := newServer(t, &s3test.Options{ETags: s3test.ETagOpaque})
			sent := record(server)
			b := open(t, server, &s3fence.Options{
				Encryption: c.e, ChecksumAlgorithm: types.ChecksumAlgorithmSha256, ExpectedBucketOwner: "123456789012",
			})
			eachMode(t, func(t *testing.T, mode s3fence.Mode) {
				o := objects(t, b, mode, nil)
				put(t, o, claim(5, "a"), "body")
				if err := o.Raise(t.Context(), claim(6, "b"), key); err != nil {
					t.Fatal(err)
				}
				content(t, o, key)
				if err := o.Delete(t.Context(), claim(6, "b"), key); err != nil {
					t.Fatal(err)
				}
				if err := o.InsecureDelete(t.Context(), key); err != nil {
					t.Fatal(err)
				}
			})
			for op, fields := range c.want {
				if len(sent.of[op]) == 0 {
					t.Errorf("no %s was sent", op)
				}
				for _, h := range sent.of[op] {
					for name, value := range fields {
						if h.Get(name) != value {
							t.Errorf("%s was sent with %s %q, want %q", op, name, h.Get(name), value)
						}
					}
				}
			}
			for op, all := range sent.of {
				for _, h := range all {
					if h.Get("X-Amz-Expected-Bucket-Owner") != "123456789012" {
						t.Errorf("%s was sent without the owner", op)
					}
				}
			}
			for _, h := range sent.of[s3test.PutObject] {
				if h.Get("X-Amz-Checksum-Sha256") == "" {
					t.Errorf("a PUT was sent without the checksum: %v", h)
				}
			}
		})
	}
}

// What may never be sent: a condition that any object meets, a copy.
func TestNeverSent(t *testing.T) {
	t.Parallel()
	server := newServer(t, &s3test.Options{ETags: s3test.ETagOpaque})
	sent := record(server)
	b := open(t, server, nil)
	eachMode(t, func(t *testing.T, mode s3fence.Mode) {
		o := objects(t, b, mode, nil)
		put(t, o, claim(5, "a"), "body")
		if err := o.Raise(t.Context(), claim(6, "b"), key); err != nil {
			t.Fatal(err)
		}
		if err := o.Delete(t.Context(), claim(6, "b"), key); err != nil {
			t.Fatal(err)
		}
		if err := o.InsecureDelete(t.Context(), key); err != nil {
			t.Fatal(err)
		}
	})
	for op, all := range sent.of {
		if strings.Contains(string(op), "Copy") {
			t.Errorf("%s was sent", op)
		}
		for _, h := range all {
			if h.Get("If-Match") == "*" || h.Get("X-Amz-Copy-Source") != "" {
				t.Errorf("%s was sent with %v", op, h)
			}
		}
	}
	for _, h := range sent.of[s3test.PutObject] {
		if h.Get("If-Match") == "" && h.Get("If-None-Match") == "" && h.Get("X-Amz-Meta-Fencing-Mode") != "" {
			t.Errorf("a write without condition: %v", h)
		}
	}
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
