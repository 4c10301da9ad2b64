package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// equivalent is a mutant that does the same as the original, so that no test
// can notice it.
type equivalent struct {
	function, diff, reason string
	seen                   bool
}

// readEquivalents reads a package's list. An entry is the function, the removed
// and added lines as a survivor is printed, and the reason:
//
//	in Memory.Check
//	- if mark.Token > 0 {
//	+ if mark.Token >= 0 {
//	because the zero mark admits every claim anyway
//
// Empty lines separate entries; lines that begin with # are comments. The
// package level is "in -".
func readEquivalents(file string) ([]equivalent, error) {
	b, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	var out []equivalent
	var e equivalent
	for i, line := range append(lines(string(b)), "") {
		bad := false
		switch kind, rest, _ := strings.Cut(line, " "); {
		case strings.HasPrefix(line, "#"):
		case line == "" && e == equivalent{}:
		case line == "":
			if bad = e.function == "" || e.diff == "" || e.reason == ""; !bad {
				e.function = strings.TrimPrefix(e.function, "-")
				out = append(out, e)
				e = equivalent{}
			}
		case kind == "in" && e.function == "":
			e.function = rest
		case kind == "-" || kind == "+":
			e.diff += line + "\n"
		case kind == "because" && e.reason == "":
			e.reason = rest
		default:
			bad = true
		}
		if bad {
			return nil, fmt.Errorf("%s:%d: an entry is `in FUNCTION`, lines with - and +, and `because REASON`", file, i+1)
		}
	}
	return out, nil
}

func (h *hunt) isKnown(m mutant) (reason string, ok bool) {
	diff := h.p.diff(m)
	for i, e := range h.known {
		if e.function == m.function && e.diff == diff {
			h.known[i].seen = true
			return e.reason, true
		}
	}
	return "", false
}

// writeOverlay writes the go command's overlay list and its files; content is
// keyed by the files that they replace.
func writeOverlay(dir string, content map[string]string) (string, error) {
	replace := map[string]string{}
	for file, text := range content {
		name := filepath.Join(dir, strings.ReplaceAll(file, string(filepath.Separator), "_"))
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			return "", err
		}
		replace[file] = name
	}
	encoded, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	name := filepath.Join(dir, "overlay.json")
	return name, os.WriteFile(name, encoded, 0o600)
}
