package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/fencepost-go/fencepost/s3fence/s3test"
)

// stored is one change of an object, as the journal keeps it.
type stored struct {
	Key      string            `json:"key"`
	Body     []byte            `json:"body"`
	ETag     string            `json:"etag"` // "" for a deletion
	Metadata map[string]string `json:"metadata"`
}

const journalName = "objects.jsonl"

// journal makes the S3 server's state survive a kill: each change is in a file
// before any answer, to the writer or to a reader who saw it. It is also the
// accepted order, for the oracle.
type journal struct {
	mu     sync.Mutex
	server *s3test.Server
	file   *os.File
	done   map[string]int // by key, how many of the server's changes are in the file
}

// keep writes the changes not yet in the file. It is an After hook, so it runs
// before the answer.
func (j *journal) keep(r *s3test.Request, _ int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	changes := j.server.History(bucketName, r.Key)
	for _, m := range changes[j.done[r.Key]:] {
		line, err := json.Marshal(stored{m.Key, m.Body, m.ETag, m.Metadata})
		if err == nil {
			_, err = j.file.Write(append(line, '\n'))
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "campaign: journal:", err)
			os.Exit(4)
		}
	}
	j.done[r.Key] = len(changes)
}

// readJournal returns all changes in the order of the file, which is for each
// key the order in which they took effect. A last line that was cut was never
// answered.
func readJournal(dir string) ([]stored, error) {
	file, err := os.Open(filepath.Join(dir, journalName))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var all []stored
	lines := bufio.NewReader(file)
	for {
		line, err := lines.ReadBytes('\n')
		if err == io.EOF {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		var s stored
		if err := json.Unmarshal(line, &s); err != nil {
			return nil, fmt.Errorf("journal line %q: %w", line, err)
		}
		all = append(all, s)
	}
}

// restore brings back the last state of each object. The server derives ETags
// from bodies, so they do not change.
func (j *journal) restore(ctx context.Context, all []stored) error {
	last := map[string]stored{}
	for _, s := range all {
		last[s.Key] = s
	}
	client := newS3(j.server.URL())
	for _, s := range last {
		if s.ETag == "" {
			continue // deleted
		}
		out, err := client.PutObject(ctx, &s3.PutObjectInput{Bucket: aws.String(bucketName), Key: &s.Key, Metadata: s.Metadata, Body: bytes.NewReader(s.Body)})
		if err != nil {
			return err
		}
		if aws.ToString(out.ETag) != s.ETag {
			return fmt.Errorf("the ETag of %s was %s, and is %s", s.Key, s.ETag, aws.ToString(out.ETag))
		}
		j.done[s.Key] = 1
	}
	return nil
}

// runObjects is the S3 server in a process of its own.
func runObjects(r role, c *control) error {
	all, err := readJournal(r.Dir)
	if err != nil {
		return err
	}
	j := &journal{server: s3test.Start(&s3test.Options{Buckets: []string{bucketName}, Seed: r.Seed + uint64(r.Life)}), done: map[string]int{}}
	defer j.server.Close()
	if err := j.restore(context.Background(), all); err != nil {
		return err
	}
	// Nothing may be appended to a truncated line.
	if err := cutTail(filepath.Join(r.Dir, journalName)); err != nil {
		return err
	}
	j.file, err = os.OpenFile(filepath.Join(r.Dir, journalName), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	j.server.Inject(s3test.Rule{Fault: s3test.Fault{After: j.keep}})
	j.mischief(rand.New(rand.NewPCG(r.Seed, uint64(r.Life))))
	c.tell(report{Phase: phaseReady, Address: j.server.URL()[len("http://"):]})
	<-c.stop
	return nil
}

// mischief makes some requests fail in each of the ways of real stores.
func (j *journal) mischief(rng *rand.Rand) {
	writes := []s3test.Op{s3test.PutObject}
	for _, rule := range []s3test.Rule{
		{Ops: writes, Probability: 0.02, Fault: s3test.LoseRequest()},
		{Ops: writes, Probability: 0.04, Fault: s3test.LoseResponse()},
		{Ops: writes, Probability: 0.01, Fault: s3test.Answer(503)},
		{Ops: writes, Probability: 0.01, Fault: s3test.AnswerApplied(500)},
		{Ops: writes, Probability: 0.01, Fault: s3test.Answer(409)},
		{Probability: 0.01, Fault: s3test.LoseRequest()},
		// A write that is in flight for longer than a lease lasts.
		{Ops: writes, Probability: 0.03, Decide: func(*s3test.Request) s3test.Fault {
			return s3test.Slow(time.Duration(rng.IntN(900)) * time.Millisecond)
		}},
	} {
		j.server.Inject(rule)
	}
}

// cutTail removes an unfinished last line.
func cutTail(name string) error {
	content, err := os.ReadFile(name)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return os.Truncate(name, int64(bytes.LastIndexByte(content, '\n')+1))
}
