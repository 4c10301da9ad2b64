package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"

	"github.com/fencepost-go/fencepost/guard"

	"github.com/fencepost-go/fencepost/internal/suites/campaign/oracle"
)

// recorder writes the history of a client or of a replica's handlers. Each event
// is one write to the file, so that a process that is killed leaves whole lines,
// and a kill between two events leaves a call without a return.
type recorder struct {
	file   *os.File
	client string
	last   atomic.Int64
}

func newRecorder(r role) (*recorder, error) {
	client := r.Name + "." + strconv.Itoa(r.Life)
	file, err := os.OpenFile(filepath.Join(r.Dir, "history-"+client+".jsonl"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	return &recorder{file: file, client: client}, err
}

// id returns a new name for an operation or a write.
func (r *recorder) id() string { return r.client + "-" + strconv.FormatInt(r.last.Add(1), 10) }

// begin records a call and returns the operation, to be given to end.
func (r *recorder) begin(o oracle.Op) oracle.Op {
	o.ID, o.Client, o.Call = r.id(), r.client, monotonic()
	r.write(o)
	return o
}

// end records the result of an operation.
func (r *recorder) end(o oracle.Op, err error) {
	o.Return = monotonic()
	o.Outcome = outcome(err)
	if err != nil {
		o.Error = err.Error()
	}
	r.write(o)
}

func (r *recorder) write(o oracle.Op) {
	line, err := json.Marshal(o)
	if err == nil {
		_, err = r.file.Write(append(line, '\n'))
	}
	if err != nil {
		// A history with a gap proves nothing: better none.
		fmt.Fprintln(os.Stderr, "campaign: record:", err)
		os.Exit(4)
	}
}

// outcome is a client's interpretation of an error. An error that does not say
// what was done, such as a broken connection, means unknown.
func outcome(err error) string {
	switch reason := guard.ReasonOf(err); reason {
	case guard.ReasonNone:
		return oracle.OK
	case guard.ReasonOther:
		return oracle.Unknown
	default:
		return string(reason)
	}
}

// readHistory adds what one process recorded to a history.
func readHistory(name string, h *oracle.History) error {
	file, err := os.Open(name)
	if err != nil {
		return err
	}
	defer file.Close()
	ops, err := oracle.ReadOps(file)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	h.Ops = append(h.Ops, ops...)
	return nil
}
