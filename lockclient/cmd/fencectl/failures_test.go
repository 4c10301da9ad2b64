package main

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/httpfence"
	"github.com/fencepost-go/fencepost/internal/pgerr"
	"github.com/fencepost-go/fencepost/sqlfence"
)

// TestFailuresPage: guard/FAILURES.md has one row for each reason, in the order in which they are
// found, with the status and header that a fence responds with, the SQLSTATEs that are read as
// it, and this program's exit code.
func TestFailuresPage(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../guard/FAILURES.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(page), "## Each reason")
	table, _, _ = strings.Cut(table, "\n## ")
	var named []guard.Reason
	states := map[string]guard.Reason{}
	for line := range strings.Lines(table) {
		cells := strings.Split(line, "|")
		if len(cells) != 7 || !strings.HasPrefix(strings.TrimSpace(cells[1]), "`") {
			continue
		}
		for n := range cells {
			cells[n] = strings.TrimSpace(cells[n])
		}
		reason := guard.Reason(strings.Trim(cells[1], "`"))
		named = append(named, reason)
		if exit := strconv.Itoa(byReason[reason]); cells[4] != exit {
			t.Errorf("%s: the page has exit code %s, fencectl %s", reason, cells[4], exit)
		}
		if status, said := response(t, reason); strconv.Itoa(status) != cells[2] || said != string(reason) {
			t.Errorf("%s: the page has status %s, a fence %d with %q", reason, cells[2], status, said)
		}
		for state := range strings.SplitSeq(cells[3], ", ") {
			states[state] = reason
		}
		if cells[5] == "" {
			t.Errorf("%s: nothing is to be done", reason)
		}
	}
	if want := append(guard.Reasons(), guard.ReasonOther); !slices.Equal(named, want) {
		t.Errorf("the page has the reasons %q, want %q", named, want)
	}
	delete(states, "")
	for _, state := range []string{pgerr.Stale, pgerr.Conflict, pgerr.Missing, pgerr.MustRaise, pgerr.Serialization, pgerr.Deadlock} {
		if got := guard.ReasonOf(sqlfence.ErrorFrom(&pgconn.PgError{Code: state})); states[state] != got {
			t.Errorf("SQLSTATE %s: the page has %q, sqlfence %q", state, states[state], got)
		}
		delete(states, state)
	}
	if len(states) != 1 || states[pgerr.MarkAhead] != guard.ReasonMarkAhead {
		t.Errorf("SQLSTATEs of no reason: %v", states)
	}
	for _, reason := range []guard.Reason{guard.ReasonConflict, guard.ReasonSpent, guard.ReasonStale} {
		_, below, _ := strings.Cut(table, "**A 412 under a token that is current**")
		if !strings.Contains(below, "- `"+string(reason)+"`") {
			t.Errorf("a 412 under a current token does not have %s", reason)
		}
	}
}

// response is how a fence refuses a request for a reason.
func response(t *testing.T, reason guard.Reason) (status int, said string) {
	t.Helper()
	fence, err := httpfence.New(guard.NewMemory(), func(*http.Request) (string, error) { return "r", nil }, &httpfence.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	refused := reason.Err()
	if refused == nil { // other
		refused = os.ErrClosed
	}
	w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/", nil)
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fence.Reject(w, r, refused) })
	r.Header.Set(httpfence.TokenHeader, "7")
	switch reason { // a handler that says so speaks of another request
	case guard.ReasonMissing:
		r.Header.Del(httpfence.TokenHeader)
		fence.Admit(handler).ServeHTTP(w, r)
	case guard.ReasonMisdirected:
		r.Header.Set(httpfence.ResourceHeader, "another")
		r.Header.Set(httpfence.LeaseHeader, "a")
		fence.Admit(handler).ServeHTTP(w, r)
	default:
		handler.ServeHTTP(w, r)
	}
	return w.Code, w.Header().Get(httpfence.ReasonHeader)
}
