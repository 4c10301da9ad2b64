package pgtest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ErrNoServer is the reason when the PostgreSQL server binaries are not found.
var ErrNoServer = errors.New("no PostgreSQL server binaries (initdb, postgres, pg_ctl) in PATH, " +
	"pg_config --bindir or the usual directories; run .ci/setup to install them")

// binariesVariable names the environment variable that names the directory of
// the server binaries. If set, it is the only one searched.
const binariesVariable = "FENCEPOST_PG_BIN"

// usualDirectories lists patterns of the places where packages put the server
// binaries, most likely first.
var usualDirectories = []string{
	"/usr/lib/postgresql/*/bin",                               // Debian, Ubuntu
	"/usr/pgsql-*/bin",                                        // RPM of postgresql.org
	"/usr/lib/postgresql*/bin",                                // openSUSE
	"/usr/libexec/postgresql*",                                // Alpine
	"/usr/bin",                                                // Fedora, Arch
	"/usr/local/bin",                                          // FreeBSD
	"/opt/homebrew/opt/postgresql@*/bin",                      // Homebrew on Apple silicon
	"/opt/homebrew/opt/postgresql/bin",                        //
	"/usr/local/opt/postgresql@*/bin",                         // Homebrew on Intel
	"/usr/local/opt/postgresql/bin",                           //
	"/home/linuxbrew/.linuxbrew/opt/postgresql@*/bin",         //
	"/Applications/Postgres.app/Contents/Versions/latest/bin", //
	"/Applications/Postgres.app/Contents/Versions/[0-9]*/bin", //
	"/usr/local/pgsql/bin",                                    // from source
}

// findBinaries returns the directory that holds initdb, postgres and pg_ctl:
// the one that FENCEPOST_PG_BIN names; without it, it searches PATH, then where
// pg_config points, then the places that match the patterns.
func findBinaries(ctx context.Context, patterns []string) (string, error) {
	if dir := os.Getenv(binariesVariable); dir != "" {
		bin, ok := serverDirectory(dir)
		if !ok {
			return "", fmt.Errorf("pgtest: %s=%q is not the absolute path of a directory with initdb, postgres and pg_ctl: %w", binariesVariable, dir, ErrNoServer)
		}
		return bin, nil
	}
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		if bin, ok := serverDirectory(dir); ok {
			return bin, nil
		}
	}
	if dir, ok := pgConfigDirectory(ctx); ok {
		if bin, ok := serverDirectory(dir); ok {
			return bin, nil
		}
	}
	for _, pattern := range patterns {
		dirs, err := filepath.Glob(pattern)
		if err != nil {
			return "", fmt.Errorf("pgtest: %s: %w", pattern, err)
		}
		slices.SortFunc(dirs, newestFirst)
		for _, dir := range dirs {
			if bin, ok := serverDirectory(dir); ok {
				return bin, nil
			}
		}
	}
	return "", fmt.Errorf("pgtest: %w", ErrNoServer)
}

// serverDirectory reports whether dir leads to the server binaries. A lone link
// to postgres, such as some images have in /usr/local/bin, is followed to where
// the others are.
func serverDirectory(dir string) (string, bool) {
	if !filepath.IsAbs(dir) {
		return "", false
	}
	if postgres, err := filepath.EvalSymlinks(filepath.Join(dir, "postgres")); err == nil {
		if bin := filepath.Dir(postgres); holdsServer(bin) {
			return bin, true
		}
	}
	return dir, holdsServer(dir)
}

func holdsServer(dir string) bool {
	for _, name := range []string{"initdb", "postgres", "pg_ctl"} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || info.IsDir() || info.Mode()&0o111 == 0 {
			return false
		}
	}
	return true
}

// pgConfigDirectory runs pg_config, which may be installed without a server.
func pgConfigDirectory(ctx context.Context) (string, bool) {
	path, err := exec.LookPath("pg_config")
	if err != nil {
		return "", false
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, path, "--bindir").Output()
	if err != nil {
		return "", false
	}
	return filepath.FromSlash(strings.TrimSpace(string(out))), true
}

// newestFirst orders directories by the last number in them, so that 17 comes
// before 9.6 and before 15.
func newestFirst(a, b string) int {
	return cmp.Or(cmp.Compare(lastNumber(b), lastNumber(a)), strings.Compare(a, b))
}

var number = regexp.MustCompile(`[0-9]+(\.[0-9]+)?`)

// lastNumber returns the last number in s, -1 if there is none.
func lastNumber(s string) float64 {
	all := number.FindAllString(s, -1)
	if len(all) == 0 {
		return -1
	}
	n, err := strconv.ParseFloat(all[len(all)-1], 64)
	if err != nil {
		return -1
	}
	return n
}
