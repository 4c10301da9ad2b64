package pgtest

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// noBinaries hides the server binaries from this test.
func noBinaries(t *testing.T) {
	t.Helper()
	t.Setenv("PATH", "")
	t.Setenv(binariesVariable, "")
	directories := usualDirectories
	usualDirectories = nil
	t.Cleanup(func() { usualDirectories = directories })
}

// fakeBinaries makes a directory with executable files.
func fakeBinaries(t *testing.T, dir string, names ...string) string {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func resolved(t *testing.T, dir string) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestFindBinaries(t *testing.T) {
	t.Setenv(binariesVariable, "")
	root := resolved(t, t.TempDir())
	all := []string{"initdb", "postgres", "pg_ctl"}
	old := fakeBinaries(t, filepath.Join(root, "postgresql", "9.6", "bin"), all...)
	middle := fakeBinaries(t, filepath.Join(root, "postgresql", "15", "bin"), all...)
	newest := fakeBinaries(t, filepath.Join(root, "postgresql", "17", "bin"), all...)
	fakeBinaries(t, filepath.Join(root, "postgresql", "18", "bin"), "postgres", "pg_ctl")
	clients := fakeBinaries(t, filepath.Join(root, "clients"), "psql", "pg_ctl")
	link := fakeBinaries(t, filepath.Join(root, "link"))
	if err := os.Symlink(filepath.Join(old, "postgres"), filepath.Join(link, "postgres")); err != nil {
		t.Fatal(err)
	}
	config := fakeBinaries(t, filepath.Join(root, "config"))
	script := "#!/bin/sh\necho " + middle + "\n"
	if err := os.WriteFile(filepath.Join(config, "pg_config"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	pattern := filepath.Join(root, "postgresql", "*", "bin")
	path := func(dirs ...string) string { return strings.Join(dirs, string(filepath.ListSeparator)) }
	tests := []struct {
		name     string
		path     string
		patterns []string
		want     string
	}{
		{"PATH", path(clients, middle, newest), []string{pattern}, middle},
		{"a lone link in PATH", path(clients, link), []string{pattern}, old},
		{"pg_config", path(clients, config), []string{pattern}, middle},
		{"the newest complete directory", clients, []string{filepath.Join(root, "none*"), pattern}, newest},
		{"a relative PATH is not trusted", ".", []string{pattern}, newest},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Setenv("PATH", test.path)
			got, err := findBinaries(t.Context(), test.patterns)
			if err != nil || got != test.want {
				t.Errorf("found %q, %v; want %q", got, err, test.want)
			}
		})
	}
	t.Run("the variable wins", func(t *testing.T) {
		t.Setenv("PATH", newest)
		t.Setenv(binariesVariable, old)
		if got, err := findBinaries(t.Context(), nil); err != nil || got != old {
			t.Errorf("found %q, %v; want %q", got, err, old)
		}
	})
	t.Run("the variable is wrong", func(t *testing.T) {
		t.Setenv("PATH", newest)
		for _, dir := range []string{clients, "bin"} {
			t.Setenv(binariesVariable, dir)
			if got, err := findBinaries(t.Context(), nil); !errors.Is(err, ErrNoServer) || !strings.Contains(err.Error(), binariesVariable) {
				t.Errorf("%s: found %q, %v", dir, got, err)
			}
		}
	})
	t.Run("nothing", func(t *testing.T) {
		t.Setenv("PATH", clients)
		_, err := findBinaries(t.Context(), []string{filepath.Join(root, "none*")})
		if !errors.Is(err, ErrNoServer) || !strings.Contains(err.Error(), ".ci/setup") {
			t.Errorf("error %v", err)
		}
	})
}

func TestNewestFirst(t *testing.T) {
	dirs := []string{"/p/9.6/bin", "/p/bin", "/p/18/bin", "/p/10/bin", "/p/9.5/bin"}
	slices.SortFunc(dirs, newestFirst)
	want := []string{"/p/18/bin", "/p/10/bin", "/p/9.6/bin", "/p/9.5/bin", "/p/bin"}
	if !slices.Equal(dirs, want) {
		t.Errorf("order %q, want %q", dirs, want)
	}
}
