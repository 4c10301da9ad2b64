package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/httpfence"
)

// remote is a resource behind the two replicas of an HTTP service. The token
// chooses the replica, so that the next holder writes through the other one.
type remote struct {
	kind     string
	fenced   bool
	client   *http.Client
	replicas []string
}

func newRemote(w *worker) *remote {
	transport := guard.Must(httpfence.NewTransport(&http.Transport{MaxIdleConnsPerHost: 4}, w.Replicas, nil))
	return &remote{kind: w.Surface, fenced: w.Guards == guardsOn, replicas: w.Replicas, client: &http.Client{Transport: transport}}
}

func (s *remote) raise(ctx context.Context, claim guard.Claim) error {
	if !s.fenced {
		return nil
	}
	_, err := s.ask(ctx, http.MethodPost, claim, "/raise", nil)
	return err
}

func (s *remote) read(ctx context.Context, claim guard.Claim) (doc, error) {
	var d doc
	body, err := s.ask(ctx, http.MethodGet, claim, "", nil)
	if err == nil {
		err = json.Unmarshal(body, &d)
	}
	return d, err
}

func (s *remote) write(ctx context.Context, claim guard.Claim, next doc) error {
	_, err := s.ask(ctx, http.MethodPost, claim, "", next)
	return err
}

// ask does not retry.
func (s *remote) ask(ctx context.Context, method string, claim guard.Claim, action string, body any) ([]byte, error) {
	encoded, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	url := s.replicas[int(claim.Token)%len(s.replicas)] + "/" + s.kind + "/" + claim.Resource + action
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
		err = fmt.Errorf("%s: %s", resp.Status, out)
	}
	return out, err
}
