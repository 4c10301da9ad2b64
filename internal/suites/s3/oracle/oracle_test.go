package oracle

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/longtest"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/s3fence"
	"github.com/fencepost-go/fencepost/s3fence/s3test"
)

// front is the network, and a proxy, in front of a store.
type front struct {
	store  http.Handler
	change func(*http.Request, *httptest.ResponseRecorder) // what a control does to a request, or to a response
	drew   [8]atomic.Int64
	wg     sync.WaitGroup // copies that are still on their way
}

var pages = []string{"", "404 page not found\n", "<html><body><h1>404 Not Found</h1></body></html>", `{"Code":"NoSuchKey"}`}

func (f *front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	send := func() *httptest.ResponseRecorder {
		again := r.Clone(context.Background())
		again.Body = io.NopCloser(bytes.NewReader(body))
		out := httptest.NewRecorder()
		if f.change != nil {
			f.change(again, nil)
		}
		f.store.ServeHTTP(out, again)
		return out
	}
	var out *httptest.ResponseRecorder
	page := func(status int) {
		out = httptest.NewRecorder()
		out.WriteHeader(status)
		out.Body.WriteString(pages[rand.IntN(len(pages))])
	}
	later := func() {
		f.wg.Go(func() { time.Sleep(rand.N(20 * time.Millisecond)); send() })
	}
	draw := rand.IntN(100)
	note := func(what int) { f.drew[what].Add(1) }
	switch {
	case draw < 3: // lost
		note(0)
		panic(http.ErrAbortHandler)
	case draw < 6: // its response is lost
		note(1)
		send()
		panic(http.ErrAbortHandler)
	case draw < 9: // doubled: the response is the second one's
		note(2)
		send()
		out = send()
	case draw < 12: // delayed: the client is told that the front has lost it
		note(3)
		later()
		page(http.StatusGatewayTimeout)
	case draw < 14: // replayed
		note(4)
		later()
		out = send()
	case draw < 18: // no route to the store for a moment
		note(5)
		page(http.StatusNotFound)
	case draw < 20: // a page of the front's, 200 and all
		note(6)
		page(http.StatusOK)
	default:
		note(7)
		out = send()
	}
	if f.change != nil {
		f.change(nil, out)
	}
	maps.Copy(w.Header(), out.Header())
	w.WriteHeader(out.Code)
	_, _ = w.Write(out.Body.Bytes())
}

// handle is what Objects and Pointers have in common.
type handle interface {
	Get(context.Context, string) (*s3fence.Object, error)
	Mark(context.Context, string) (guard.Mark, error)
	Raise(context.Context, guard.Claim, string) error
	Delete(context.Context, guard.Claim, string) error
}

// process is one that writes: its own bucket handle, in all modes.
type process struct {
	bucket  *s3fence.Bucket
	objects map[string]handle
}

var modes = map[string]s3fence.Mode{"sealed": s3fence.Sealed, "gzip": s3fence.SealedGzip, "plain": s3fence.Plain}

func newProcess(client *s3.Client) (*process, error) {
	b, err := s3fence.Open(context.Background(), client, s3test.DefaultBucket, &s3fence.Options{InsecureSkipProbe: true, GracePeriod: time.Nanosecond})
	if err != nil {
		return nil, err
	}
	p := &process{b, map[string]handle{}}
	for name, mode := range modes {
		o, err := b.Objects(mode, &s3fence.ObjectsOptions{InsecureAnyResource: true, BodiesNeverRepeat: name == "plain"})
		if err != nil {
			return nil, err
		}
		p.objects[name] = o
	}
	p.objects["pointer"], err = b.Pointers(&s3fence.ObjectsOptions{InsecureAnyResource: true})
	return p, err
}

func (p *process) put(mode string, c guard.Claim, key, content string) error {
	switch o := p.objects[mode].(type) {
	case *s3fence.Pointers:
		return o.Put(context.Background(), c, key, strings.NewReader(content), nil)
	case *s3fence.Objects:
		return o.Put(context.Background(), c, key, []byte(content), nil)
	}
	return fmt.Errorf("no mode %q", mode)
}

// run lets processes do so many operations through f, and returns what the oracle finds.
func run(t *testing.T, operations int, f *front) []string {
	t.Helper()
	server := s3test.New(t, nil)
	f.store = server
	proxy := httptest.NewServer(f)
	defer proxy.Close()
	const processes, keys = 8, 2
	var (
		names    []string
		issued   = map[string]*atomic.Int64{}
		mu       sync.Mutex
		calls    []*call
		listings []*listing
		counts   = map[string]*[2]int64{} // of each counter: increments done, and unknown
		left     atomic.Int64
		wg       sync.WaitGroup
	)
	for _, mode := range []string{"sealed", "gzip", "plain", "pointer"} {
		for i := range keys {
			name := fmt.Sprintf("%s/%d", mode, i)
			names = append(names, name)
			issued[name] = &atomic.Int64{}
		}
		if mode != "plain" { // which has no raise where bodies make the ETags
			name := mode + "/counter"
			issued[name], counts[name] = &atomic.Int64{}, &[2]int64{}
			names = append(names, name)
		}
	}
	note := func(c *call, err error) error {
		c.end, c.err = server.Seq(), err
		mu.Lock()
		defer mu.Unlock()
		calls = append(calls, c)
		return err
	}
	get := func(p *process, mode, key string) (string, error) {
		c := &call{verb: "get", key: key, begin: server.Seq()}
		object, err := p.objects[mode].Get(context.Background(), key)
		if err == nil {
			var content []byte
			content, err = io.ReadAll(object.Body)
			object.Body.Close()
			c.content, c.mark = string(content), object.Mark
			if err != nil {
				err = guard.Unavailable("read", guard.Claim{}, err) // a stream that broke
			}
		}
		return c.content, note(c, err)
	}
	left.Store(int64(operations))
	for w := range processes {
		p, err := newProcess(server.Client(func(o *s3.Options) {
			o.BaseEndpoint, o.HTTPClient = aws.String(proxy.URL), &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 4}}
		}))
		testkit.Must(t, err)
		wg.Go(func() {
			claims := map[string]guard.Claim{}
			for n := 0; left.Add(-1) >= 0; n++ {
				key := names[rand.IntN(len(names))]
				mode, _, _ := strings.Cut(key, "/")
				if claims[key].Token == 0 || rand.IntN(3) == 0 { // else the old holder goes on, however late
					token := issued[key].Add(1)
					claims[key] = guard.Claim{Resource: "r", Token: guard.Token(token), LeaseID: fmt.Sprintf("lease %d", token)}
				}
				c := &call{key: key, claim: claims[key], begin: server.Seq()}
				if of := counts[key]; of != nil {
					// What a holder does: raise, read, write.
					token := issued[key].Add(1)
					c.claim = guard.Claim{Resource: "r", Token: guard.Token(token), LeaseID: fmt.Sprintf("lease %d", token)}
					c.verb = "raise"
					if note(c, p.objects[mode].Raise(context.Background(), c.claim, key)) != nil {
						continue
					}
					content, err := get(p, mode, key)
					value := 0
					if err == nil {
						value, _ = strconv.Atoi(content[strings.LastIndexByte(content, ' ')+1:])
					} else if guard.ReasonOf(err) != guard.ReasonNotFound {
						continue
					}
					next := &call{verb: "put", key: key, claim: c.claim, attempt: fmt.Sprintf("%d-%d", w, n), begin: server.Seq()}
					err = note(next, p.put(mode, c.claim, key, fmt.Sprintf("%s %d", next.attempt, value+1)))
					mu.Lock()
					if err == nil {
						of[0]++
					} else if guard.ReasonOf(err) == guard.ReasonOutcomeUnknown {
						of[1]++
					}
					mu.Unlock()
					continue
				}
				switch draw := rand.IntN(20); {
				case draw < 9:
					c.verb, c.attempt = "put", fmt.Sprintf("%d-%d", w, n)
					_ = note(c, p.put(mode, c.claim, key, fmt.Sprintf("%s of %s", c.attempt, key)))
				case draw < 10:
					c.verb = "delete"
					_ = note(c, p.objects[mode].Delete(context.Background(), c.claim, key))
				case draw < 12 && mode != "plain":
					c.verb = "raise"
					_ = note(c, p.objects[mode].Raise(context.Background(), c.claim, key))
				case draw < 14:
					c.verb = "mark"
					c.mark, err = p.objects[mode].Mark(context.Background(), key)
					_ = note(c, err)
				case draw < 15:
					l := &listing{begin: c.begin}
					for e, err := range p.objects["sealed"].(*s3fence.Objects).List(context.Background(), "") {
						l.keys = append(l.keys, e.Key)
						if err != nil {
							l.err = err
						}
					}
					l.end = server.Seq()
					mu.Lock()
					listings = append(listings, l)
					mu.Unlock()
				case draw < 16 && w == 0:
					_, _ = p.objects["pointer"].(*s3fence.Pointers).Collect(context.Background(), "pointer/")
				default:
					_, _ = get(p, mode, key)
				}
			}
		})
	}
	wg.Wait()
	f.wg.Wait()
	// What is behind a pointer: every data object that there ever was.
	data := map[string]string{}
	for _, m := range server.History(s3test.DefaultBucket, "") {
		if strings.HasPrefix(m.Key, ".fencepost/data/") && m.Op == s3test.PutObject {
			data[m.Key] = string(m.Body)
		}
	}
	content := func(s *stored) string {
		switch s.kind {
		case "pointer":
			return data[s.data]
		case "gzip":
			r, err := gzip.NewReader(bytes.NewReader(s.body))
			if err != nil {
				return err.Error()
			}
			text, err := io.ReadAll(r)
			if err != nil {
				return err.Error()
			}
			return string(text)
		case "tombstone":
			return ""
		}
		return string(s.body)
	}
	var bad []string
	versions := map[string][]*version{}
	took := 0
	for _, name := range names {
		all, wrong := history(server, name, content)
		versions[name] = all
		took += len(all)
		bad = append(append(bad, wrong...), chain(name, all)...)
		if of := counts[name]; of != nil && len(all) > 0 {
			last := all[len(all)-1].content
			value, _ := strconv.ParseInt(last[strings.LastIndexByte(last, ' ')+1:], 10, 64)
			if value < of[0] || value > of[0]+of[1] {
				bad = append(bad, fmt.Sprintf("%s: %d increments were done, %d of unknown outcome, and it is at %d", name, of[0], of[1], value))
			}
		}
	}
	bad = append(bad, judge(calls, versions)...)
	bad = append(bad, marked(calls, versions)...)
	bad = append(bad, lists(listings, versions)...)
	reasons := map[guard.Reason]int{}
	for _, c := range calls {
		reasons[guard.ReasonOf(c.err)]++
	}
	drew := make([]int64, len(f.drew))
	for i := range f.drew {
		drew[i] = f.drew[i].Load()
	}
	t.Logf("%d calls and %d listings, told %v; %d versions; the front drew %d; %d violations", len(calls), len(listings), reasons, took, drew, len(bad))
	if took < operations/20 {
		t.Error("that shows nothing")
	}
	return bad
}

// Whatever a network and a front do, nothing is lost, and every caller was told the truth.
func TestOracle(t *testing.T) {
	t.Parallel()
	bad := run(t, longtest.ByLength(1200, 20_000), &front{})
	for i, b := range bad {
		if i < 10 {
			t.Error(b)
		}
	}
}

// The controls: the oracle finds a writer that takes any 404 for the store's word, one whose
// writes have no condition, and one that is told a refusal of what was carried out, whether that
// was a put or a raise.
func TestOracleControls(t *testing.T) {
	t.Parallel()
	refuse := func(_ *http.Request, out *httptest.ResponseRecorder) {
		if out != nil && out.Code == http.StatusOK && out.Body.Len() == 0 && rand.IntN(4) == 0 {
			out.Code = http.StatusForbidden
			out.Body.WriteString("<Error><Code>AccessDenied</Code></Error>")
		}
	}
	for name, c := range map[string]struct {
		change func(*http.Request, *httptest.ResponseRecorder)
		says   string // what one of the violations says
	}{
		"a refused put was stored":   {refuse, "it took effect 1 times"},
		"a refused raise was stored": {refuse, "raises and deletions took effect"},
		"a foreign 404 is absence": {func(_ *http.Request, out *httptest.ResponseRecorder) {
			if out != nil && out.Code == http.StatusNotFound {
				out.Body.Reset()
				out.Body.WriteString("<Error><Code>NoSuchKey</Code></Error>")
			}
		}, ""},
		"no condition": {func(r *http.Request, _ *httptest.ResponseRecorder) {
			if r != nil {
				r.Header.Del("If-Match")
				r.Header.Del("If-None-Match")
			}
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			testkit.Eventually(t, "the oracle to see a violation", func() bool {
				bad := run(t, 400, &front{change: c.change})
				seen := slices.IndexFunc(bad, func(b string) bool { return strings.Contains(b, c.says) })
				if seen >= 0 {
					t.Logf("%d violations, one of them: %s", len(bad), bad[seen])
				}
				return seen >= 0
			})
		})
	}
}
