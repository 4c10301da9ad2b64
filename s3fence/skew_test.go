package s3fence_test

import (
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/s3fence"
	"github.com/fencepost-go/fencepost/s3fence/s3test"
)

// skewed is a store whose clock is ahead, as Amazon S3 answers then.
type skewed struct {
	under   *http.Client
	ahead   time.Duration
	refused atomic.Int64
}

func (s *skewed) Do(r *http.Request) (*http.Response, error) {
	now := time.Now().Add(s.ahead)
	signed, err := time.Parse("20060102T150405Z", r.Header.Get("X-Amz-Date"))
	if err != nil {
		return nil, err
	}
	if now.Sub(signed).Abs() >= 15*time.Minute {
		s.refused.Add(1)
		out := &http.Response{StatusCode: http.StatusForbidden, Request: r, Header: http.Header{}, Body: http.NoBody}
		out.Header.Set("Date", now.UTC().Format(http.TimeFormat))
		if r.Method != http.MethodHead {
			out.Body = io.NopCloser(strings.NewReader("<Error><Code>RequestTimeTooSkewed</Code></Error>"))
		}
		return out, nil
	}
	out, err := s.under.Do(r)
	if err == nil {
		out.Header.Set("Date", now.UTC().Format(http.TimeFormat))
	}
	return out, err
}

// A machine whose clock is an hour behind opens the bucket and writes: the
// SDK learns the store's time from the first refusal, and the write is
// repeated here, because the SDK may not.
func TestSkewedClock(t *testing.T) {
	server := newServer(t, nil)
	clock := &skewed{under: server.HTTPClient(), ahead: time.Hour}
	client := newClient(server, func(o *s3.Options) { o.HTTPClient = clock })
	if _, err := s3fence.Open(t.Context(), client, bucketName, nil); err != nil {
		t.Fatal(err)
	}
	if n := clock.refused.Load(); n == 0 || n > 2 {
		t.Errorf("%d requests were refused for their time", n)
	}

	// The clock steps back while the process runs, and the state is known, so
	// that a conditional write is the first to learn of it.
	b := open(t, server, &s3fence.Options{InsecureSkipProbe: true}).Handle(client, bucketName)
	o := objects(t, b, s3fence.Sealed, nil)
	put(t, o, claim(5, "a"), "x")
	clock.ahead = -time.Hour
	put(t, o, claim(5, "a"), "y")
	want(t, o, "y", guard.Mark{Token: 5, LeaseID: "a"})
	if n := len(server.History(bucketName, key)); n != 2 {
		t.Errorf("%d writes took effect, want 2", n)
	}
}

// Where the SDK does not correct its clock the error says what is wrong, and
// nothing is written.
func TestSkewedClockUncorrected(t *testing.T) {
	server := newServer(t, nil)
	client := newClient(server, func(o *s3.Options) {
		o.HTTPClient = &skewed{under: server.HTTPClient(), ahead: time.Hour}
		o.DisableClockSkewCorrection = true
	})
	b := open(t, server, &s3fence.Options{InsecureSkipProbe: true}).Handle(client, bucketName)
	err := objects(t, b, s3fence.Sealed, nil).Put(t.Context(), claim(5, "a"), key, strings.NewReader("x"), nil)
	refused(t, err, guard.ReasonUnavailable)
	if err == nil || !strings.Contains(err.Error(), "clock") {
		t.Errorf("the error does not speak of the clock: %v", err)
	}
	if n := len(server.History(bucketName, key)); n != 0 {
		t.Errorf("%d writes took effect", n)
	}
}

// The caller's own settings cannot turn the SDK's retries on for a conditional
// write, nor can a gateway's retry, which answers 412 for what it has applied,
// make our own success a defeat.
func TestCallersRetriesStayOff(t *testing.T) {
	server := newServer(t, nil)
	client := newClient(server, func(o *s3.Options) {
		o.Retryer = retry.AddWithMaxAttempts(retry.NewAdaptiveMode(), 10)
		o.RetryMaxAttempts = 10
	})
	b := open(t, server, &s3fence.Options{InsecureSkipProbe: true}).Handle(client, bucketName)
	o := objects(t, b, s3fence.Sealed, nil)
	put(t, o, claim(5, "a"), "x")
	for name, c := range map[string]struct {
		fault s3test.Fault
		puts  int
	}{
		"response lost":      {s3test.LoseResponse(), 1}, // seen by reading; the SDK's retry would be a second PUT
		"503 though applied": {s3test.AnswerApplied(http.StatusServiceUnavailable), 1},
		"412 though applied": {s3test.AnswerApplied(http.StatusPreconditionFailed), 1},
		"404 though applied": {s3test.AnswerApplied(http.StatusNotFound), 1},
	} {
		t.Run(name, func(t *testing.T) {
			server.ResetCounts()
			before := len(server.History(bucketName, key))
			server.Inject(s3test.Rule{Ops: []s3test.Op{s3test.PutObject}, Key: key, Times: 1, Fault: c.fault})
			put(t, o, claim(5, "a"), name)
			if n := server.Count(s3test.PutObject); n != c.puts {
				t.Errorf("%d PUTs were sent, want %d", n, c.puts)
			}
			if n := len(server.History(bucketName, key)) - before; n != 1 {
				t.Errorf("%d writes took effect, want 1", n)
			}
			want(t, o, name, guard.Mark{Token: 5, LeaseID: "a"})
		})
	}
}
