//go:build unix

// Package gateway builds and runs real S3 stores for tests: versitygw, MinIO
// and rclone.
//
//	g := gateway.Start(t, gateway.Versitygw)
//	// point an S3 client at g.URL, path-style, with g.AccessKeyID and g.SecretAccessKey
//
// A store is built once from its Go module, at the version that its [Product]
// names, and its binary is kept below the user's cache directory. The process
// listens on 127.0.0.1, keeps its data in a temporary directory, and is gone,
// directory included, when the test or its process ends, however that happens.
//
// The directory is on a file system with extended attributes, as versitygw
// needs them: in TMPDIR, /var/tmp or the user's cache directory, whichever
// works first.
package gateway

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// startLimit is how long a process may take to answer; a second is usual. It
// only ends a hang.
const startLimit = 2 * time.Minute

// Gateway is a running store.
type Gateway struct {
	// URL is the endpoint; buckets are addressed by path.
	URL             string
	Region          string
	AccessKeyID     string
	SecretAccessKey string
	// PID is the process, and Dir its directory.
	PID int
	Dir string

	product Product
	binary  string
	cmd     *exec.Cmd
	janitor *janitor
	output  *output
	ended   chan struct{} // closed when the process has ended
	stop    sync.Once
	stopErr error
}

// Start runs a store until the test ends.
func Start(t testing.TB, product Product) *Gateway {
	t.Helper()
	binary, err := product.Binary(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	g, err := start(t.Context(), product, binary)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s:\n%s", product.Name, g.output)
		}
		if err := g.Stop(); err != nil {
			t.Error(err)
		}
	})
	return g
}

// start tries the places for the directory, and retries if another process has
// taken the port meanwhile.
func start(ctx context.Context, product Product, binary string) (*Gateway, error) {
	places := []string{os.TempDir(), "/var/tmp"}
	if dir, err := cache(); err == nil {
		places = append(places, dir)
	}
	var errs []error
	for _, place := range places {
		for range 3 {
			g, err := launch(ctx, product, binary, place)
			if err == nil {
				return g, nil
			}
			errs = append(errs, err)
			if !strings.Contains(err.Error(), "address already in use") {
				break
			}
		}
	}
	return nil, fmt.Errorf("gateway: not started: %w", errors.Join(errs...))
}

func launch(ctx context.Context, product Product, binary, place string) (*Gateway, error) {
	dir, err := os.MkdirTemp(place, "fencepost-store-")
	if err != nil {
		return nil, err
	}
	address, err := freeAddress()
	if err != nil {
		return nil, errors.Join(err, os.Remove(dir))
	}
	g := &Gateway{
		URL: "http://" + address, Region: "us-east-1", AccessKeyID: "fencepost", SecretAccessKey: rand.Text(),
		Dir: dir, product: product, binary: binary, output: &output{},
	}
	if err := os.Mkdir(g.data(), 0o700); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	// The janitor starts first, so that there is never a process without one.
	g.janitor, err = newJanitor(dir)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	if err := g.run(ctx); err != nil {
		return nil, errors.Join(err, g.Stop())
	}
	return g, nil
}

func (g *Gateway) data() string { return filepath.Join(g.Dir, "data") }

// run starts the process on the directory's contents, and waits until it
// answers.
func (g *Gateway) run(ctx context.Context) error {
	address := strings.TrimPrefix(g.URL, "http://")
	args, env := g.product.run(g, address)
	g.cmd = exec.Command(g.binary, args...)
	g.cmd.Dir = g.Dir
	g.cmd.Env = append(env, "HOME="+g.Dir, "TMPDIR="+g.Dir)
	g.cmd.Stdout, g.cmd.Stderr = g.output, g.output
	ended := make(chan struct{})
	g.ended = ended
	if err := g.cmd.Start(); err != nil {
		close(ended)
		return err
	}
	g.PID = g.cmd.Process.Pid
	cmd := g.cmd
	go func() {
		cmd.Wait() // it ends by being killed, so its status says nothing
		close(ended)
	}()
	if err := g.janitor.watch(g.PID); err != nil {
		return err
	}
	return g.wait(ctx)
}

// Kill ends the process as kill -9 does, whatever it is doing, and leaves its
// directory for [Gateway.Restart].
func (g *Gateway) Kill() {
	g.cmd.Process.Kill() // fails only if it has ended
	<-g.ended
}

// Restart starts the process again after [Gateway.Kill], at the same address
// and on the same directory. Neither may run concurrently with the other or
// Stop.
func (g *Gateway) Restart(ctx context.Context) error {
	g.Kill()
	// A janitor watches one process. The next one starts before the last one
	// ends.
	next, err := newJanitor(g.Dir)
	if err != nil {
		return err
	}
	last := g.janitor
	g.janitor = next
	if err := last.dismiss(); err != nil {
		return err
	}
	return g.run(ctx)
}

// wait waits until the process answers.
func (g *Gateway) wait(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, g.URL, nil)
		if err != nil {
			return err
		}
		if answer, err := client.Do(r); err == nil {
			answer.Body.Close()
			if answer.StatusCode != http.StatusServiceUnavailable { // MinIO's word for "starting"
				return nil
			}
		}
		select {
		case <-g.ended:
			return fmt.Errorf("it ended at once, in %s:\n%s", g.Dir, g.output)
		case <-ctx.Done():
			return fmt.Errorf("it does not answer: %w\n%s", context.Cause(ctx), g.output)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// Stop ends the process and removes its directory.
func (g *Gateway) Stop() error {
	g.stop.Do(func() {
		if g.cmd.Process != nil {
			g.cmd.Process.Kill() // fails only if it has ended
		}
		<-g.ended
		g.stopErr = errors.Join(os.RemoveAll(g.Dir), g.janitor.dismiss())
	})
	return g.stopErr
}

func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// output keeps the beginning of what the process prints.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if room := 64<<10 - o.buf.Len(); room > 0 {
		o.buf.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// janitor is a shell that cleans up if this process ends before doing so: it
// waits on a pipe that only this process holds.
type janitor struct {
	cmd  *exec.Cmd
	pipe io.WriteCloser
}

// script reads the process's ID from its first line, and from a second that all
// is well. If a line is missing, this process has ended.
const script = `
read -r pid || pid=
if ! read -r word; then
	if [ -n "$pid" ]; then kill -9 "$pid"; fi
	# It may still be writing.
	for try in 1 2 3 4 5 6 7 8 9 10; do
		rm -rf "$1" && break
		sleep 0.1
	done
fi
`

func newJanitor(dir string) (*janitor, error) {
	j := &janitor{cmd: exec.Command("/bin/sh", "-c", script, "janitor", dir)}
	// Detached from the terminal, so that Ctrl-C does not end it as well.
	j.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	j.cmd.Dir = "/"
	pipe, err := j.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	j.pipe = pipe
	if err := j.cmd.Start(); err != nil {
		return nil, fmt.Errorf("gateway: start the janitor: %w", err)
	}
	return j, nil
}

func (j *janitor) watch(pid int) error {
	_, err := fmt.Fprintln(j.pipe, pid)
	return err
}

// dismiss ends the janitor when there is nothing left to clean up.
func (j *janitor) dismiss() error {
	// An extra line does no harm if no process was started.
	if _, err := fmt.Fprint(j.pipe, "\ndone\n"); err != nil {
		return err
	}
	if err := j.pipe.Close(); err != nil {
		return err
	}
	return j.cmd.Wait()
}
