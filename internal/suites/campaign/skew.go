package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// skew steps the wall clock of the server by libfaketime, which rereads the
// offset at every look at the clock. Monotonic clocks and Go programs are not
// affected.
type skew struct{ file, faketime string }

var errNoSkew = errors.New("libfaketime is not installed (Debian, Ubuntu: apt-get install libfaketime); -skew=false does without")

func newSkew() (*skew, error) {
	for _, pattern := range []string{"/usr/lib/*/faketime/libfaketime.so.1", "/usr/lib*/faketime/libfaketime.so.1", "/usr/local/lib/faketime/libfaketime.so.1"} {
		if found, _ := filepath.Glob(pattern); len(found) > 0 {
			// The server's user cannot enter the run's directory.
			open, err := os.MkdirTemp("", "fencepost-clock-")
			if err != nil {
				return nil, err
			}
			if err := os.Chmod(open, 0o755); err != nil {
				return nil, err
			}
			s := &skew{filepath.Join(open, "clock"), found[0]}
			return s, s.step(0)
		}
	}
	return nil, errNoSkew
}

// step sets the offset. The server's user must be able to read it.
func (s *skew) step(offset time.Duration) error {
	text := fmt.Sprintf("%+d\n", int(offset.Seconds()))
	if err := os.WriteFile(s.file+".new", []byte(text), 0o644); err != nil {
		return err
	}
	if err := os.Chmod(s.file+".new", 0o644); err != nil {
		return err
	}
	return os.Rename(s.file+".new", s.file)
}

// preload makes the next child that is started, the server's supervisor, load
// the library. The function that it returns undoes that.
func (s *skew) preload() func() {
	variables := map[string]string{
		"LD_PRELOAD": s.faketime, "FAKETIME_TIMESTAMP_FILE": s.file, "FAKETIME_NO_CACHE": "1",
		"FAKETIME_DONT_FAKE_MONOTONIC": "1", "NO_FAKE_STAT": "1",
	}
	for name, value := range variables {
		os.Setenv(name, value)
	}
	return func() {
		for name := range variables {
			os.Unsetenv(name)
		}
	}
}

// sweep removes what libfaketime leaves in /dev/shm for processes that were
// killed.
func sweep() {
	files, _ := filepath.Glob("/dev/shm/*faketime_*")
	for _, f := range files {
		pid, err := strconv.Atoi(f[strings.LastIndexByte(f, '_')+1:])
		if err == nil && state(pid) == 0 {
			os.Remove(f)
		}
	}
}
