//go:build unix

package s3suite

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/longtest"
	"github.com/fencepost-go/fencepost/internal/suites/s3/gateway"
	"github.com/fencepost-go/fencepost/internal/suites/s3/s3conform"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/s3fence"
	"github.com/fencepost-go/fencepost/s3fence/s3test"
)

// realStore is a store that the tests did not write.
type realStore struct {
	name    string
	correct bool
	// start runs it, with an empty bucket. Each call returns a new client, like
	// that of a new process, over the given transport, or over one of its own if
	// that is nil: versitygw 1.7 leaves connections in a bad state when it
	// refuses a body that it has not read.
	start func(t *testing.T) func(http.RoundTripper) *s3.Client
}

func product(p gateway.Product, correct bool) realStore {
	return realStore{p.Name, correct, func(t *testing.T) func(http.RoundTripper) *s3.Client {
		g := gateway.Start(t, p)
		client := func(via http.RoundTripper) *s3.Client {
			return s3.New(gatewayClient(g, g.URL).Options(), func(o *s3.Options) {
				if via != nil {
					o.HTTPClient = &http.Client{Transport: via}
				}
			})
		}
		createBucket(t, client(nil))
		return client
	}}
}

// gofakes3Store runs in the test's process.
var gofakes3Store = realStore{"gofakes3 v1.2.0", false, func(t *testing.T) func(http.RoundTripper) *s3.Client {
	server := httptest.NewServer(gofakes3.New(s3mem.New()).Server())
	t.Cleanup(server.Close)
	client := func(via http.RoundTripper) *s3.Client {
		return gatewayClient(&gateway.Gateway{Region: "us-east-1", AccessKeyID: "id", SecretAccessKey: "secret"}, server.URL, func(o *s3.Options) {
			if via != nil {
				o.HTTPClient = &http.Client{Transport: via}
			}
		})
	}
	createBucket(t, client(nil))
	return client
}}

// stores lists all of them. Building MinIO takes as long as the rest of the
// suite, so only the long form has it.
func stores() []realStore {
	all := []realStore{
		product(gateway.Versitygw, true),
		{"s3test", true, func(t *testing.T) func(http.RoundTripper) *s3.Client {
			server := newServer(t, s3test.Options{})
			return func(via http.RoundTripper) *s3.Client {
				return sdk(server, func(o *s3.Options) {
					if via != nil {
						o.HTTPClient = &http.Client{Transport: via}
					}
				})
			}
		}},
		product(gateway.RacingVersitygw, false),
		product(gateway.Rclone, false),
		product(gateway.RcloneFullCache, false),
		gofakes3Store,
	}
	if longtest.Long {
		all = append(all, product(gateway.MinIO, true))
	}
	return all
}

// TestProbe: a correct store is accepted each time; one that breaks a precondition
// is refused. A store that only races may be accepted, since nobody can tell a real
// store when to race: on a busy machine versitygw 1.7 was in 2 probes of 21. Such a
// store is probed until it is refused, and never in 50 probes is not luck. The tests
// of s3fence, whose store is told when to race, show that each race is noticed.
func TestProbe(t *testing.T) {
	for _, store := range stores() {
		t.Run(store.name, func(t *testing.T) {
			client := store.start(t)
			refused, runs := 0, 50
			if store.correct {
				runs = longtest.ByLength(3, 50)
			}
			for run := 0; run < runs && (store.correct || refused == 0); run++ {
				r, err := s3fence.Probe(t.Context(), client(nil), bucket, &s3fence.Options{Prefix: fmt.Sprint("open-", run)})
				switch {
				case err == nil && r.OpaqueETags:
					t.Error("the ETags were taken for opaque")
				case err == nil:
				case errors.Is(err, s3fence.ErrUnsuitableStore):
					refused++
					t.Logf("refused in run %d: %v", run, err)
				default:
					t.Fatal(err) // neither verdict
				}
			}
			if store.correct != (refused == 0) {
				t.Errorf("refused in %d of %d runs", refused, runs)
			}
		})
	}
}

// Eight writers with ever newer tokens, which return with old ones, on the
// correct stores, in each mode.
func TestRace(t *testing.T) {
	for _, store := range stores() {
		if store.correct {
			t.Run(store.name, func(t *testing.T) { raceAll(t, store.start(t), "race", longtest.ByLength(60, 2000), 20) })
		}
	}
}

// The control of the race: the token in the metadata, and If-Match on the ETag
// of what was read. The oracle must see what it does.
func TestRaceControl(t *testing.T) {
	client := product(gateway.Versitygw, true).start(t)
	round := 0
	testkit.Eventually(t, "the oracle to see a violation of the naive protocol", func() bool {
		round++
		var r race
		r.run(t, client, 100, func(ctx context.Context, c *s3.Client, cl guard.Claim, n int) error {
			return naivePut(ctx, c, cl, repeated[n%2], fmt.Sprint(n))
		})
		if bad := r.violations(key, false); len(bad) > 0 {
			t.Logf("in round %d %d violations, the first: %s", round, len(bad), bad[0])
			return true
		}
		if _, err := client(nil).DeleteObject(t.Context(), &s3.DeleteObjectInput{Bucket: aws.String(bucket), Key: aws.String(key)}); err != nil {
			t.Fatal(err)
		}
		return false
	})
}

var modes = []s3fence.Mode{s3fence.Sealed, s3fence.SealedGzip, s3fence.Plain, pointers}

// repeated are contents that come again and again, and so do their ETags.
var repeated = [2]string{"X", "Y"}

// handles are those of the writers, one for each client.
type handles struct {
	mode s3fence.Mode
	by   sync.Map
}

func (h *handles) of(ctx context.Context, c *s3.Client) (handle, error) {
	if o, ok := h.by.Load(c); ok {
		return o.(handle), nil
	}
	b, err := s3fence.Open(ctx, c, bucket, &s3fence.Options{InsecureSkipProbe: true}) // it was probed, or is not meant to be
	if err != nil {
		return nil, err
	}
	o, err := in(b, h.mode)
	if err != nil {
		return nil, err
	}
	h.by.Store(c, o)
	return o, nil
}

// raceAll races in each mode, and fails on what the oracle finds, or if less was
// written than least.
func raceAll(t *testing.T, client func(http.RoundTripper) *s3.Client, prefix string, writes, least int) {
	t.Helper()
	for _, mode := range modes {
		name := fmt.Sprintf("%s/%s-%s", prefix, mode, key)
		var r race
		h := handles{mode: mode}
		r.run(t, client, writes, func(ctx context.Context, c *s3.Client, cl guard.Claim, n int) error {
			o, err := h.of(ctx, c)
			if err != nil {
				return err
			}
			body := repeated[n%2]
			if mode == s3fence.Plain {
				body = fmt.Sprint(n)
			}
			return o.Put(ctx, cl, name, []byte(body), nil)
		})
		bad := r.violations(name, true)
		for i, v := range bad {
			if i < 5 {
				t.Errorf("%s: %s", mode, v)
			}
		}
		done := 0
		for _, w := range r.writes {
			if w.err == nil {
				done++
			}
		}
		t.Logf("%s: %d writes, %d done, %d violations", mode, len(r.writes), done, len(bad))
		if done < least {
			t.Errorf("%s: only %d of %d writes were done: the race shows nothing", mode, done, len(r.writes))
		}
	}
}

// race is a race of writers, and an oracle that shares nothing with s3fence: it
// knows what each writer's call returned and when, and what went over the wire.
type race struct {
	mu     sync.Mutex
	writes []written
	puts   []sentPut
}

// written is a write as its writer saw it.
type written struct {
	token      guard.Token
	begun, end time.Time
	err        error
}

// sentPut is a PUT as its transport saw it.
type sentPut struct {
	path, ifMatch, ifNoneMatch string
	conditions                 int // how many headers it had, empty ones too
	status                     int
	etag                       string
	token                      guard.Token
	sent, answered             time.Time
}

const raceWriters = 8

func (r *race) run(t *testing.T, client func(http.RoundTripper) *s3.Client, writes int, write func(context.Context, *s3.Client, guard.Claim, int) error) {
	t.Helper()
	var issued atomic.Int64
	var wg sync.WaitGroup
	for n := range raceWriters {
		c := client(&recorder{race: r, via: &http.Transport{MaxIdleConnsPerHost: 4}})
		wg.Go(func() {
			token := guard.NoToken
			for i := range writes {
				// A new token every third time, so that old ones come back late.
				if i%3 == 0 {
					token = guard.Token(issued.Add(1))
				}
				begun := time.Now()
				err := write(t.Context(), c, claim(token), n*writes+i)
				r.mu.Lock()
				r.writes = append(r.writes, written{token, begun, time.Now(), err})
				r.mu.Unlock()
			}
		})
	}
	wg.Wait()
}

// violations judges. With unique ETags, no two accepted writes may have replaced
// the same state.
func (r *race) violations(name string, unique bool) (out []string) {
	for _, w := range r.writes {
		if w.err != nil {
			continue
		}
		for _, before := range r.writes {
			if before.err == nil && before.token > w.token && before.end.Before(w.begun) {
				out = append(out, fmt.Sprintf("token %d was acknowledged, begun %v after %d was", w.token, w.begun.Sub(before.end), before.token))
				break
			}
		}
	}
	for _, p := range r.puts {
		for _, before := range r.puts {
			if strings.HasSuffix(p.path, "/"+name) && p.path == before.path && p.status == http.StatusOK && before.status == http.StatusOK &&
				before.token > p.token && before.answered.Before(p.sent) {
				out = append(out, fmt.Sprintf("token %d was accepted, sent %v after %d was", p.token, p.sent.Sub(before.answered), before.token))
				break
			}
		}
	}
	replaced := map[string]sentPut{}
	for _, p := range r.puts {
		if !strings.HasSuffix(p.path, "/"+name) {
			continue
		}
		if p.conditions != 1 || p.ifMatch == "" && p.ifNoneMatch == "" {
			out = append(out, fmt.Sprintf("a PUT went out without a condition: %+v", p))
		}
		if p.status != http.StatusOK || !unique {
			continue
		}
		base := p.ifMatch + p.ifNoneMatch
		if other, ok := replaced[base]; ok {
			out = append(out, fmt.Sprintf("two writes replaced %s: %s and %s", base, other.etag, p.etag))
		}
		replaced[base] = p
	}
	return out
}

// recorder notes the PUTs that it forwards, and holds some of them up.
type recorder struct {
	race *race
	via  http.RoundTripper
}

func (rec *recorder) RoundTrip(q *http.Request) (*http.Response, error) {
	if q.Method != http.MethodPut {
		return rec.via.RoundTrip(q)
	}
	if rand.IntN(8) == 0 {
		time.Sleep(rand.N(15 * time.Millisecond))
	}
	p := sentPut{
		path: q.URL.Path, ifMatch: q.Header.Get("If-Match"), ifNoneMatch: q.Header.Get("If-None-Match"),
		conditions: len(q.Header["If-Match"]) + len(q.Header["If-None-Match"]), sent: time.Now(),
	}
	p.token, _ = guard.ParseToken(q.Header.Get("X-Amz-Meta-Fencing-Token"))
	answer, err := rec.via.RoundTrip(q)
	if err == nil {
		p.status, p.etag = answer.StatusCode, answer.Header.Get("Etag")
	}
	p.answered = time.Now()
	rec.race.mu.Lock()
	rec.race.puts = append(rec.race.puts, p)
	rec.race.mu.Unlock()
	return answer, err
}

// Stores that refuse ranges longer than the object, or give no ETag while it is
// overwritten, must not make a mark look absent nor a write unconditional, even
// where nobody probed them: what cannot be seen is an error.
func TestDeviantStoresFailClosed(t *testing.T) {
	for _, store := range []realStore{product(gateway.Rclone, false), product(gateway.RcloneFullCache, false), gofakes3Store} {
		t.Run(store.name, func(t *testing.T) {
			client := store.start(t)
			b, err := s3fence.Open(t.Context(), client(nil), bucket, &s3fence.Options{InsecureSkipProbe: true})
			testkit.Must(t, err)
			for _, mode := range []s3fence.Mode{s3fence.Sealed, pointers} {
				o, err := in(b, mode)
				testkit.Must(t, err)
				name := nameOf(mode) + "/" + key
				if err := o.Put(t.Context(), claim(11), name, []byte("short"), nil); err != nil {
					t.Logf("%s: %v", mode, err)
					continue
				}
				other, err := s3fence.Open(t.Context(), client(nil), bucket, &s3fence.Options{InsecureSkipProbe: true})
				testkit.Must(t, err)
				late, err := in(other, mode)
				testkit.Must(t, err)
				if m, err := late.Mark(t.Context(), name); err == nil && m.Token != 11 {
					t.Errorf("%s: the mark is %+v", mode, m)
				}
				if err := late.Put(t.Context(), claim(10), name, []byte("late"), nil); err == nil {
					t.Errorf("%s: token 10 was accepted after 11", mode)
				}
			}
			// No condition of a write is empty, whatever the store responds until then.
			var r race
			h := handles{mode: s3fence.Sealed}
			r.run(t, client, longtest.ByLength(40, 1000), func(ctx context.Context, c *s3.Client, cl guard.Claim, n int) error {
				o, err := h.of(ctx, c)
				if err != nil {
					return err
				}
				return o.Put(ctx, cl, "crowd", []byte(repeated[n%2]), nil)
			})
			for _, p := range r.puts {
				if strings.HasSuffix(p.path, "/crowd") && (p.conditions != 1 || p.ifMatch == "" && p.ifNoneMatch == "") {
					t.Errorf("a PUT went out without a condition: %+v", p)
					break
				}
			}
			t.Logf("%d PUTs", len(r.puts))
		})
	}
}

// What the tests above are about is real: these stores respond so.
func TestDeviantStoresDeviate(t *testing.T) {
	for _, store := range []realStore{product(gateway.Rclone, false), gofakes3Store} {
		t.Run(store.name, func(t *testing.T) {
			client := store.start(t)(nil)
			in := &s3.PutObjectInput{Bucket: aws.String(bucket), Key: aws.String("a"), Body: strings.NewReader("short")}
			if _, err := client.PutObject(t.Context(), in); err != nil {
				t.Fatal(err)
			}
			_, err := client.GetObject(t.Context(), &s3.GetObjectInput{Bucket: in.Bucket, Key: in.Key, Range: aws.String("bytes=-4096")})
			var answer interface{ HTTPStatusCode() int }
			if !errors.As(err, &answer) || answer.HTTPStatusCode() != http.StatusRequestedRangeNotSatisfiable {
				t.Errorf("a suffix range longer than the object: %v, want 416", err)
			}
			in.Body, in.IfMatch = strings.NewReader("overwritten"), aws.String("")
			if _, err := client.PutObject(t.Context(), in); err != nil {
				t.Errorf("If-Match with an empty value: %v, want none", err)
			}
		})
	}
}

func target(g *gateway.Gateway) s3conform.Target {
	return s3conform.Target{
		Endpoint: g.URL, Region: g.Region, AccessKeyID: g.AccessKeyID, SecretAccessKey: g.SecretAccessKey,
		Differs: map[string]string{},
	}
}

// What is tested against s3test has been tested against the behaviour of a real
// store, as far as the same suite passes on both.
func TestCorrect(t *testing.T) {
	g := gateway.Start(t, gateway.Versitygw)
	s3conform.Run(t, target(g))
}

// The suite must notice a real store that loses races, and nothing else about
// it, since requests that come one after the other are served well.
func TestRacing(t *testing.T) {
	g := gateway.Start(t, gateway.RacingVersitygw)
	target := target(g)
	races := []string{"race to create has one winner", "race to replace has one winner"}
	// A real store cannot be told when to race, so the suite is run until it has
	// met both races, which is the first time but on a very busy machine.
	for run := 0; len(races) > 0; run++ {
		if run == 10 {
			t.Fatalf("not noticed: %q", races)
		}
		failures, err := s3conform.Check(t.Context(), target)
		testkit.Must(t, err)
		for _, f := range failures {
			t.Log(f)
			races = slices.DeleteFunc(races, func(name string) bool { return name == f.Case })
			if !slices.Contains(s3conform.Races(), f.Case) {
				t.Errorf("without a race: %s", f)
			}
		}
	}
}
