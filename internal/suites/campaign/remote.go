package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/httpfence"
)

// remote is a resource behind the two replicas of an HTTP service.
type remote struct {
	kind     string
	fenced   bool
	client   *http.Client
	replicas []string
	rng      *rand.Rand
	bad      map[string]time.Time // when a replica failed last
	wait     time.Duration        // for an answer
}

// A client waits for less time than a replica is stopped, so that it turns to
// the other one. Where answers are slow because the machine is slow, and not
// because a replica is stopped, it learns to wait.
const (
	firstWait   = 800 * time.Millisecond
	longestWait = 4 * time.Second
)

func newRemote(w *worker) *remote {
	transport := guard.Must(httpfence.NewTransport(&http.Transport{MaxIdleConnsPerHost: 4}, w.Replicas, nil))
	return &remote{
		kind: w.Surface, fenced: w.Guards == guardsOn, replicas: w.Replicas, rng: w.rng, bad: map[string]time.Time{},
		client: &http.Client{Transport: transport}, wait: firstWait,
	}
}

func (s *remote) raise(ctx context.Context, claim guard.Claim) error {
	if !s.fenced {
		return nil
	}
	_, err := s.call(ctx, http.MethodPost, claim.Resource+"/raise", nil)
	return err
}

func (s *remote) read(ctx context.Context, resource string) (doc, error) {
	var d doc
	body, err := s.call(ctx, http.MethodGet, resource, nil)
	if err == nil {
		err = json.Unmarshal(body, &d)
	}
	return d, err
}

func (s *remote) write(ctx context.Context, claim guard.Claim, next doc) error {
	_, err := s.call(ctx, http.MethodPost, claim.Resource, next)
	return err
}

// call asks one replica, but not the last one if that failed. It does not
// retry.
func (s *remote) call(ctx context.Context, method, path string, body any) ([]byte, error) {
	at := s.rng.IntN(len(s.replicas))
	if time.Since(s.bad[s.replicas[at]]) < 2*time.Second {
		at = (at + 1) % len(s.replicas)
	}
	base := s.replicas[at]
	ctx, cancel := context.WithTimeout(ctx, s.wait)
	defer cancel()
	asked := time.Now()
	out, err := s.ask(ctx, method, base+"/"+s.kind+"/"+path, body)
	s.learn(time.Since(asked), ctx.Err() != nil)
	if err != nil && guard.ReasonOf(err) == guard.ReasonOther {
		s.bad[base] = time.Now()
	}
	return out, err
}

// learn sets how long to wait for the next answer: longer after each that did
// not come, and three times the last answer's time after one that did.
func (s *remote) learn(took time.Duration, late bool) {
	if late {
		s.wait = min(s.wait+s.wait/4, longestWait)
		return
	}
	s.wait = min(max(3*took, (s.wait+firstWait)/2, firstWait), longestWait)
}

func (s *remote) ask(ctx context.Context, method, url string, body any) ([]byte, error) {
	encoded, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(encoded))
	if err != nil {
		return nil, err
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if err := httpfence.ErrorFrom(resp); err != nil {
		return nil, err
	}
	out, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode >= 300 {
		err = errors.New(resp.Status + ": " + string(out))
	}
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, url, err)
	}
	return out, nil
}
