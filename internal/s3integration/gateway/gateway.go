//go:build unix

package gateway

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// startLimit is how long a process may take until it answers; a tenth of a
// second is usual. It only ends a hang.
const startLimit = 2 * time.Minute

// Gateway is a running versitygw.
type Gateway struct {
	// URL is the endpoint; buckets are addressed by path.
	URL             string
	Region          string
	AccessKeyID     string
	SecretAccessKey string
	// PID is the process, and Dir its directory.
	PID int
	Dir string

	binary  string
	cmd     *exec.Cmd
	janitor *janitor
	output  *output
	ended   chan struct{} // closed when the process has ended
	stop    sync.Once
	stopErr error
}

// Start runs versitygw until the test ends.
func Start(t testing.TB, version Version) *Gateway {
	t.Helper()
	binary, err := Binary(t.Context(), version)
	if err != nil {
		t.Fatal(err)
	}
	g, err := start(t.Context(), binary)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("versitygw %s:\n%s", version, g.output)
		}
		if err := g.Stop(); err != nil {
			t.Error(err)
		}
	})
	return g
}

// start tries the places for the directory, and ports that another process
// might have taken in between.
func start(ctx context.Context, binary string) (*Gateway, error) {
	places := []string{os.TempDir(), "/var/tmp"}
	if dir, err := cache(); err == nil {
		places = append(places, dir)
	}
	var errs []error
	for _, place := range places {
		for range 3 {
			g, err := launch(ctx, binary, place)
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

func launch(ctx context.Context, binary, place string) (*Gateway, error) {
	dir, err := os.MkdirTemp(place, "fencepost-versitygw-")
	if err != nil {
		return nil, err
	}
	address, err := freeAddress()
	if err != nil {
		return nil, errors.Join(err, os.Remove(dir))
	}
	g := &Gateway{
		URL: "http://" + address, Region: "us-east-1", AccessKeyID: "fencepost", SecretAccessKey: rand.Text(),
		Dir: dir, binary: binary, output: &output{},
	}
	if err := os.Mkdir(g.data(), 0o700); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	// The janitor comes first, so that there is never a process without one.
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

// run starts the process on what is in the directory, and waits until it
// answers.
func (g *Gateway) run(ctx context.Context) error {
	address := strings.TrimPrefix(g.URL, "http://")
	g.cmd = exec.Command(g.binary, "--port", address, "--region", g.Region, "--keep-alive", "--quiet", "posix", g.data())
	g.cmd.Dir = g.Dir
	g.cmd.Env = []string{"ROOT_ACCESS_KEY_ID=" + g.AccessKeyID, "ROOT_SECRET_ACCESS_KEY=" + g.SecretAccessKey, "HOME=" + g.Dir, "TMPDIR=" + g.Dir}
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

// Kill ends the process as kill -9 does, in the middle of whatever it is at,
// and leaves its directory for [Gateway.Restart].
func (g *Gateway) Kill() {
	g.cmd.Process.Kill() // fails only if it has ended
	<-g.ended
}

// Restart starts the process again after [Gateway.Kill], at the same address
// and on the same directory. Neither may run beside the other or Stop.
func (g *Gateway) Restart(ctx context.Context) error {
	g.Kill()
	// A janitor watches one process. The next comes before the last one goes.
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
			return nil
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
