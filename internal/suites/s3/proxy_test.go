//go:build unix

package s3suite

import (
	"bytes"
	"context"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/suites/s3/gateway"
)

// accepted is a PUT of the object that the store applied, as seen by the proxy:
// it took effect at some time between sent and answered.
type accepted struct {
	token          guard.Token
	attempt        string
	ifMatch, etag  string
	sent, answered time.Time
}

// proxy stands in front of a store. It pauses writes, loses them, loses their
// answers, and records what the store accepted, lost responses included.
type proxy struct {
	*httptest.Server
	store string
	via   *http.Transport

	mu   sync.Mutex
	rng  *rand.Rand
	seen []accepted
}

func newProxy(t *testing.T, g *gateway.Gateway) *proxy {
	p := &proxy{
		store: strings.TrimPrefix(g.URL, "http://"), rng: rand.New(rand.NewPCG(3, 4)),
		via: &http.Transport{MaxIdleConnsPerHost: 64, DisableCompression: true},
	}
	p.Server = httptest.NewServer(p)
	t.Cleanup(p.Close)
	return p
}

// draw decides about a write.
func (p *proxy) draw() (pause time.Duration, loseRequest, loseAnswer bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.rng.IntN(8) == 0 {
		pause = time.Duration(p.rng.IntN(15_000)) * time.Microsecond
	}
	n := p.rng.IntN(100)
	return pause, n < 3, n >= 3 && n < 9
}

func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	write := r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, "/"+key)
	loseAnswer := false
	if write {
		var pause time.Duration
		var loseRequest bool
		pause, loseRequest, loseAnswer = p.draw()
		time.Sleep(pause)
		if loseRequest {
			panic(http.ErrAbortHandler)
		}
	}
	sent := time.Now()
	answer, content, err := p.forward(r, body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	if write && answer.StatusCode == http.StatusOK {
		token, _ := guard.ParseToken(r.Header.Get("X-Amz-Meta-Fencing-Token"))
		p.mu.Lock()
		p.seen = append(p.seen, accepted{
			token: token, attempt: r.Header.Get("X-Amz-Meta-Attempt"),
			ifMatch: r.Header.Get("If-Match"), etag: answer.Header.Get("Etag"), sent: sent, answered: time.Now(),
		})
		p.mu.Unlock()
	}
	if loseAnswer {
		panic(http.ErrAbortHandler)
	}
	maps.Copy(w.Header(), answer.Header)
	w.WriteHeader(answer.StatusCode)
	w.Write(content)
}

// forward sends on the request unchanged, whatever happens to its sender. The
// signature covers the host, so that stays.
func (p *proxy) forward(r *http.Request, body []byte) (*http.Response, []byte, error) {
	out := r.Clone(context.WithoutCancel(r.Context()))
	out.RequestURI, out.URL.Scheme, out.URL.Host = "", "http", p.store
	out.Body, out.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	answer, err := p.via.RoundTrip(out)
	if err != nil {
		return nil, nil, err
	}
	defer answer.Body.Close()
	content, err := io.ReadAll(answer.Body)
	return answer, content, err
}
