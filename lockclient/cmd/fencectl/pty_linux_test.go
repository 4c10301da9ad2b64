package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/fencepost-go/fencepost/internal/testkit"
)

// terminal is the program on a terminal of its own (pty(7)).
type terminal struct {
	t      *testing.T
	cmd    *exec.Cmd
	master *os.File
	read   chan struct{} // closed when there is nothing more to read

	mu  sync.Mutex
	got bytes.Buffer
}

func onTerminal(t *testing.T, url string, args ...string) *terminal {
	t.Helper()
	fd, err := syscall.Open("/dev/ptmx", syscall.O_RDWR|syscall.O_CLOEXEC|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	term := &terminal{t: t, master: os.NewFile(uintptr(fd), "ptmx"), read: make(chan struct{})}
	var locked, number int32
	term.control(fd, syscall.TIOCSPTLCK, &locked)
	term.control(fd, syscall.TIOCGPTN, &number)
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer slave.Close()
	term.cmd = program(t, []string{"DATABASE_URL=" + url, "TERM=xterm"}, args...)
	term.cmd.Stdin, term.cmd.Stdout, term.cmd.Stderr = slave, slave, slave
	term.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := term.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		term.cmd.Process.Kill()
		term.master.Close()
		<-term.read
	})
	go func() {
		defer close(term.read)
		b := make([]byte, 4096)
		for {
			n, err := term.master.Read(b) // EIO when the program has ended
			term.mu.Lock()
			term.got.Write(b[:n])
			term.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	return term
}

func (term *terminal) control(fd int, request uintptr, value *int32) {
	term.t.Helper()
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), request, uintptr(unsafe.Pointer(value))); errno != 0 {
		term.t.Fatal(errno)
	}
}

func (term *terminal) screen() string {
	term.mu.Lock()
	defer term.mu.Unlock()
	return term.got.String()
}

// sees waits for a text.
func (term *terminal) sees(text string) {
	term.t.Helper()
	defer func() {
		if term.t.Failed() {
			term.t.Logf("the screen:\n%q", term.screen())
		}
	}()
	testkit.Eventually(term.t, fmt.Sprintf("%q on the screen", text), func() bool { return strings.Contains(term.screen(), text) })
}

// keys types; "\x03" is Ctrl-C.
func (term *terminal) keys(keys string) {
	term.t.Helper()
	if _, err := term.master.WriteString(keys); err != nil {
		term.t.Fatal(err)
	}
}

// ends returns the exit code.
func (term *terminal) ends() int {
	term.t.Helper()
	late := time.AfterFunc(testkit.Patience, func() { term.cmd.Process.Kill() })
	defer late.Stop()
	err := term.cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		term.t.Fatal(err)
	}
	return term.cmd.ProcessState.ExitCode()
}
