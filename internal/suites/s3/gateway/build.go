//go:build unix

package gateway

import (
	"debug/buildinfo"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"
)

// Product is a store at a version.
type Product struct {
	// Name is for people.
	Name string
	// Module and Version are its Go module and version.
	Module, Version string

	// install is the package to install; main, if not empty, is the source of a
	// program to build instead.
	install, main string
	// binary is the name of the file.
	binary string
	// run returns arguments and environment for a store at an address, with its
	// data in a directory.
	run func(g *Gateway, address, data string) (args, env []string)
}

var (
	// Versitygw decides conditions and applies writes in one step.
	Versitygw = versitygw("v1.8.0")
	// VersionedVersitygw is the same with a place for versions, so that buckets may
	// have versioning. Over a delete marker it refuses If-None-Match: * and accepts
	// If-Match with the ETag of the version before.
	VersionedVersitygw = versitygw("v1.8.0", "--versioning-dir")
	// RacingVersitygw passes every test that sends one request after the other,
	// and yet lets several racing conditional writes through. It is the
	// control: a check for broken stores must detect this one.
	RacingVersitygw = versitygw("v1.7.0")
	// MinIO is its last release as a Go module. It decides conditional PUTs in
	// one step and ignores conditions of DELETE. Building it takes five minutes
	// of CPU time.
	MinIO = Product{
		Name: "MinIO 2026-02-12", Module: "github.com/minio/minio", Version: "v0.0.0-20260212201848-7aac2a2c5b7c",
		install: "github.com/minio/minio", binary: "minio",
		run: func(g *Gateway, address, data string) ([]string, []string) {
			return []string{"server", "--quiet", "--address", address, data}, []string{
				"MINIO_ROOT_USER=" + g.AccessKeyID, "MINIO_ROOT_PASSWORD=" + g.SecretAccessKey, "MINIO_REGION=" + g.Region,
				"MINIO_BROWSER=off", "MINIO_UPDATE=off", "MINIO_CI_CD=1", // one disk, which may be the root's
			}
		},
	}
	// Rclone is "rclone serve s3" without a cache: it decides conditions in a
	// step before the write, refuses suffix ranges that are longer than the
	// object, and gives no ETag while an object is overwritten.
	Rclone = rclone("off")
	// RcloneFullCache is the same with --vfs-cache-mode full.
	RcloneFullCache = rclone("full")
)

func versitygw(version string, versions ...string) Product {
	return Product{
		Name: strings.Join(append([]string{"versitygw", version}, versions...), " "), Module: "github.com/versity/versitygw", Version: version,
		install: "github.com/versity/versitygw/cmd/versitygw", binary: "versitygw",
		run: func(g *Gateway, address, data string) ([]string, []string) {
			args := []string{"--port", address, "--region", g.Region, "--keep-alive", "--quiet", "posix"}
			for _, flag := range versions {
				args = append(args, flag, filepath.Dir(data)) // next to the data
			}
			return append(args, data), []string{"ROOT_ACCESS_KEY_ID=" + g.AccessKeyID, "ROOT_SECRET_ACCESS_KEY=" + g.SecretAccessKey}
		},
	}
}

// rclone is built with only the needed backend, in a fifth of the time.
func rclone(cache string) Product {
	return Product{
		Name: "rclone v1.76.0 --vfs-cache-mode " + cache, Module: "github.com/rclone/rclone", Version: "v1.76.0", binary: "rclone",
		main: `package main

import (
	_ "github.com/rclone/rclone/backend/local"
	"github.com/rclone/rclone/cmd"
	_ "github.com/rclone/rclone/cmd/serve"
	_ "github.com/rclone/rclone/cmd/serve/s3"
)

func main() { cmd.Main() }
`,
		run: func(g *Gateway, address, data string) ([]string, []string) {
			return []string{"serve", "s3", "--addr", address, "--auth-key", g.AccessKeyID + "," + g.SecretAccessKey,
				"--vfs-cache-mode", cache, "--config", "", "--cache-dir", filepath.Join(filepath.Dir(data), "cache"), data}, nil
		},
	}
}

// Binary returns the path of the store's binary, and builds it if necessary.
func (p Product) Binary() (string, error) {
	base, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(base, "fencepost")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	// One build at a time uses all processors anyway. Each open file has a lock of
	// its own, so this excludes goroutines as well as other test binaries.
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", fmt.Errorf("gateway: lock %s: %w", lock.Name(), err)
	}
	path := filepath.Join(dir, fmt.Sprintf("%s-%s-%s-%s", p.binary, p.Version, runtime.GOOS, runtime.GOARCH))
	if p.check(path) == nil {
		return path, nil
	}
	return path, p.build(dir, path)
}

func (p Product) build(dir, path string) error {
	// A directory of its own, so that an interrupted build leaves no partial
	// binary under the final name.
	bin, err := os.MkdirTemp(dir, "build-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(bin)
	args := []string{"install", "-trimpath", "-ldflags=-s -w", p.install + "@" + p.Version}
	if p.main != "" {
		args = []string{"build", "-mod=mod", "-trimpath", "-ldflags=-s -w", "-o", p.binary, "."}
		module := "module " + p.binary + "\n\ngo 1.26.0\n\nrequire " + p.Module + " " + p.Version + "\n"
		for name, text := range map[string]string{"main.go": p.main, "go.mod": module} {
			if err := os.WriteFile(filepath.Join(bin, name), []byte(text), 0o600); err != nil {
				return err
			}
		}
	}
	cmd := exec.Command("go", args...)
	cmd.Dir = bin
	cmd.Env = append(os.Environ(), "GOBIN="+bin, "GOOS="+runtime.GOOS, "GOARCH="+runtime.GOARCH, "GOFLAGS=", "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("gateway: build %s %s: %w\n%s", p.Module, p.Version, err, out)
	}
	built := filepath.Join(bin, p.binary)
	if err := p.check(built); err != nil {
		return err
	}
	return os.Rename(built, path)
}

// check verifies the version that the binary was built from.
func (p Product) check(path string) error {
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		return err
	}
	for _, m := range append([]*debug.Module{&info.Main}, info.Deps...) {
		if m.Path == p.Module && m.Version == p.Version && m.Replace == nil {
			return nil
		}
	}
	return fmt.Errorf("gateway: %s is %s %s, not built from %s %s", path, info.Main.Path, info.Main.Version, p.Module, p.Version)
}
