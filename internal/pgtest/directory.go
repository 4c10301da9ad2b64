package pgtest

import (
	"os"
	"path/filepath"
	"slices"
)

// roots returns the directories in which a server's directory may be made, best
// first. The supervisor takes the first that works, because the caller's may be
// closed to the server's user or too long for the path of a Unix socket.
//
// By default it is the memory file system, which makes a database of a few
// hundred small files 5 to 20 times as fast as a disk does. A durable server
// belongs on a disk.
func roots(durable bool) []string {
	wanted := []string{"/tmp", "/var/tmp"}
	if !durable {
		wanted = append(wanted, "/dev/shm")
		if os.Getenv("TMPDIR") == "" {
			wanted = slices.Insert(wanted, 0, "/dev/shm")
		}
	}
	if os.Getenv("TMPDIR") != "" {
		wanted = slices.Insert(wanted, 0, os.TempDir())
	}
	var roots []string
	for _, dir := range wanted {
		dir, err := filepath.Abs(dir)
		if err == nil && !slices.Contains(roots, dir) {
			roots = append(roots, dir)
		}
	}
	return roots
}
