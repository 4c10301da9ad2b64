package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/fencepost-go/fencepost/internal/suites/campaign/oracle"
)

// collect reads everything that is known about the run.
func (r *run) collect(ctx context.Context) (*oracle.History, error) {
	h := &oracle.History{Final: map[string]oracle.Final{}, Skewed: r.nemesis.skewed}
	files, err := filepath.Glob(filepath.Join(r.opts.Dir, "history-*.jsonl"))
	if err != nil {
		return nil, err
	}
	for _, name := range files {
		file, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		ops, err := oracle.ReadOps(file)
		file.Close()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		h.Ops = append(h.Ops, ops...)
	}
	if err := r.db.read(ctx, h); err != nil {
		return nil, err
	}
	if err := r.collectObjects(h); err != nil {
		return nil, err
	}
	return h, r.collectHandled(h)
}

// collectObjects reads the accepted order of the S3 server. A change that
// repeats the last write has only raised the mark.
func (r *run) collectObjects(h *oracle.History) error {
	all, err := readJournal(r.opts.Dir)
	if err != nil {
		return err
	}
	data := map[string]map[string]string{} // a pointer's, by key
	for i, s := range all {
		if oracle.Surface(s.Key) != "s3-sealed" && oracle.Surface(s.Key) != "s3-pointer" {
			if s.ETag != "" {
				data[s.Key] = s.Metadata
			}
			continue
		}
		metadata := s.Metadata
		if metadata["fencing-mode"] == "pointer" {
			var p struct{ Data string }
			if err := json.NewDecoder(strings.NewReader(string(s.Body))).Decode(&p); err != nil {
				return fmt.Errorf("journal, change %d: pointer: %w", i, err)
			}
			metadata = data[p.Data]
			if metadata == nil {
				return fmt.Errorf("journal, change %d: the pointer names %q, which was not stored", i, p.Data)
			}
		}
		e := oracle.Entry{Seq: int64(i + 1), Resource: s.Key}
		token := s.Metadata["fencing-token"]
		if token == "" {
			token = s.Metadata[metaClient]
		}
		if e.Token, err = strconv.ParseInt(token, 10, 64); err != nil {
			return fmt.Errorf("journal, change %d: token: %w", i, err)
		}
		last := h.Final[s.Key]
		d := doc{Write: last.Write, N: last.N}
		if s.Metadata["fencing-mode"] != "tombstone" {
			if d, err = docOf(metadata); err != nil {
				return fmt.Errorf("journal, change %d: %w", i, err)
			}
		}
		if e.Raised = d.Write == last.Write && s.Metadata["fencing-mode"] != ""; !e.Raised {
			e.Write, e.Base, e.N = d.Write, d.Base, d.N
			h.Final[s.Key] = oracle.Final{Write: d.Write, N: d.N}
		}
		h.Log = append(h.Log, e)
	}
	return nil
}

// collectHandled reads the logs of the replicas' handlers.
func (r *run) collectHandled(h *oracle.History) error {
	files, err := filepath.Glob(filepath.Join(r.opts.Dir, "handled-*.txt"))
	if err != nil {
		return err
	}
	h.Handled = map[string]map[string]bool{}
	for _, s := range surfaces {
		if s.http {
			h.Handled[s.name] = map[string]bool{}
		}
	}
	for _, name := range files {
		file, err := os.Open(name)
		if err != nil {
			return err
		}
		lines := bufio.NewScanner(file)
		for lines.Scan() {
			surface, id, _ := strings.Cut(lines.Text(), " ")
			if h.Handled[surface] == nil {
				return fmt.Errorf("%s: %q is not a valid handler log record", name, lines.Text())
			}
			h.Handled[surface][id] = true
		}
		file.Close()
		if err := lines.Err(); err != nil {
			return err
		}
	}
	return nil
}

// judge compares and counts. It reads the log until it stops growing: at rest
// nothing more may take effect, so every unknown outcome is settled.
func (r *run) judge(ctx context.Context, active time.Duration) (*summary, error) {
	h, err := r.collect(ctx)
	if err != nil {
		return nil, err
	}
	grown := true
	for looks := 0; grown && looks < 20; looks++ {
		time.Sleep(300 * time.Millisecond)
		again, err := r.collect(ctx)
		if err != nil {
			return nil, err
		}
		grown = len(again.Log) != len(h.Log)
		h = again
	}
	s := newSummary(r, h, active)
	if grown {
		s.Invalid = append(s.Invalid, fmt.Sprintf("not at rest: the logs still grow, at %d entries", len(h.Log)))
	}
	s.Violations = oracle.Check(h)
	// If violations were already found, there is no need for this proof.
	limit := time.Minute
	if len(s.Violations) > 0 {
		limit = time.Second
	}
	found, open := oracle.Linearizable(h, limit)
	s.Violations = append(s.Violations, found...)
	s.Undecided = open
	s.finish()
	return s, r.keep(h, s)
}

// keep writes what the analysis of a failure needs besides the histories and
// the schedule, which already exist.
func (r *run) keep(h *oracle.History, s *summary) error {
	for name, v := range map[string]any{"log.json": h.Log, "grants.json": h.Grants, "summary.json": s} {
		encoded, err := json.MarshalIndent(v, "", " ")
		if err == nil {
			err = os.WriteFile(filepath.Join(r.opts.Dir, name), encoded, 0o600)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
