package pgtest

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
)

// ErrNoServer is the reason when the PostgreSQL server binaries are not found.
var ErrNoServer = errors.New("no PostgreSQL server binaries (initdb, postgres) in PATH or the usual directories; run .ci/setup to install them")

// binariesVariable names the environment variable that names the directory of
// the server binaries. If set, it is the only one searched.
const binariesVariable = "FENCEPOST_PG_BIN"

// usualDirectories are patterns of the places where packages put the server
// binaries, most likely first.
var usualDirectories = []string{
	"/usr/lib/postgresql/*/bin",                               // Debian, Ubuntu
	"/usr/pgsql-*/bin",                                        // RPM of postgresql.org
	"/usr/libexec/postgresql*",                                // Alpine
	"/usr/bin",                                                // Fedora, Arch
	"/opt/homebrew/opt/postgresql@*/bin",                      // Homebrew on Apple silicon
	"/usr/local/opt/postgresql@*/bin",                         // Homebrew on Intel
	"/Applications/Postgres.app/Contents/Versions/[0-9]*/bin", //
	"/usr/local/pgsql/bin",                                    // from source
}

// findBinaries returns the directory that holds initdb and postgres: the one
// that FENCEPOST_PG_BIN names; without it, it searches PATH, then the places that
// match the patterns, the newest version first.
func findBinaries(patterns []string) (string, error) {
	if dir := os.Getenv(binariesVariable); dir != "" {
		if !holdsServer(dir) {
			return "", fmt.Errorf("pgtest: %s=%q is not the absolute path of a directory with initdb and postgres: %w", binariesVariable, dir, ErrNoServer)
		}
		return dir, nil
	}
	dirs := filepath.SplitList(os.Getenv("PATH"))
	for _, pattern := range patterns {
		found, err := filepath.Glob(pattern)
		if err != nil {
			return "", fmt.Errorf("pgtest: %s: %w", pattern, err)
		}
		slices.SortFunc(found, func(a, b string) int { return cmp.Compare(version(b), version(a)) })
		dirs = append(dirs, found...)
	}
	for _, dir := range dirs {
		// A link to postgres, as in /usr/local/bin, leads to where all programs are.
		if postgres, err := filepath.EvalSymlinks(filepath.Join(dir, "postgres")); err == nil && filepath.IsAbs(dir) {
			dir = filepath.Dir(postgres)
		}
		if holdsServer(dir) {
			return dir, nil
		}
	}
	return "", fmt.Errorf("pgtest: %w", ErrNoServer)
}

func holdsServer(dir string) bool {
	for _, name := range []string{"initdb", "postgres"} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || info.IsDir() || info.Mode()&0o111 == 0 {
			return false
		}
	}
	return filepath.IsAbs(dir)
}

var number = regexp.MustCompile(`[0-9]+(\.[0-9]+)?`)

// version is the first number in a directory's name, 0 if there is none.
func version(dir string) float64 {
	n, _ := strconv.ParseFloat(number.FindString(dir), 64)
	return n
}
