package main

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/urfave/cli/v3"
)

// squeezed returns text without its layout: comment markers and space.
func squeezed(s string) string {
	return strings.Join(strings.Fields(strings.ReplaceAll(s, "//", " ")), " ")
}

// The program prints its runbook and its exit codes, and the documentation names
// commands that exist.
func TestDocumentation(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	doc := squeezed(string(source))
	if out := must(t, "", "help", "runbook"); out != strings.ReplaceAll(runbook, "\t", "  ") {
		t.Errorf("help runbook prints %q", out)
	}
	for issuer, title := range map[string]string{"etcd": "etcd, ZooKeeper", "zookeeper": "etcd, ZooKeeper", "redis": "Redis", issuerHTTP: "A lock server"} {
		_, section, found := strings.Cut(runbook, "\n"+title+"\n")
		section, _, _ = strings.Cut(section, "\n\n")
		for _, command := range []string{"show", "audit", "force-unlock"} {
			if !strings.Contains(section, "\tfencectl "+command+" RESOURCE") {
				t.Errorf("the runbook does not say how to %s on %s", command, issuer)
			}
		}
		if !found || !strings.Contains(section, "restore") || !strings.Contains(section, "failover") || !strings.Contains(section, "Not there: ") {
			t.Errorf("the runbook does not say what to do after a restore and a failover on %s, and what it cannot", issuer)
		}
	}
	codes := map[int]bool{}
	for _, e := range exitCodes {
		if codes[e.Code] {
			t.Errorf("exit code %d is there twice", e.Code)
		}
		codes[e.Code] = true
	}
	lines := strings.Split(strings.TrimSpace(must(t, "", "help", "exit-codes", "-o", "json")), "\n")
	if len(lines) != len(exitCodes) {
		t.Errorf("help exit-codes prints %d lines", len(lines))
	}
	var row struct{ Code int }
	if err := json.Unmarshal([]byte(lines[1]), &row); err != nil || row.Code != exitCodes[1].Code {
		t.Errorf("%v: %s", err, lines[1])
	}
	if out := must(t, "", "help", "exit-codes"); !strings.Contains(out, "the operator did not confirm") {
		t.Errorf("help exit-codes prints %s", out)
	}
	// Every command that the documentation shows is one.
	root := (&app{}).root()
	for _, m := range regexp.MustCompile(`fencectl ([a-z][a-z-]+)`).FindAllStringSubmatch(doc, -1) {
		if root.Command(m[1]) == nil && m[1] != "works" && m[1] != "ends" {
			t.Errorf("doc.go shows %s, which is no command", m[0])
		}
	}
}

// Every command has help that says what it is for, and fits a terminal.
func TestHelp(t *testing.T) {
	t.Parallel()
	var look func(path []string, cmd *cli.Command)
	look = func(path []string, cmd *cli.Command) {
		for line := range strings.Lines(must(t, "", append(slices.Clone(path), "--help")...)) {
			if len(line) > 101 {
				t.Errorf("%q has a line of %d columns: %s", path, len(line), line)
			}
		}
		if cmd.Usage == "" {
			t.Errorf("%q says nothing", path)
		}
		for _, sub := range cmd.Commands {
			look(append(slices.Clone(path), sub.Name), sub)
		}
	}
	root := (&app{}).root()
	look(nil, root)
	for _, cmd := range root.Commands {
		for _, args := range [][]string{{}, {"help"}, {"--help"}} {
			if page := must(t, "", args...); !strings.Contains(page, "\n     "+cmd.Name+" ") || !strings.Contains(page, "\n   intervene:\n") {
				t.Errorf("%q does not show %s:\n%s", args, cmd.Name, page)
			}
		}
	}
	for line := range strings.Lines(runbook) {
		if len(line) > 85 {
			t.Errorf("a line of %d columns in the runbook: %s", len(line), line)
		}
	}
	for _, args := range [][]string{
		{}, {"--help"}, {"help"}, {"list", "--help"}, {"help", "list"}, {"help", "marks", "raise"}, {"marks"}, {"epoch", "raise", "-h"},
	} {
		if out := must(t, "", args...); !strings.Contains(out, "USAGE:") || !strings.Contains(out, "fencectl") {
			t.Errorf("%q: %s", args, out)
		}
	}
	if r := fencectl(t, "", "help", "frob"); r.code != exitUsage {
		t.Errorf("%+v", r)
	}
	if out := must(t, "", "--version"); !strings.HasPrefix(out, "fencectl version ") {
		t.Errorf("%s", out)
	}
	// A resource may have the name of one of the library's commands.
	url, pool := database(t)
	for i, name := range []string{"help", "h", "--odd"} {
		exec1(t, pool, "INSERT INTO fencepost.leases (resource, token) VALUES ($1, $2)", name, i+1)
		if out := must(t, url, "show", "--", name); !strings.Contains(out, "token:     "+strconv.Itoa(i+1)+"\n") {
			t.Errorf("show %s: %s", name, out)
		}
	}
	if out := must(t, url, "show", "help"); !strings.Contains(out, "token:     1\n") {
		t.Errorf("show help: %s", out)
	}
}
