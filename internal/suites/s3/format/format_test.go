// Package format checks that s3fence/FORMAT.md is true: fencepost_s3.py was written from
// it, with nothing but Python's standard library. What one side writes, the other reads; what
// one side refuses, the other refuses.
package format

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/s3fence"
	"github.com/fencepost-go/fencepost/s3fence/s3test"
)

// Where s3fence keeps the program, the vectors and the cases.
const (
	program = "../../../../s3fence/testdata/fencepost_s3.py"
	vectors = "../../../../s3fence/testdata/vectors.json"
	cases   = "../../../../s3fence/testdata/cases.json"

	bucketName = s3test.DefaultBucket
	key        = "tenant_123/2026-04.csv"
)

func claim(token guard.Token, lease string) guard.Claim {
	return guard.Claim{Resource: "tenant_123:billing-close:2026-04", Token: token, LeaseID: lease}
}

// handle is what Objects and Pointers have in common.
type handle interface {
	Put(context.Context, guard.Claim, string, []byte, *s3fence.Headers) error
	Get(context.Context, string) (*s3fence.Object, error)
	Mark(context.Context, string) (guard.Mark, error)
	Delete(context.Context, guard.Claim, string) error
}

// pointerHandle is Pointers with bodies in memory.
type pointerHandle struct{ *s3fence.Pointers }

func (p pointerHandle) Put(ctx context.Context, claim guard.Claim, key string, body []byte, h *s3fence.Headers) error {
	return p.Pointers.Put(ctx, claim, key, bytes.NewReader(body), h)
}

// open returns the objects of a kind, in a process that has just started. Every ETag of
// the server is new, which is what Plain needs.
func open(t *testing.T, server *s3test.Server, kind string) handle {
	t.Helper()
	b, err := s3fence.Open(t.Context(), server.Client(), bucketName, &s3fence.Options{InsecureSkipProbe: true})
	testkit.Must(t, err)
	opts := &s3fence.ObjectsOptions{InsecureAnyResource: true}
	if kind == "pointer" {
		o, err := b.Pointers(opts)
		testkit.Must(t, err)
		return pointerHandle{o}
	}
	mode := map[string]s3fence.Mode{"sealed": s3fence.Sealed, "gzip": s3fence.SealedGzip, "plain": s3fence.Plain}[kind]
	opts.BodiesNeverRepeat = mode == s3fence.Plain
	o, err := b.Objects(mode, opts)
	testkit.Must(t, err)
	return o
}

func newServer(t *testing.T) *s3test.Server {
	return s3test.New(t, &s3test.Options{ETags: s3test.ETagOpaque})
}

func stored(t *testing.T, server *s3test.Server) s3test.Object {
	t.Helper()
	o, ok := server.Object(bucketName, key)
	if !ok {
		t.Fatal("no object is stored")
	}
	return o
}

func put(t *testing.T, o handle, c guard.Claim, body string) {
	t.Helper()
	testkit.Must(t, o.Put(t.Context(), c, key, []byte(body), nil))
}

// holds checks what Go reads.
func holds(t *testing.T, server *s3test.Server, kind, body string, mark guard.Mark) {
	t.Helper()
	object, err := open(t, server, kind).Get(t.Context(), key)
	testkit.Must(t, err)
	defer object.Body.Close()
	if got, err := io.ReadAll(object.Body); err != nil || string(got) != body || object.Mark != mark {
		t.Errorf("Go reads %.40q at %+v, %v; want %.40q at %+v", got, object.Mark, err, body, mark)
	}
}

// python runs a program with Python 3, which `.ci/setup tests` installs.
func python(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	path, err := exec.LookPath("python3")
	if err != nil {
		t.Fatalf("this test needs python3, which .ci/setup tests installs: %v", err)
	}
	cmd := exec.Command(path, args...)
	cmd.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1", "PYTHONIOENCODING=utf-8")
	cmd.Stderr = os.Stderr
	return cmd
}

// peer is the Python program, queried line by line.
type peer struct {
	t   *testing.T
	in  io.Writer
	out *bufio.Reader
}

func newPeer(t *testing.T) *peer {
	t.Helper()
	cmd := python(t, program)
	in, err := cmd.StdinPipe()
	testkit.Must(t, err)
	out, err := cmd.StdoutPipe()
	testkit.Must(t, err)
	if err := cmd.Start(); err != nil {
		t.Fatalf("python3, which .ci/setup tests installs, does not start: %v", err)
	}
	t.Cleanup(func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("the Python program: %v", err)
		}
	})
	return &peer{t: t, in: in, out: bufio.NewReader(out)}
}

// fields is a JSON object.
type fields = map[string]any

// ask sends a request and fills answer.
func (p *peer) ask(request, answer any) {
	p.t.Helper()
	line, err := json.Marshal(request)
	if err != nil {
		p.t.Fatal(err)
	}
	if _, err := p.in.Write(append(line, '\n')); err != nil {
		p.t.Fatal(err)
	}
	line, err = p.out.ReadBytes('\n')
	if err != nil {
		p.t.Fatalf("the Python program ended: %v", err)
	}
	if err := json.Unmarshal(line, answer); err != nil {
		p.t.Fatalf("%s: %v", line, err)
	}
}

// formatState is what both sides report about an object.
type formatState struct {
	Kind   string      `json:"kind"`
	Token  json.Number `json:"token,omitempty"`
	Lease  string      `json:"lease"`
	Write  string      `json:"write"`
	Recent []string    `json:"recent"`
	Cut    bool        `json:"cut"`
}

func (s *formatState) mark() guard.Mark {
	n, _ := strconv.ParseInt(s.Token.String(), 10, 64)
	return guard.Mark{Token: guard.Token(n), LeaseID: s.Lease}
}

// reading is the Python program's view of an object.
type reading struct {
	State   formatState `json:"state"`
	Body    []byte      `json:"body"`
	Damaged string      `json:"damaged"`
}

func (p *peer) read(key string, body []byte, metadata map[string]string) (r reading) {
	p.t.Helper()
	p.ask(fields{"do": "verify", "key": key, "object": base64.StdEncoding.EncodeToString(body), "metadata": metadata}, &r)
	return r
}

type sealedBytes struct {
	Object   []byte            `json:"object"`
	Metadata map[string]string `json:"metadata"`
}

// seal makes an object. With pack it packs the body first.
func (p *peer) seal(key string, s formatState, body []byte, user map[string]string, pack bool) (out sealedBytes) {
	p.t.Helper()
	p.ask(fields{"do": "seal", "key": key, "state": s, "body": base64.StdEncoding.EncodeToString(body), "metadata": user, "pack": pack}, &out)
	return out
}

// gunzip unpacks with Python's gzip module.
func (p *peer) gunzip(file []byte) []byte {
	p.t.Helper()
	var out struct{ Body []byte }
	p.ask(fields{"do": "gunzip", "object": base64.StdEncoding.EncodeToString(file)}, &out)
	return out.Body
}

// Python reads the vectors as s3fence does, whose own test is TestFormatVectors.
func TestVectorsInPython(t *testing.T) {
	t.Parallel()
	if out, err := python(t, program, "check", vectors).Output(); err != nil {
		t.Errorf("%s: %v", out, err)
	}
}

func formatBody(rng *rand.Rand) []byte {
	body := make([]byte, []int{0, 1, 100, 5000}[rng.IntN(4)])
	for i := range body {
		body[i] = byte(rng.Uint32())
	}
	return body
}

func formatLease(rng *rand.Rand) string {
	letters := []rune("abc XYZ019-._~!*'();:@&=+$,/?#[]%\"\\<>éключ漢🔒")
	var out strings.Builder
	for range rng.IntN(20) {
		out.WriteRune(letters[rng.IntN(len(letters))])
	}
	return out.String()
}

// Python reads whatever Go wrote, and sealing the same again gives the same bytes.
func TestFormatGoWritesPythonReads(t *testing.T) {
	t.Parallel()
	p := newPeer(t)
	for _, kind := range []string{"sealed", "gzip", "plain", "pointer"} {
		t.Run(kind, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(1, 2))
			server := newServer(t)
			o := open(t, server, kind)
			var writes []string
			for i := range 40 {
				c := claim(guard.Token(i/2+1), "")
				if i%2 == 0 {
					c.LeaseID = formatLease(rng)
				} else {
					m, err := o.Mark(t.Context(), key)
					testkit.Must(t, err)
					c.LeaseID = m.LeaseID
				}
				body := formatBody(rng)
				user := map[string]string{"owner": "billing"}
				deleted := i == 35
				var err error
				if deleted {
					err = o.Delete(t.Context(), c, key)
				} else {
					err = o.Put(t.Context(), c, key, body, &s3fence.Headers{Metadata: user})
				}
				testkit.Must(t, err)
				at := stored(t, server)
				r := p.read(key, at.Body, at.Metadata)
				wantKind := kind
				if deleted {
					wantKind = "tombstone"
				}
				if r.Damaged != "" || r.State.Kind != wantKind || r.State.mark() != (guard.Mark{Token: c.Token, LeaseID: c.LeaseID}) {
					t.Fatalf("write %d: Python reads %+v, want %+v", i, r, c)
				}
				if len(writes) > 0 && (len(r.State.Recent) == 0 || r.State.Recent[0] != writes[len(writes)-1]) {
					t.Errorf("write %d: recent %q, want %q first", i, r.State.Recent, writes[len(writes)-1])
				}
				writes = append(writes, r.State.Write)
				got := r.Body
				if kind == "gzip" && !deleted {
					// A reader that knows nothing of this sees the same.
					got = p.gunzip(at.Body)
					if inner := p.gunzip(r.Body); !bytes.Equal(inner, got) {
						t.Errorf("write %d: the object unpacks to %d bytes, its body to %d", i, len(got), len(inner))
					}
				}
				if kind != "pointer" && !deleted && !bytes.Equal(got, body) {
					t.Errorf("write %d: Python reads another body", i)
				}
				kept := maps.Clone(at.Metadata)
				maps.DeleteFunc(kept, func(name, _ string) bool { return strings.HasPrefix(name, "fencing-") })
				if again := p.seal(key, r.State, r.Body, kept, false); !bytes.Equal(again.Object, at.Body) || !maps.Equal(again.Metadata, at.Metadata) {
					t.Errorf("write %d: sealed again by Python it is\n%.200q %v, not\n%.200q %v", i, again.Object, again.Metadata, at.Body, at.Metadata)
				}
			}
		})
	}
}

// A writer in Python takes over from one in Go, and the other way around; the
// stale writer is refused each time.
func TestFormatWritersTakeTurns(t *testing.T) {
	t.Parallel()
	p := newPeer(t)
	for _, kind := range []string{"sealed", "gzip", "plain"} {
		t.Run(kind, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(3, 4))
			server := newServer(t)
			o := open(t, server, kind)
			client := server.Client()
			for i := range 40 {
				token := guard.Token(2*i + 1)
				lease, body := formatLease(rng), formatBody(rng)
				testkit.Must(t, o.Put(t.Context(), claim(token, lease), key, body, nil))
				// Python's turn: read, decide, write on condition of what was read.
				at := stored(t, server)
				r := p.read(key, at.Body, at.Metadata)
				if got := p.decide("SameOrNewer", r.State.mark(), claim(token-1, lease)); got != "stale" {
					t.Errorf("Python says %q to the older token", got)
				}
				var next struct {
					State formatState `json:"state"`
				}
				lease, body = formatLease(rng), formatBody(rng)
				p.ask(fields{
					"do": "follow", "base": r.State, "kind": kind, "token": int64(token + 1), "lease": lease, "write": fmt.Sprintf("%032x", i+1),
				}, &next)
				made := p.seal(key, next.State, body, map[string]string{"owner": "billing"}, kind == "gzip")
				_, err := client.PutObject(t.Context(), &s3.PutObjectInput{
					Bucket: aws.String(bucketName), Key: aws.String(key), IfMatch: &at.ETag, Body: bytes.NewReader(made.Object), Metadata: made.Metadata,
				})
				testkit.Must(t, err)
				// Go's remembered state is out of date, so it reads what Python wrote.
				if err := o.Put(t.Context(), claim(token, "late"), key, []byte("stale"), nil); !errors.Is(err, guard.ErrStale) {
					t.Errorf("Go admits the older token: %v", err)
				}
				holds(t, server, kind, string(body), guard.Mark{Token: token + 1, LeaseID: lease})
			}
			r := p.read(key, stored(t, server).Body, stored(t, server).Metadata)
			if limit := map[string]int{"sealed": 32, "gzip": 32, "plain": 8}[kind]; len(r.State.Recent) != limit || !r.State.Cut {
				t.Errorf("%d recent writes, cut %v; want %d", len(r.State.Recent), r.State.Cut, limit)
			}
		})
	}
}

func (p *peer) decide(rule string, mark guard.Mark, c guard.Claim) string {
	p.t.Helper()
	var answer struct{ Reason string }
	p.ask(fields{
		"do": "decide", "rule": rule,
		"mark":  fields{"token": int64(mark.Token), "lease": mark.LeaseID},
		"claim": fields{"token": int64(c.Token), "lease": c.LeaseID},
	}, &answer)
	return answer.Reason
}

func TestFormatDecision(t *testing.T) {
	t.Parallel()
	p := newPeer(t)
	for name, rule := range map[string]guard.Rule{"SameOrNewer": guard.SameOrNewer, "OncePerToken": guard.OncePerToken} {
		for _, mark := range []guard.Mark{{}, {Token: 5}, {Token: 5, LeaseID: "a"}, {Token: guard.MaxToken, LeaseID: "é"}} {
			for _, token := range []guard.Token{1, 4, 5, 6, guard.MaxToken - 1, guard.MaxToken} {
				for _, lease := range []string{"", "a", "A", "e\u0301", "é"} {
					want := string(guard.ReasonOf(guard.Decide(rule, mark, claim(token, lease))))
					if got := p.decide(name, mark, claim(token, lease)); got != want {
						t.Errorf("%s, mark %+v, claim %d %q: Python %q, Go %q", name, mark, token, lease, got, want)
					}
				}
			}
		}
	}
}

// Each side detects every changed byte and every cut in a sealed object.
func TestFormatDamageIsRefused(t *testing.T) {
	t.Parallel()
	p := newPeer(t)
	for _, kind := range []string{"sealed", "gzip"} {
		t.Run(kind, func(t *testing.T) {
			server := newServer(t)
			o := open(t, server, kind)
			put(t, o, claim(4, "a"), "earlier")
			put(t, o, claim(5, "a"), "body")
			good := stored(t, server)
			client := server.Client()
			store := func(object []byte) {
				t.Helper()
				_, err := client.PutObject(t.Context(), &s3.PutObjectInput{
					Bucket: aws.String(bucketName), Key: aws.String(key), Body: bytes.NewReader(object), Metadata: good.Metadata,
				})
				testkit.Must(t, err)
			}
			try := func(what string, object []byte) {
				t.Helper()
				if r := p.read(key, object, good.Metadata); r.Damaged == "" {
					t.Errorf("%s: Python reads %+v", what, r)
				}
				store(object)
				got, err := open(t, server, kind).Get(t.Context(), key)
				if !errors.As(err, new(*s3fence.DamagedError)) {
					t.Errorf("%s: Go reads %+v, %v", what, got, err)
				}
			}
			for i := range good.Body {
				other := bytes.Clone(good.Body)
				other[i] ^= 1 << (i % 8)
				try(fmt.Sprint("byte ", i, " is another"), other)
				try(fmt.Sprint("cut at ", i), good.Body[:i])
				try(fmt.Sprint("without the first ", i+1), good.Body[i+1:])
			}
			// The control: an unchanged object is read.
			store(good.Body)
			holds(t, server, kind, "body", guard.Mark{Token: 5, LeaseID: "a"})
			if r := p.read(key, good.Body, good.Metadata); r.Damaged != "" {
				t.Errorf("Python reads %+v", r)
			}
		})
	}
}

// Python judges the format's cases as Go does.
func TestFormatCasesInPython(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(cases)
	testkit.Must(t, err)
	var cases []fields
	testkit.Must(t, json.Unmarshal(text, &cases))
	p := newPeer(t)
	for _, c := range cases {
		var got fields
		p.ask(c, &got)
		if got["verdict"] != c["verdict"] || got["mixed"] != c["mixed"] {
			t.Errorf("%s: %v, want %v %v", c["name"], got, c["verdict"], c["mixed"])
		}
	}
}

// doubling is something between a writer and its store that sends each PUT twice and
// passes on the second response. between runs after the first.
type doubling struct {
	to      string
	between func()
}

func (d *doubling) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	var answer *http.Response
	for sending := range 2 {
		out, err := http.NewRequestWithContext(r.Context(), r.Method, d.to+r.URL.Path, bytes.NewReader(body))
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		out.Header = r.Header.Clone()
		if answer, err = http.DefaultTransport.RoundTrip(out); err != nil {
			panic(http.ErrAbortHandler)
		}
		defer answer.Body.Close()
		if r.Method != http.MethodPut {
			break
		}
		if sending == 0 && d.between != nil && answer.StatusCode == http.StatusOK {
			d.between()
		}
	}
	maps.Copy(w.Header(), answer.Header)
	w.WriteHeader(answer.StatusCode)
	_, _ = io.Copy(w, answer.Body)
}

// A writer made from FORMAT.md behind something that sends each request twice, or that
// loses responses: each verdict is true, and each write takes effect once. One that
// trusts the first 412 is the control.
func TestFormatWriterBehindADoubledSender(t *testing.T) {
	t.Parallel()
	p := newPeer(t)
	for name, c := range map[string]struct {
		rule     string
		trusting bool
		overtake bool // another holder writes between the two sendings
		want     string
		writes   int
	}{
		"once per token":          {"OncePerToken", false, false, "", 1},
		"same or newer":           {"SameOrNewer", false, false, "", 1},
		"overtaken":               {"SameOrNewer", false, true, "", 2},
		"control: once per token": {"OncePerToken", true, false, "spent", 1},
		"control: overtaken":      {"SameOrNewer", true, true, "stale", 2},
		"control: written again":  {"SameOrNewer", true, false, "", 36}, // until its list of writes is full of itself
	} {
		server := s3test.New(t, nil)
		o := open(t, server, "sealed")
		d := &doubling{to: server.URL()}
		if c.overtake {
			d.between = func() { put(t, o, claim(9, "z"), "newer") }
		}
		proxy := httptest.NewServer(d)
		var answer struct{ Reason string }
		p.ask(fields{
			"do": "put", "url": proxy.URL + "/" + bucketName + "/" + key, "key": key, "rule": c.rule, "trusting": c.trusting,
			"claim": fields{"token": 5, "lease": "a"}, "body": base64.StdEncoding.EncodeToString([]byte("body")),
		}, &answer)
		proxy.Close()
		if n := len(server.History(bucketName, key)); answer.Reason != c.want || n != c.writes {
			t.Errorf("%s: told %q after %d writes, want %q after %d", name, answer.Reason, n, c.want, c.writes)
		}
	}
	for name, script := range map[string][]s3test.Fault{
		"lost": {s3test.LoseResponse()}, "not received": {s3test.LoseRequest()}, "busy, though applied": {s3test.RespondApplied(503)},
		"lost twice": {s3test.LoseRequest(), s3test.LoseResponse()}, "a race": {s3test.Respond(409)},
	} {
		server := s3test.New(t, nil)
		server.Inject(s3test.Rule{Ops: []s3test.Op{s3test.PutObject}, Script: script})
		var answer struct{ Reason string }
		p.ask(fields{
			"do": "put", "url": server.URL() + "/" + bucketName + "/" + key, "key": key, "rule": "OncePerToken",
			"claim": fields{"token": 5, "lease": "a"}, "body": base64.StdEncoding.EncodeToString([]byte("body")),
		}, &answer)
		if n := len(server.History(bucketName, key)); answer.Reason != "" || n != 1 {
			t.Errorf("%s: told %q after %d writes", name, answer.Reason, n)
		}
		holds(t, server, "sealed", "body", guard.Mark{Token: 5, LeaseID: "a"})
	} // A store that refuses a condition which its reads show to be true may hide the write.
	for name, script := range map[string][]s3test.Fault{
		"contradicted": {s3test.Respond(412), s3test.Respond(412), s3test.Respond(412)}, "contradicted, then refused": {s3test.Respond(412), s3test.Respond(403)},
	} {
		server := s3test.New(t, nil)
		server.Inject(s3test.Rule{Ops: []s3test.Op{s3test.PutObject}, Script: script})
		var answer struct{ Reason string }
		p.ask(fields{
			"do": "put", "url": server.URL() + "/" + bucketName + "/" + key, "key": key, "rule": "OncePerToken",
			"claim": fields{"token": 5, "lease": "a"}, "body": base64.StdEncoding.EncodeToString([]byte("body")),
		}, &answer)
		if answer.Reason != "outcome_unknown" {
			t.Errorf("%s: told %q", name, answer.Reason)
		}
	}
}
