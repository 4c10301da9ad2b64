package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// process is a program that runs alongside this one and does not outlive it.
type process struct {
	cmd  *exec.Cmd
	once sync.Once
}

// starter starts every process from one thread that never ends: the kernel kills
// them when the thread that started them ends.
var starter = sync.OnceValue(func() chan func() {
	c := make(chan func())
	go func() {
		runtime.LockOSThread()
		for f := range c {
			f()
		}
	}()
	return c
})

// startProcess starts a program and waits until it has printed a line with the
// word ready; if that is empty, it does not wait.
func startProcess(ready string, name string, args ...string) (*process, error) {
	p := &process{cmd: exec.Command(name, args...)}
	p.cmd.SysProcAttr = dieWithParent()
	p.cmd.Stderr = os.Stderr
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	done := make(chan error)
	starter() <- func() { done <- p.cmd.Start() }
	if err := <-done; err != nil {
		return nil, err
	}
	if ready == "" {
		go io.Copy(io.Discard, out)
		return p, nil
	}
	found := make(chan bool, 1)
	go func() {
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			if strings.Contains(lines.Text(), ready) {
				found <- true
				break
			}
		}
		close(found)
		io.Copy(io.Discard, out)
	}()
	select {
	case ok := <-found:
		if !ok {
			p.kill()
			return nil, fmt.Errorf("%s ended before it was ready", filepath.Base(name))
		}
		return p, nil
	case <-time.After(time.Minute):
		p.kill()
		return nil, fmt.Errorf("%s is not ready after a minute", filepath.Base(name))
	}
}

// kill is kill -9; it may be called again.
func (p *process) kill() {
	p.once.Do(func() {
		p.cmd.Process.Kill()
		p.cmd.Wait()
	})
}

func (p *process) pids() []int { return []int{p.cmd.Process.Pid} }

// startChild runs this program again in another role; see child.
func startChild(args ...string) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return startProcess("ready", self, append([]string{asChild}, args...)...)
}

const asChild = "as-child"

// child runs the role that a parent asked for, if any.
func child(args []string) bool {
	if len(args) < 3 || args[1] != asChild {
		return false
	}
	var err error
	switch args = args[2:]; args[0] {
	case "etcd":
		err = serveEtcd(args[1], args[2], args[3] == "true")
	case "locks":
		err = serveLocks(args[1], args[2])
	case "hold":
		var ttl time.Duration
		if ttl, err = time.ParseDuration(args[4]); err == nil {
			err = hold(context.Background(), args[1], args[2], args[3], ttl)
		}
	default:
		err = errors.New("unknown")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", args[0], "child:", err)
		os.Exit(1)
	}
	return true
}

// freeAddr returns a free loopback address.
func freeAddr() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}

// tick is the unit of /proc/PID/stat, on every Linux.
const tick = 10 * time.Millisecond

// cpuOf returns the CPU time that processes have used until now, with that of
// their ended children.
func cpuOf(pids []int) (sum time.Duration) {
	for _, pid := range pids {
		f := stat(pid)
		for _, i := range []int{11, 12, 13, 14} { // utime, stime, cutime, cstime
			if i < len(f) {
				n, _ := strconv.Atoi(f[i])
				sum += time.Duration(n) * tick
			}
		}
	}
	return sum
}

// stat returns the fields of /proc/PID/stat after the name.
func stat(pid int) []string {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, _ := strings.Cut(string(text), ") ")
	return strings.Fields(rest)
}

// family returns a process with its living children.
func family(parent int) []int {
	out := []int{parent}
	entries, _ := filepath.Glob("/proc/[0-9]*")
	for _, entry := range entries {
		pid, _ := strconv.Atoi(filepath.Base(entry))
		if f := stat(pid); len(f) > 1 && f[1] == strconv.Itoa(parent) {
			out = append(out, pid)
		}
	}
	return out
}

// ownCPU returns the CPU time of this process.
func ownCPU() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
