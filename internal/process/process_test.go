package process

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/fencepost-go/fencepost/internal/testkit"
)

// childVariable makes this test binary a program: one that starts a server and
// waits, or the server.
const childVariable = "FENCEPOST_PROCESS_TEST"

func TestMain(m *testing.M) {
	kind, arg, _ := strings.Cut(os.Getenv(childVariable), " ")
	switch kind {
	case "":
		os.Exit(m.Run())
	case "parent":
		server := exec.Command(os.Args[0])
		server.Env = append(os.Environ(), childVariable+"=server "+arg)
		p, err := Start(server)
		if err != nil {
			panic(err)
		}
		fmt.Println(p.PID())
		<-p.Done() // this process is killed
	case "server":
		http.ListenAndServe(arg, http.NotFoundHandler())
	}
}

func serve(t *testing.T) *Server {
	t.Helper()
	addr := FreeAddr(t)
	return Serve(t, &Server{Addr: addr, Dir: t.TempDir(), Command: []string{os.Args[0]}, Env: []string{childVariable + "=server " + addr},
		Ready: Listens(addr)}).Await()
}

// state asks the kernel; 0 if there is no such process.
func state(pid int) byte {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	return stat[bytes.LastIndexByte(stat, ')')+2]
}

// TestPause: a paused server stands still when Pause returns, goes on when it is
// resumed, and can be killed while it is paused.
func TestPause(t *testing.T) {
	t.Parallel()
	s := serve(t)
	pid := s.now().PID()
	for range 3 {
		if !s.now().Pause() || state(pid) != 'T' {
			t.Fatalf("paused, its state is %q", state(pid))
		}
		s.Resume()
		resp, err := http.Get("http://" + s.Addr)
		if err != nil {
			t.Fatalf("resumed, it does not answer: %v", err)
		}
		resp.Body.Close()
	}
	s.Pause()
	s.Kill()
	if Listens(s.Addr)() == nil || s.now().State().ExitCode() != -1 {
		t.Error("it was killed, and listens")
	}
	if s.now().Pause() {
		t.Error("a dead process was paused")
	}
	s.Start()
	if err := Listens(s.Addr)(); err != nil {
		t.Error(err)
	}
}

// TestEndsWithParent: what a killed process has started is gone.
func TestEndsWithParent(t *testing.T) {
	t.Parallel()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childVariable+"=parent "+FreeAddr(t))
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var pid int
	if _, err := fmt.Fscan(out, &pid); err != nil || state(pid) == 0 {
		t.Fatalf("process %d: %v", pid, err)
	}
	cmd.Process.Signal(syscall.SIGKILL)
	io.Copy(io.Discard, out)
	cmd.Wait()
	testkit.Eventually(t, fmt.Sprintf("the end of process %d", pid), func() bool { return state(pid) == 0 || state(pid) == 'Z' })
}

// failing is a TB that notes the failure and ends the goroutine.
type failing struct {
	testing.TB
	said chan string
}

func (f failing) Fatalf(format string, args ...any) {
	f.said <- fmt.Sprintf(format, args...)
	select {}
}

// TestEndedEarly: a server that ends before it is ready fails the test at once,
// with what it has written.
func TestEndedEarly(t *testing.T) {
	t.Parallel()
	f := failing{t, make(chan string, 1)}
	go Serve(f, &Server{Dir: t.TempDir(), Command: []string{"/bin/sh", "-c", "echo no such option"}, Ready: func() error { return io.EOF }}).Await()
	if said := <-f.said; !strings.Contains(said, "no such option") {
		t.Errorf("%q", said)
	}
}

// TestWorker: a worker is talked to in lines; what it wrote before its end is read after
// it; and one that ends instead of writing fails the test.
func TestWorker(t *testing.T) {
	t.Parallel()
	w := Work(t, exec.Command("/bin/sh", "-c", "read -r word; echo got $word; read -r word; exit 3"))
	w.Say("one")
	if line := w.Line(); line != "got one" {
		t.Errorf("%q", line)
	}
	w.Say("two")
	if code := w.End(); code != 3 {
		t.Errorf("exit code %d", code)
	}
	w = Work(t, exec.Command("/bin/sh", "-c", "echo last"))
	<-w.Done()
	if line := w.Line(); line != "last" {
		t.Errorf("%q", line)
	}
	f := failing{t, make(chan string, 1)}
	go Work(f, exec.Command("/bin/false")).Line()
	if said := <-f.said; !strings.Contains(said, "exit status 1") {
		t.Errorf("%q", said)
	}
	// What a killed process has started is killed, too.
	w = Work(t, exec.Command("/bin/sh", "-c", "sleep 600 & echo $!; wait"))
	var pid int
	fmt.Sscan(w.Line(), &pid)
	if state(pid) == 0 {
		t.Fatalf("process %d is not there", pid)
	}
	w.Kill()
	testkit.Eventually(t, fmt.Sprintf("the end of process %d", pid), func() bool { return state(pid) == 0 || state(pid) == 'Z' })
}

// TestRun: Close undoes in reverse order, also what is added meanwhile.
func TestRun(t *testing.T) {
	r := &Run{}
	dir := r.TempDir()
	var order []int
	r.Cleanup(func() { order = append(order, 1) })
	r.Cleanup(func() { r.Cleanup(func() { order = append(order, 2) }) })
	r.Close()
	if fmt.Sprint(order) != "[2 1]" {
		t.Errorf("order %v", order)
	}
	if _, err := os.Stat(dir); err == nil {
		t.Errorf("%s is still there", dir)
	}
}
