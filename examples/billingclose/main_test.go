//go:build unix

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/longtest"
	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/internal/testkit"
)

// TestMain lets the test binary be a worker, and the whole program, because
// the story starts its workers by running its own executable again.
func TestMain(m *testing.M) {
	switch {
	case os.Getenv(roleVariable) != "":
		main()
		os.Exit(0)
	case os.Getenv("BILLINGCLOSE_MAIN") != "":
		patient = true
		os.Args = append(os.Args[:1], strings.Fields(os.Getenv("BILLINGCLOSE_MAIN"))...)
		os.Unsetenv("BILLINGCLOSE_MAIN")
		main()
	}
	os.Exit(m.Run())
}

func TestFenced(t *testing.T) {
	out, status := tellIn(t, "-json")
	if status != 0 {
		t.Fatalf("exit status %d:\n%s", status, out)
	}
	want := `{"fenced":true,"resource":"tenant_123:billing-close:2026-04",` +
		`"holders":[{"worker":"a","token":"1"},{"worker":"b","token":"2"}],"closedBy":"b","closes":1,` +
		`"staleAttempts":4,"staleRefused":4,"misdirectedAttempts":1,"misdirectedRefused":1,"lostUpdates":0,"ok":true}`
	if got := lastLine(out); got != want {
		t.Errorf("summary\n got %s\nwant %s", got, want)
	}
	for _, text := range []string{"SIGSTOP", "SIGCONT", "refused with 412: stale", "the token is for tenant_123:payouts:2026-04", "lease lost", "FENCED: 4 stale attempts, 4 refused"} {
		if !strings.Contains(out, text) {
			t.Errorf("the timeline does not mention %q:\n%s", text, out)
		}
	}
}

// TestPicture: what the README's picture says, the story says, in this order. The control is a
// story that goes another way.
func TestPicture(t *testing.T) {
	spaces, run := regexp.MustCompile(`\s+`), regexp.MustCompile(` \(pid [0-9]+\)`)
	label := regexp.MustCompile(`^(payouts, )?token [0-9]+: | for another resource$`)
	var texts []string
	for _, m := range regexp.MustCompile(`<text[^>]*>([^<]*)</text>`).FindAllStringSubmatch(readPicture(t), -1)[3:] { // without the lanes' names
		if text := label.ReplaceAllString(m[1], ""); !strings.HasPrefix(text, "mark ") {
			texts = append(texts, text)
		}
	}
	for args, want := range map[string]bool{"-json": true, "-unfenced": false} {
		out, status := tellIn(t, args)
		said := run.ReplaceAllString(spaces.ReplaceAllString(out, " "), "")
		all := status == 0 && len(texts) > 30
		for _, text := range texts {
			_, after, found := strings.Cut(said, text)
			if !found && want {
				t.Errorf("the story does not say %q, or says it earlier:\n%s", text, out)
			}
			said, all = after, all && found
		}
		if all != want {
			t.Errorf("%s: the picture is the story: %v", args, all)
		}
	}
}

func readPicture(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("story.svg")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// The control: the same story without the guards must show the damage.
func TestUnfenced(t *testing.T) {
	out, status := tellIn(t, "-unfenced", "-json")
	if status != 0 {
		t.Fatalf("exit status %d:\n%s", status, out)
	}
	var s summary
	if err := json.Unmarshal([]byte(lastLine(out)), &s); err != nil {
		t.Fatal(err)
	}
	if s.Fenced || s.OK || s.StaleRefused != 0 || s.LostUpdates == 0 || !s.ExportOverwritten || s.Closes != 2 || s.ClosedBy != "a" {
		t.Errorf("the damage does not show: %+v", s)
	}
}

// The judge must not be satisfied with less than it claims.
func TestJudge(t *testing.T) {
	good := func() (*judge, state) {
		j := newJudge(true)
		j.note("a", report{What: "granted", Token: 1}, false)
		j.note("a", report{What: "invoices", Invoices: map[string]int64{"x": 1}}, false)
		j.note("b", report{What: "granted", Token: 2}, false)
		j.note("b", report{What: "invoices", Invoices: map[string]int64{"y": 2}}, false)
		for _, what := range []string{"invoices", "close", "ledger", "export"} {
			j.note("a", report{What: what, Reason: "stale"}, true)
		}
		j.noteMisdirected(&guard.MisdirectedError{})
		return j, state{Status: "closed", Total: 3, ClosedBy: "b", Closes: 1, Token: 2,
			Invoices: map[string]invoice{"x": {1, "a"}, "y": {2, "b"}}, Postings: []posting{{3, "b"}},
			Export: export{Content: "x,1\ny,2\n", ExportedBy: "b"}}
	}
	j, s := good()
	if got := j.judge(s, s); !got.OK || !got.promised() {
		t.Fatalf("a good end was judged bad: %+v", got)
	}
	for name, spoil := range map[string]func(*judge, *state){
		"closed twice":                        func(_ *judge, s *state) { s.Closes = 2 },
		"closed by the stale":                 func(_ *judge, s *state) { s.ClosedBy = "a" },
		"an invoice lost":                     func(_ *judge, s *state) { delete(s.Invoices, "x") },
		"an invoice rewritten":                func(_ *judge, s *state) { s.Invoices["y"] = invoice{2, "a"} },
		"an invoice too many":                 func(_ *judge, s *state) { s.Invoices["z"] = invoice{0, "a"} },
		"posted twice":                        func(_ *judge, s *state) { s.Postings = append(s.Postings, posting{3, "a"}) },
		"the posting overwritten by its like": func(_ *judge, s *state) { s.Postings = []posting{{3, "a"}} },
		"not posted":                          func(_ *judge, s *state) { s.Postings = nil },
		"the export overwritten by its like":  func(_ *judge, s *state) { s.Export.ExportedBy = "a" },
		"the export overwritten":              func(_ *judge, s *state) { s.Export.Content = "x,1\ny,1\n" },
		"the export gone":                     func(_ *judge, s *state) { s.Export = export{} },
		"a wrong total":                       func(_ *judge, s *state) { s.Total = 4 },
		"an attempt applied":                  func(j *judge, _ *state) { j.StaleRefused-- },
		"an attempt missing":                  func(j *judge, _ *state) { j.StaleAttempts--; j.StaleRefused-- },
		"a misdirected write applied":         func(j *judge, _ *state) { j.MisdirectedRefused-- },
		"no misdirected write":                func(j *judge, _ *state) { j.MisdirectedAttempts--; j.MisdirectedRefused-- },
		"refused for another reason":          func(j *judge, _ *state) { j.MisdirectedRefused = 0; j.noteMisdirected(guard.ErrStale) },
		"tokens did not grow":                 func(j *judge, _ *state) { j.Holders[0].Token = 2 },
		"the mark is another's":               func(_ *judge, s *state) { s.Token = 1 },
	} {
		j, s := good()
		before := s
		before.Invoices = map[string]invoice{"x": {1, "a"}, "y": {2, "b"}}
		spoil(j, &s)
		if got := j.judge(before, s); got.OK || got.promised() {
			t.Errorf("%s: judged good: %+v", name, got)
		}
	}
}

func TestBadFlags(t *testing.T) {
	for _, args := range [][]string{{"-nope"}, {"extra"}, {"-json=maybe"}} {
		var out, errs bytes.Buffer
		if status := tell(args, &out, &errs); status != 1 || errs.Len() == 0 || out.Len() != 0 {
			t.Errorf("%q: status %d, stdout %q, stderr %q", args, status, out.String(), errs.String())
		}
	}
}

// Ctrl-C in the middle leaves no process and no file behind, the stopped
// worker included. On Linux not even SIGKILL leaves any.
func TestNothingIsLeft(t *testing.T) {
	signals := longtest.ByLength([]syscall.Signal{syscall.SIGINT}, []syscall.Signal{syscall.SIGINT, syscall.SIGTERM})
	if runtime.GOOS == "linux" {
		signals = append(signals, syscall.SIGKILL)
	}
	for _, sig := range signals {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()                              // each has its own servers, and mostly waits for them
			tmp, err := os.MkdirTemp("/tmp", "story") // short and open: the server's user must reach it
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.RemoveAll(tmp) })
			if err := os.Chmod(tmp, 0o777); err != nil {
				t.Fatal(err)
			}
			p := startMain(t, tmp)
			worker := p.until(t, "SIGSTOP: worker a (pid ")
			var pid int
			if _, err := fmt.Sscanf(worker[strings.Index(worker, "(pid "):], "(pid %d)", &pid); err != nil {
				t.Fatal(err)
			}
			// The control: now there is something that could be left behind.
			if !alive(pid) || len(files(t, tmp)) == 0 && os.Getenv("FENCEPOST_DATABASE_URL") == "" {
				t.Fatalf("worker alive: %v, files: %q: the test would notice nothing", alive(pid), files(t, tmp))
			}
			if err := p.cmd.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			if err := p.cmd.Wait(); err == nil {
				t.Error("an interrupted story must not exit with 0")
			}
			testkit.Eventually(t, "the end of worker and files", func() bool { return !alive(pid) && len(files(t, tmp)) == 0 })
		})
	}
}

type mainProcess struct {
	cmd *exec.Cmd
	out *lines
}

func startMain(t *testing.T, tmp string) *mainProcess {
	t.Helper()
	p := &mainProcess{cmd: exec.CommandContext(t.Context(), os.Args[0]), out: &lines{found: make(chan string, 1)}}
	p.cmd.Env = append(os.Environ(), "BILLINGCLOSE_MAIN=-json", "TMPDIR="+tmp)
	p.cmd.Stdout, p.cmd.Stderr = p.out, t.Output()
	p.out.want = "SIGSTOP: worker a (pid "
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return p
}

func (p *mainProcess) until(t *testing.T, want string) string {
	t.Helper()
	return testkit.Receive(t, fmt.Sprintf("the story to say %q", want), p.out.found)
}

// lines finds the first written line that contains want.
type lines struct {
	want  string
	buf   bytes.Buffer
	done  bool
	found chan string
}

func (l *lines) Write(b []byte) (int, error) {
	l.buf.Write(b)
	for _, line := range strings.SplitAfter(l.buf.String(), "\n") {
		if !l.done && strings.Contains(line, l.want) && strings.HasSuffix(line, "\n") {
			l.done = true
			l.found <- line
		}
	}
	return len(b), nil
}

func tellIn(t *testing.T, args ...string) (string, int) {
	t.Helper()
	t.Setenv("FENCEPOST_DATABASE_URL", pgtest.Database(t)) // else it starts a server of its own
	patient = true
	var out bytes.Buffer
	status := tell(args, &out, &out)
	return out.String(), status
}

func lastLine(out string) string {
	all := strings.Split(strings.TrimSpace(out), "\n")
	return all[len(all)-1]
}

// alive reports whether the process runs or is stopped; a zombie that waits
// for its new parent is neither.
func alive(pid int) bool {
	if stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err == nil {
		_, state, _ := strings.Cut(string(stat), ") ")
		return !strings.HasPrefix(state, "Z")
	}
	return syscall.Kill(pid, 0) == nil
}

func files(t *testing.T, dir string) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if path != dir && err == nil {
			out = append(out, path)
		}
		return nil // what vanishes while we look is what we hope for
	})
	if err != nil {
		t.Fatal(err)
	}
	return slices.Compact(out)
}
