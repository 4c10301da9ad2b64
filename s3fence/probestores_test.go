package s3fence_test

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/s3fence"
	"github.com/fencepost-go/fencepost/s3fence/s3test"
)

// limited lets one write at a time through, and turns the others away, as a limiter does.
type limited struct {
	next http.RoundTripper
	busy atomic.Bool
	says func(*http.Request) *http.Response
}

func (l *limited) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method != http.MethodPut {
		return l.next.RoundTrip(r)
	}
	body, err := io.ReadAll(r.Body) // racing writers wait for each other
	if err != nil {
		return nil, err
	}
	if !l.busy.CompareAndSwap(false, true) {
		return l.says(r), nil
	}
	defer l.busy.Store(false)
	again := r.Clone(r.Context())
	again.Body = io.NopCloser(bytes.NewReader(body))
	return l.next.RoundTrip(again)
}

// A race whose losers were turned away with another reason than their condition shows
// nothing about the store, which may be one that lets all through: Open refuses, and says so. The
// control is the same store without the limiter, which is refused for what it is.
func TestProbeOfARaceThatNeverMet(t *testing.T) {
	t.Parallel()
	for name, says := range map[string]func(*http.Request) *http.Response{
		"429": func(r *http.Request) *http.Response { return response(r, http.StatusTooManyRequests, "") },
		"SlowDown": func(r *http.Request) *http.Response {
			return response(r, http.StatusServiceUnavailable, "<Error><Code>SlowDown</Code></Error>")
		},
	} {
		server := newServer(t, nil)
		// It is told when to race, so that the limiter alone keeps the writers apart.
		var holding atomic.Int32
		all := make(chan struct{})
		server.Inject(s3test.Rule{Ops: puts, Match: raced, Fault: s3test.Fault{Between: func(*s3test.Request) { holding.Add(1); <-all }}})
		turned := atomic.Int32{}
		via := &limited{next: server.HTTPClient().Transport, says: func(r *http.Request) *http.Response {
			if turned.Add(1)%(s3fence.GateWriters-1) == 0 { // all the others: the one may end
				all <- struct{}{}
			}
			return says(r)
		}}
		client := newClient(server, func(o *s3.Options) { o.HTTPClient = &http.Client{Transport: via} })
		_, err := s3fence.Probe(t.Context(), client, bucketName, nil)
		if !errors.Is(err, guard.ErrUnavailable) || errors.Is(err, s3fence.ErrUnsuitableStore) || !strings.Contains(err.Error(), "limiter") {
			t.Errorf("%s: %v", name, err)
		}
		close(all)
	}
	server := newServer(t, nil)
	server.Inject(meeting())
	if _, err := s3fence.Probe(t.Context(), newClient(server), bucketName, nil); !errors.Is(err, s3fence.ErrUnsuitableStore) {
		t.Errorf("without the limiter: %v", err)
	}
}

// The report says how many rivals met.
func TestReportSaysHowManyMet(t *testing.T) {
	t.Parallel()
	server := newServer(t, nil)
	if text := report(t, newClient(server), nil).String(); !strings.Contains(text, "in each, 15 of its rivals or more met it") {
		t.Errorf("the report is\n%s", text)
	}
}

// Two gateways, each of which thinks that it has the bucket for itself: one client sees
// nothing of it, two do.
func TestProbeThroughTwoGateways(t *testing.T) {
	t.Parallel()
	one, other := newServer(t, nil), newServer(t, nil)
	report(t, newClient(one), nil)
	_, err := s3fence.Open(t.Context(), newClient(one), bucketName, &s3fence.Options{ProbeClients: []s3fence.S3{newClient(other)}})
	if !errors.Is(err, s3fence.ErrUnsuitableStore) {
		t.Errorf("Open = %v", err)
	}
	r := report(t, newClient(one), &s3fence.Options{ProbeClients: []s3fence.S3{newClient(one)}})
	if !strings.Contains(r.String(), "by 2 clients") {
		t.Errorf("the report is\n%s", r)
	}
	_, err = s3fence.Open(t.Context(), newClient(one), bucketName, &s3fence.Options{ProbeClients: []s3fence.S3{nil}})
	invalid(t, err, "Options.ProbeClients")
}

// Names that stand for several stores, or for something that changes what a store responds,
// are refused before anything is sent; one bucket's own access point is not.
func TestNamesOfSeveralStores(t *testing.T) {
	t.Parallel()
	server := newServer(t, nil)
	global := newClient(server, func(o *s3.Options) {
		o.BaseEndpoint = aws.String("https://mfzwi23gnjvgw.mrap.accesspoint.s3-global.amazonaws.com")
	})
	for name, c := range map[string]struct {
		client *s3.Client
		says   string
	}{
		"arn:aws:s3::123456789012:accesspoint/mfzwi23gnjvgw.mrap":    {newClient(server), "Multi-Region Access Point"},
		"arn:aws-cn:s3::123456789012:accesspoint:mfzwi23gnjvgw.mrap": {newClient(server), "Multi-Region Access Point"},
		"mfzwi23gnjvgw.mrap": {newClient(server), "Multi-Region Access Point"},
		bucketName:           {global, "Multi-Region Access Point"},
		"arn:aws:s3-object-lambda:eu-west-1:123456789012:accesspoint/resizing": {newClient(server), "Object Lambda"},
		"resizing-abcdef--ol-s3":                            {newClient(server), "Object Lambda"},
		"arn:aws:s3:eu-west-1:123456789012:accesspoint/own": {newClient(server), ""},
		"own-abcdef-s3alias":                                {newClient(server), ""},
	} {
		for what, open := range map[string]func() error{
			"Open": func() error {
				_, err := s3fence.Open(t.Context(), c.client, name, &s3fence.Options{InsecureSkipProbe: true})
				return err
			},
			"NewReader": func() error { _, err := s3fence.NewReader(c.client, name, nil); return err },
			"Probe": func() error {
				if c.says == "" {
					return nil
				}
				_, err := s3fence.Probe(t.Context(), c.client, name, nil)
				return err
			},
		} {
			err := open()
			if c.says == "" {
				must(t, err)
				continue
			}
			if invalid(t, err, "bucket"); err != nil && !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s of %s: %v", what, name, err)
			}
		}
	}
	if n := server.Count(); n != 0 {
		t.Errorf("%d requests were sent", n)
	}
}

// A store that takes If-Match in its own way only is refused with the way.
func TestProbeNamesTheQuotes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		refuses func(match string) bool
		says    string
	}{
		"without quotes only": {func(match string) bool { return strings.HasPrefix(match, `"`) }, "takes If-Match only without the quotes"},
		"never":               {func(match string) bool { return match != "" }, "refuses every If-Match"},
	} {
		server := newServer(t, nil)
		server.Inject(s3test.Rule{Ops: puts, Match: func(r *s3test.Request) bool { return c.refuses(r.Header.Get("If-Match")) }, Fault: s3test.Respond(412)})
		_, err := s3fence.Open(t.Context(), newClient(server), bucketName, nil)
		if !errors.Is(err, s3fence.ErrUnsuitableStore) || !errors.Is(err, guard.ErrSetup) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: Open = %v", name, err)
		}
	}
}

// Over TLS, where applications are, the SDK sends a body in chunks with a checksum behind
// them, and not in one: the probe, and all that a writer does, with lost responses too.
func TestOverTLS(t *testing.T) {
	t.Parallel()
	server := newServer(t, &s3test.Options{TLS: true, ETags: s3test.ETagOpaque})
	var chunked, whole atomic.Int64
	server.Inject(s3test.Rule{Ops: puts, Match: func(r *s3test.Request) bool {
		if strings.HasPrefix(r.Header.Get("X-Amz-Content-Sha256"), "STREAMING-") && r.Header.Get("X-Amz-Checksum-Crc32") != "" {
			chunked.Add(1)
		} else if len(r.Body) > 0 {
			whole.Add(1)
		}
		return false
	}})
	client := newClient(server, func(o *s3.Options) { o.RequestChecksumCalculation = aws.RequestChecksumCalculationWhenSupported })
	b, err := s3fence.Open(t.Context(), client, bucketName, nil)
	must(t, err)
	large := string(bytes.Repeat([]byte("0123456789abcdef"), 1<<14))
	eachMode(t, func(t *testing.T, mode s3fence.Mode) {
		o := objects(t, b, mode, nil)
		must(t, o.InsecureDelete(t.Context(), key))
		for token, body := range []string{1: "", 2: "small", 3: large} {
			if token == 0 {
				continue
			}
			for _, fault := range []s3test.Fault{{}, s3test.LoseResponse(), s3test.LoseRequest()} {
				if fault.Lose {
					server.Inject(firstPut(fault))
				}
				before := len(server.History(bucketName, key))
				must(t, o.Put(t.Context(), claim(guard.Token(token), "a"), key, strings.NewReader(body), &s3fence.Headers{Metadata: map[string]string{"tenant": "123"}}))
				if n := len(server.History(bucketName, key)) - before; n != 1 {
					t.Errorf("%d writes took effect", n)
				}
				want(t, o, body, guard.Mark{Token: guard.Token(token), LeaseID: "a"})
			}
		}
		must(t, o.Raise(t.Context(), claim(4, "b"), key))
		want(t, o, large, guard.Mark{Token: 4, LeaseID: "b"})
		refused(t, o.Put(t.Context(), claim(3, "a"), key, strings.NewReader("stale"), nil), guard.ReasonStale)
		if at := stored(t, server, key); at.Header.Get("Content-Encoding") != "" {
			t.Errorf("the framing is stored: %q", at.Header)
		}
		must(t, o.Delete(t.Context(), claim(5, "c"), key))
		refused(t, got(t, o, key), guard.ReasonNotFound)
	})
	if chunked.Load() < 100 || whole.Load() != 0 {
		t.Errorf("%d bodies came in chunks, %d did not", chunked.Load(), whole.Load())
	}
	if !strings.HasPrefix(server.URL(), "https://") {
		t.Error("it is not TLS")
	}
}
