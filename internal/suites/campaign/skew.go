package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// skew steps the wall clock of the server by libfaketime, which rereads the
// offset at every look at the clock. Monotonic clocks and Go programs are not
// affected.
type skew struct{ file, faketime string }

func newSkew() (*skew, error) {
	for _, pattern := range []string{"/usr/lib/*/faketime/libfaketime.so.1", "/usr/lib*/faketime/libfaketime.so.1", "/usr/local/lib/faketime/libfaketime.so.1"} {
		if found, _ := filepath.Glob(pattern); len(found) > 0 {
			// The server's user cannot enter the run's directory.
			dir, err := os.MkdirTemp("", "fencepost-clock-")
			if err != nil {
				return nil, err
			}
			s := &skew{filepath.Join(dir, "clock"), found[0]}
			return s, errors.Join(os.Chmod(dir, 0o755), s.step(0))
		}
	}
	return nil, errors.New("libfaketime is not installed (Debian, Ubuntu: apt-get install libfaketime); -skew=false does without")
}

// step sets the offset. The server's user must be able to read it.
func (s *skew) step(offset time.Duration) error {
	next := s.file + ".new"
	return errors.Join(os.WriteFile(next, fmt.Appendf(nil, "%+d\n", int(offset.Seconds())), 0o644), os.Chmod(next, 0o644), os.Rename(next, s.file))
}

// preloaded calls start, which starts the server, with the library in the
// environment, because pgtest passes that on.
func (s *skew) preloaded(start func() error) error {
	variables := map[string]string{
		"LD_PRELOAD": s.faketime, "FAKETIME_TIMESTAMP_FILE": s.file, "FAKETIME_NO_CACHE": "1",
		"FAKETIME_DONT_FAKE_MONOTONIC": "1", "NO_FAKE_STAT": "1",
	}
	for name, value := range variables {
		os.Setenv(name, value)
		defer os.Unsetenv(name)
	}
	return start()
}

// remove removes the file, and what libfaketime leaves in /dev/shm for processes
// that were killed.
func (s *skew) remove() error {
	files, _ := filepath.Glob("/dev/shm/*faketime_*")
	for _, f := range files {
		pid, err := strconv.Atoi(f[strings.LastIndexByte(f, '_')+1:])
		if err == nil && syscall.Kill(pid, 0) == syscall.ESRCH {
			os.Remove(f)
		}
	}
	return os.RemoveAll(filepath.Dir(s.file))
}
