package pgtest

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Options configure a private server. The zero value is a fast server for
// tests.
type Options struct {
	// Settings are added to postgresql.conf, such as
	// {"synchronous_commit": "off"}. They override the settings of this
	// package, but port, listen_addresses, unix_socket_directories,
	// data_directory, hba_file, cluster_name and the shared memory types cannot
	// be set.
	Settings map[string]string

	// Durable makes the server keep its data on a disk, not in memory, and wait
	// for it on every commit (fsync=on). It costs time, and committed rows
	// survive the death of the server's processes without it; see the package
	// documentation.
	Durable bool
}

// reserved are the settings on which finding, reaching and removing a server
// depend.
var reserved = []string{
	"port", "listen_addresses", "unix_socket_directories", "data_directory",
	"config_file", "hba_file", "ident_file", "external_pid_file", "cluster_name",
	"update_process_title", "shared_memory_type", "dynamic_shared_memory_type",
	"logging_collector", "log_destination",
}

// configuration returns the lines that are appended to postgresql.conf.
func (o *Options) configuration(name string) ([]string, error) {
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
	for key, value := range o.Settings {
		key = strings.ToLower(key)
		if !isSettingName(key) {
			return nil, fmt.Errorf("pgtest: Options.Settings: %q is not the name of a setting", key)
		}
		if slices.Contains(reserved, key) {
			return nil, fmt.Errorf("pgtest: Options.Settings: %s cannot be chosen", key)
		}
		if strings.ContainsAny(value, "\x00\r\n") {
			return nil, fmt.Errorf("pgtest: Options.Settings: the value of %s has a line break", key)
		}
		settings[key] = value
	}
	settings["listen_addresses"] = "127.0.0.1"
	// The name is in the title of every server process. It tells a reader of
	// ps, and on systems without /proc the supervisor, whose processes they
	// are.
	settings["cluster_name"] = name
	// Files in the data directory, so that a killed server leaves nothing in
	// /dev/shm.
	settings["dynamic_shared_memory_type"] = "mmap"

	var lines []string
	for _, key := range slices.Sorted(maps.Keys(settings)) {
		lines = append(lines, key+" = "+quoteSetting(settings[key]))
	}
	return lines, nil
}

// isSettingName reports whether s is valid as a name in postgresql.conf.
func isSettingName(s string) bool {
	for _, c := range s {
		switch {
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9', c == '_', c == '.':
		default:
			return false
		}
	}
	return s != ""
}

// quoteSetting quotes a value for postgresql.conf, where a backslash escapes
// too.
func quoteSetting(s string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, `'`, `''`).Replace(s) + "'"
}
