package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/fencepost-go/fencepost/s3fence/s3test"

	"github.com/fencepost-go/fencepost/internal/suites/campaign/oracle"
)

// objects is the S3 server. It runs in the controller, which the nemesis does
// not touch: to a client, a server that comes back with its data looks like a link
// that is cut.
type objects struct{ *s3test.Server }

// startObjects starts the server, on which some requests fail in each of the ways
// of real stores.
func startObjects(seed uint64) *objects {
	s := s3test.Start(&s3test.Options{Buckets: []string{bucketName}, Seed: seed})
	var mu sync.Mutex // guards rng
	rng := rand.New(rand.NewPCG(seed, 3000))
	writes := []s3test.Op{s3test.PutObject}
	for _, rule := range []s3test.Rule{
		{Ops: writes, Probability: 0.02, Fault: s3test.LoseRequest()},
		{Ops: writes, Probability: 0.04, Fault: s3test.LoseResponse()},
		{Ops: writes, Probability: 0.01, Fault: s3test.Respond(503)},
		{Ops: writes, Probability: 0.01, Fault: s3test.RespondApplied(500)},
		{Ops: writes, Probability: 0.01, Fault: s3test.Respond(409)},
		{Probability: 0.01, Fault: s3test.LoseRequest()},
		// A write that is in flight for longer than a lease lasts.
		{Ops: writes, Probability: 0.03, Fault: s3test.Fault{Before: func(*s3test.Request) {
			mu.Lock()
			delay := time.Duration(rng.IntN(900)) * time.Millisecond
			mu.Unlock()
			time.Sleep(delay)
		}}},
	} {
		s.Inject(rule)
	}
	return &objects{s}
}

func (o *objects) address() string { return strings.TrimPrefix(o.URL(), "http://") }

// log adds the accepted order of the server to a history. A change that repeats
// the last write has only raised the mark.
func (o *objects) log(h *oracle.History) error {
	data := map[string]map[string]string{} // metadata, by a pointer's key
	last := map[string]string{}
	for _, m := range o.History(bucketName, "") {
		if surface := oracle.Surface(m.Key); surface != "s3-sealed" && surface != "s3-pointer" {
			if m.ETag != "" { // not deleted
				data[m.Key] = m.Metadata
			}
			continue
		}
		written := m.Metadata
		mode := written["fencing-mode"]
		if mode == "pointer" {
			var p struct{ Data string }
			if err := json.NewDecoder(strings.NewReader(string(m.Body))).Decode(&p); err != nil {
				return fmt.Errorf("change %d of an object: pointer: %w", m.Seq, err)
			}
			if written = data[p.Data]; written == nil {
				return fmt.Errorf("change %d of an object: the pointer names %q, which was not stored", m.Seq, p.Data)
			}
		}
		e := oracle.Entry{Seq: m.Seq, Resource: m.Key}
		token := m.Metadata["fencing-token"]
		if token == "" {
			token = m.Metadata[metaClient]
		}
		var err error
		if e.Token, err = strconv.ParseInt(token, 10, 64); err != nil {
			return fmt.Errorf("change %d of an object: token: %w", m.Seq, err)
		}
		var d doc
		if mode != "tombstone" {
			if d, err = docOf(written); err != nil {
				return fmt.Errorf("change %d of an object: %w", m.Seq, err)
			}
		}
		if e.Raised = mode == "tombstone" || mode != "" && d.Write == last[m.Key]; !e.Raised {
			e.Write, e.Base, e.N = d.Write, d.Base, d.N
			last[m.Key] = d.Write
		}
		h.Log = append(h.Log, e)
	}
	return nil
}
