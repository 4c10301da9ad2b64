package pgtest

import (
	"bufio"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"
)

//go:embed supervisor.sh
var supervisorScript string

// patience bounds the waits that have no context: for an answer of the
// supervisor, and for the end of a server that was told to stop.
const patience = 2 * time.Minute

// supervisor is the shell that owns one server. It lives until the pipe to it
// closes, at the latest when this process ends.
type supervisor struct {
	dir     string
	pid     int
	pipe    *os.File      // its write end is held by this process alone
	replies chan string   // reports, apart from those about processes
	gone    chan struct{} // closed when the shell has ended

	mu      sync.Mutex
	current *postmaster
}

// postmaster is one run of postgres.
type postmaster struct {
	pid    int
	exited chan struct{}
}

// running reports whether the postmaster has not ended. It is false for nil.
func (p *postmaster) running() bool {
	if p == nil {
		return false
	}
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// supervise starts a supervisor, which makes the directory and runs initdb.
func supervise(name, bin string, roots []string, verifier string, configuration []string) (_ *supervisor, err error) {
	arguments := append([]string{"-c", supervisorScript, "pgtest", name, bin}, roots...)
	cmd := exec.Command("/bin/sh", arguments...)
	// The working directory of a test is often closed to the server's user.
	cmd.Dir = "/"
	cmd.Env = environment(os.Environ())
	if err := detach(cmd); err != nil {
		return nil, fmt.Errorf("pgtest: %w", err)
	}
	commands, pipe, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("pgtest: %w", err)
	}
	defer commands.Close()
	reports, stdout, err := os.Pipe()
	if err != nil {
		pipe.Close()
		return nil, fmt.Errorf("pgtest: %w", err)
	}
	defer stdout.Close()
	// Files, and none of them this process's own output: go test waits until
	// every holder of that has closed it, and a server must not keep it
	// waiting.
	cmd.Stdin, cmd.Stdout = commands, stdout
	if err := cmd.Start(); err != nil {
		pipe.Close()
		reports.Close()
		return nil, fmt.Errorf("pgtest: start the supervisor: %w", err)
	}
	s := &supervisor{pid: cmd.Process.Pid, pipe: pipe, replies: make(chan string, 16), gone: make(chan struct{})}
	go func() {
		// The exit status adds nothing to the reports.
		_ = cmd.Wait()
		close(s.gone)
	}()
	go s.listen(reports)
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	lines := append([]string{verifier}, configuration...)
	if err := s.tell(append(lines, "")...); err != nil {
		return nil, err
	}
	if s.dir, err = s.reply(context.Background(), "dir"); err != nil {
		return nil, err
	}
	return s, nil
}

// environment drops variables that would influence the server's programs, and
// fixes language and time zone.
func environment(outside []string) []string {
	env := []string{"LC_ALL=C", "TZ=UTC", "HOME=/"}
	path := "PATH="
	for _, variable := range outside {
		key, _, _ := strings.Cut(variable, "=")
		switch {
		case key == "PATH":
			path = variable + ":"
		case strings.HasPrefix(key, "PG"), strings.HasPrefix(key, "LC_"),
			key == "LANG", key == "LANGUAGE", key == "TZ", key == "HOME",
			key == "ENV", key == "BASH_ENV":
		default:
			env = append(env, variable)
		}
	}
	// The supervisor needs ls, rm and sleep even where PATH is empty.
	return append(env, path+"/usr/bin:/bin:/usr/sbin:/sbin")
}

// listen receives the reports until the supervisor has no more to say.
func (s *supervisor) listen(reports io.ReadCloser) {
	defer reports.Close()
	scanner := bufio.NewScanner(reports)
	for scanner.Scan() {
		word, rest, _ := strings.Cut(scanner.Text(), " ")
		switch word {
		case "pid":
			pid, err := strconv.Atoi(rest)
			if err != nil {
				continue
			}
			s.mu.Lock()
			s.current = &postmaster{pid: pid, exited: make(chan struct{})}
			s.mu.Unlock()
		case "exited":
			s.mu.Lock()
			if s.current.running() {
				close(s.current.exited)
			}
			s.mu.Unlock()
			continue
		}
		select {
		case s.replies <- scanner.Text():
		default:
		}
	}
}

// postmaster returns the latest run of postgres, nil if there was none.
func (s *supervisor) postmaster() *postmaster {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current
}

// tell sends lines to the supervisor.
func (s *supervisor) tell(lines ...string) error {
	if _, err := io.WriteString(s.pipe, strings.Join(lines, "\n")+"\n"); err != nil {
		return fmt.Errorf("pgtest: tell the supervisor: %w", err)
	}
	return nil
}

// reply waits for the report that begins with word and returns the rest of it.
func (s *supervisor) reply(ctx context.Context, word string) (string, error) {
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, patience)
		defer cancel()
	}
	for {
		select {
		case line := <-s.replies:
			key, rest, _ := strings.Cut(line, " ")
			if key == "error" {
				return "", fmt.Errorf("pgtest: %s", rest)
			}
			if key == word {
				return rest, nil
			}
		case <-s.gone:
			// Its last reports may still be in transit.
			select {
			case line := <-s.replies:
				return "", fmt.Errorf("pgtest: the supervisor has ended: %s", line)
			case <-time.After(100 * time.Millisecond):
				return "", errors.New("pgtest: the supervisor has ended")
			}
		case <-ctx.Done():
			return "", fmt.Errorf("pgtest: wait for the supervisor to report %q: %w", word, context.Cause(ctx))
		}
	}
}

// launch runs postgres on a port and returns without waiting until it is ready.
func (s *supervisor) launch(port int) (*postmaster, error) {
	if err := s.tell("start " + strconv.Itoa(port)); err != nil {
		return nil, err
	}
	if _, err := s.reply(context.Background(), "pid"); err != nil {
		return nil, err
	}
	return s.postmaster(), nil
}

// crash kills all processes of the server and waits until none is left.
func (s *supervisor) crash() error {
	if err := s.tell("crash"); err != nil {
		return err
	}
	code, err := s.reply(context.Background(), "crashed")
	if err != nil {
		return err
	}
	if code != "0" {
		return errors.New("pgtest: processes of the server survive SIGKILL")
	}
	return s.await(s.postmaster())
}

// shut sends the postmaster the signal for a shutdown mode, and waits for its
// end.
func (s *supervisor) shut(signal string) error {
	p := s.postmaster()
	if !p.running() {
		return nil
	}
	if err := s.tell("signal " + signal); err != nil {
		return err
	}
	return s.await(p)
}

// await waits for the end of a postmaster.
func (s *supervisor) await(p *postmaster) error {
	if p == nil {
		return nil
	}
	select {
	case <-p.exited:
		return nil
	case <-s.gone:
		return errors.New("pgtest: the supervisor has ended")
	case <-time.After(patience):
		return fmt.Errorf("pgtest: postgres (process %d) does not end", p.pid)
	}
}

// close ends the supervisor, and with it the server and its directory.
func (s *supervisor) close() error {
	if err := s.pipe.Close(); err != nil {
		return fmt.Errorf("pgtest: %w", err)
	}
	select {
	case <-s.gone:
	case <-time.After(patience):
		return fmt.Errorf("pgtest: the supervisor of %s does not end", s.dir)
	}
	if s.dir == "" {
		return nil
	}
	if _, err := os.Lstat(s.dir); !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("pgtest: %s could not be removed", s.dir)
	}
	return nil
}
