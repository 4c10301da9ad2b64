//go:build unix

package gateway

import (
	"context"
	"debug/buildinfo"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"time"
)

const module = "github.com/versity/versitygw"

// Version is a version of versitygw.
type Version string

const (
	// Correct decides conditions and applies writes in one step.
	Correct Version = "v1.8.0"
	// Racing passes every test that sends one request after the other, and yet
	// lets several racing conditional writes through. It is the control: what is
	// to notice a broken store must notice this one.
	Racing Version = "v1.7.0"
)

var building sync.Mutex

// Binary returns the path of versitygw at a version, and builds it if need be.
func Binary(ctx context.Context, version Version) (string, error) {
	// Builds use all processors anyway.
	building.Lock()
	defer building.Unlock()
	dir, err := cache()
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, fmt.Sprintf("versitygw-%s-%s-%s", version, runtime.GOOS, runtime.GOARCH))
	if check(path, version) == nil {
		return path, nil
	}
	// Test binaries of several packages run side by side.
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", fmt.Errorf("gateway: lock %s: %w", lock.Name(), err)
	}
	if check(path, version) == nil {
		return path, nil
	}
	return path, build(ctx, dir, path, version)
}

func build(ctx context.Context, dir, path string, version Version) error {
	// A directory of its own, so that an interrupted build leaves no half of a
	// binary under the final name.
	bin, err := os.MkdirTemp(dir, "build-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(bin)
	target := module + "/cmd/versitygw@" + string(version)
	// The module proxy may be away for a moment.
	for _, pause := range []time.Duration{5 * time.Second, 20 * time.Second, 0} {
		cmd := exec.CommandContext(ctx, "go", "install", "-trimpath", "-ldflags=-s -w", target)
		cmd.Dir = bin
		cmd.Env = append(os.Environ(), "GOBIN="+bin, "GOOS="+runtime.GOOS, "GOARCH="+runtime.GOARCH, "GOFLAGS=", "GOWORK=off")
		out, err := cmd.CombinedOutput()
		if err == nil {
			break
		}
		if pause == 0 || ctx.Err() != nil {
			return fmt.Errorf("gateway: go install %s: %w\n%s", target, err, out)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
	built := filepath.Join(bin, "versitygw")
	if err := check(built, version); err != nil {
		return err
	}
	return os.Rename(built, path)
}

// check looks into the binary for the version that it was built from.
func check(path string, version Version) error {
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		return err
	}
	if info.Main.Path != module || info.Main.Version != string(version) {
		return fmt.Errorf("gateway: %s is %s %s, not %s %s", path, info.Main.Path, info.Main.Version, module, version)
	}
	return nil
}

func cache() (string, error) {
	base, err := os.UserCacheDir()
	if err != nil {
		base = os.TempDir()
	}
	dir := filepath.Join(base, "fencepost")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("gateway: no place for the binary: %w", err)
	}
	return dir, nil
}
