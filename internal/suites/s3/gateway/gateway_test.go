//go:build unix

package gateway

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

// childVariable makes this test binary a program that starts a gateway and waits.
const childVariable = "GATEWAY_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childVariable) == "" {
		os.Exit(m.Run())
	}
	if err := child(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func child() error {
	g, err := start(context.Background(), Versitygw, os.Getenv(childVariable))
	if err != nil {
		return err
	}
	if err := json.NewEncoder(os.Stdout).Encode(g); err != nil {
		return err
	}
	time.Sleep(time.Hour) // it will be killed
	return nil
}

// gone waits until neither the process nor its directory is there.
func gone(t *testing.T, pid int, dir string) {
	t.Helper()
	for begin := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		_, err := os.Stat(dir)
		if errors.Is(err, fs.ErrNotExist) && !alive(pid) {
			return
		}
		if time.Since(begin) > time.Minute {
			t.Fatalf("left behind: process %d (alive: %v), %s (%v)", pid, alive(pid), dir, err)
		}
	}
}

// alive reports whether a process runs. A zombie, which an orphan may remain if
// nobody reaps it, does not.
func alive(pid int) bool {
	if syscall.Kill(pid, 0) == syscall.ESRCH {
		return false
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || !bytes.HasPrefix(stat[bytes.LastIndexByte(stat, ')')+1:], []byte(" Z"))
}

func TestStop(t *testing.T) {
	for _, product := range []Product{Versitygw, RacingVersitygw, Rclone, RcloneFullCache} {
		t.Run(product.Name, func(t *testing.T) {
			g := Start(t, product)
			answer, err := http.Get(g.URL)
			if err != nil {
				t.Fatal(err)
			}
			answer.Body.Close()
			if answer.StatusCode != http.StatusForbidden {
				t.Errorf("an unsigned request is answered %d", answer.StatusCode)
			}
			for range 2 {
				if err := g.Stop(); err != nil {
					t.Error(err)
				}
			}
			gone(t, g.PID, g.Dir)
		})
	}
}

// A test that is killed cannot clean up by itself.
func TestKilledTestLeavesNothing(t *testing.T) {
	binary, err := Versitygw.Binary(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childVariable+"="+binary)
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	line, err := bufio.NewReader(stdout).ReadBytes('\n')
	if err != nil {
		t.Fatal(err)
	}
	var g Gateway
	if err := json.Unmarshal(line, &g); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(g.PID, 0); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	gone(t, g.PID, g.Dir)
}

func TestWrongBinaryIsRefused(t *testing.T) {
	if err := Versitygw.check(os.Args[0]); err == nil {
		t.Error("this test binary was taken for versitygw")
	}
	binary, err := Versitygw.Binary(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := RacingVersitygw.check(binary); err == nil {
		t.Errorf("%s was taken for %s", Versitygw.Name, RacingVersitygw.Name)
	}
	if _, err := start(t.Context(), Versitygw, os.Args[0]+".missing"); err == nil {
		t.Error("a missing binary was started")
	}
}
