package pgtest

import (
	"maps"
	"os"
	"slices"
	"strings"
)

// Options configure a private server. The zero value is a fast server for
// tests.
type Options struct {
	// Settings are added to postgresql.conf, such as
	// {"synchronous_commit": "off"}. They override the defaults of this package.
	Settings map[string]string

	// Durable makes the server keep its data on a disk, not in memory, and wait
	// for it on every commit (fsync=on). It costs time, and committed rows
	// survive the death of the server's processes without it; see the package
	// documentation.
	Durable bool

	// Fresh gives the server a system identifier of its own: initdb makes its
	// data directory, which takes seconds of processor time, and nothing is
	// copied.
	Fresh bool
}

// configuration returns the end of postgresql.conf for a server.
func (o *Options) configuration(name, dir string) string {
	settings := map[string]string{
		// Enough for packages that test with many clients at once.
		"max_connections": "200",
		// Compiling a query takes longer than any test's query runs.
		"jit": "off",
	}
	if !o.Durable {
		settings["fsync"] = "off"
		// The WAL of a server must not fill a memory file system.
		settings["max_wal_size"] = "256MB"
	}
	maps.Copy(settings, o.Settings)
	maps.Copy(settings, map[string]string{
		"listen_addresses":        "127.0.0.1",
		"unix_socket_directories": dir,
		// The name is in the title of every server process. It tells a reader of
		// ps, and on systems without /proc the watchdog, whose processes they are.
		"cluster_name": name,
		// Files in the data directory, so that a killed server leaves nothing in
		// /dev/shm.
		"dynamic_shared_memory_type": "mmap",
	})
	var b strings.Builder
	for _, key := range slices.Sorted(maps.Keys(settings)) {
		// In a quoted setting a backslash escapes as well.
		b.WriteString(key + " = '" + strings.NewReplacer(`\`, `\\`, `'`, `''`).Replace(settings[key]) + "'\n")
	}
	return b.String()
}

// roots returns the directories in which the server's directory may be made,
// best first. The watchdog takes the first that works, because the caller's may
// be closed to the server's user or too long for the path of a Unix socket.
//
// The memory file system makes a database of a few hundred small files 5 to 20
// times as fast as a disk does. A durable server belongs on a disk.
func (o *Options) roots() []string {
	var roots []string
	if dir := os.Getenv("TMPDIR"); dir != "" {
		roots = append(roots, dir)
	}
	if !o.Durable {
		roots = append(roots, "/dev/shm")
	}
	return append(roots, "/tmp", "/var/tmp")
}
