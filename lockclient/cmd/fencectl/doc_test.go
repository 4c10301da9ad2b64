package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
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
	codes := map[int]bool{}
	for _, e := range exitCodes {
		if codes[e.code] {
			t.Errorf("exit code %d is there twice", e.code)
		}
		codes[e.code] = true
	}
	lines := strings.Split(strings.TrimSpace(must(t, "", "help", "exit-codes", "-o", "json")), "\n")
	if len(lines) != len(exitCodes) {
		t.Errorf("help exit-codes prints %d lines", len(lines))
	}
	var row struct{ Code int }
	if err := json.Unmarshal([]byte(lines[1]), &row); err != nil || row.Code != exitCodes[1].code {
		t.Errorf("%v: %s", err, lines[1])
	}
	if out := must(t, "", "help", "exit-codes"); !strings.Contains(out, "the operator did not confirm") {
		t.Errorf("help exit-codes prints %s", out)
	}
	// Every command that the documentation shows is one.
	root := (&app{}).root()
	for _, m := range regexp.MustCompile(`fencectl ([a-z][a-z-]+)`).FindAllStringSubmatch(doc, -1) {
		if root.Command(m[1]) == nil && m[1] != "completion" && m[1] != "works" && m[1] != "ends" {
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
	look(nil, (&app{}).root())
	for line := range strings.Lines(runbook) {
		if len(line) > 85 {
			t.Errorf("a line of %d columns in the runbook: %s", len(line), line)
		}
	}
	for _, args := range [][]string{
		{}, {"--help"}, {"help"}, {"list", "--help"}, {"help", "list"}, {"help", "marks", "raise"}, {"marks"}, {"epoch", "raise", "-h"}, {"completion"},
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

// The completion asks the program itself, and runs no command and nothing on
// the command line.
func TestCompletion(t *testing.T) {
	t.Parallel()
	for _, shell := range shells {
		if out := must(t, "", "completion", shell); !strings.Contains(out, "--generate-shell-completion") {
			t.Errorf("%s: %s", shell, out)
		}
	}
	for line, want := range map[string]string{
		"":                     "force-unlock",
		"marks":                "retire",
		"force-unlock --re":    "--reason",
		"list -":               "--awaited",
		"help":                 "exit-codes",
		"epoch raise --yes --": "--yes",
	} {
		args := append(strings.Fields(line), "--generate-shell-completion") // the library looks at os.Args
		out, err := program(t, []string{"FENCECTL_DATABASE_URL=postgres://nobody@127.0.0.1:1/none"}, args...).Output()
		if err != nil || !strings.Contains("\n"+string(out), "\n"+want+":") {
			t.Errorf("%q offers no %s: %v\n%s", line, want, err, out)
		}
	}
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Log("there is no bash here: only what the script asks was tested")
		return
	}
	owned := filepath.Join(t.TempDir(), "owned")
	complete := `source <("$0" completion bash); fencectl() { command "$FENCECTL" "$@"; }; COMP_WORDS=("$@"); COMP_CWORD=$(($#-1)); _fencectl; echo "${COMPREPLY[*]}"; complete -p fencectl`
	for _, c := range []struct {
		words []string
		want  string
	}{
		{[]string{"fencectl", "pu"}, "purge\n"},
		{[]string{"fencectl", "marks", "re"}, "reset resets retire\n"},
		{[]string{"fencectl", "force-unlock", "$(touch " + owned + ")", "--ra"}, "--raise --raise-timeout\n"},
		{[]string{"fencectl", "show", ""}, "\n"},
	} {
		self := program(t, nil)
		cmd := exec.Command(bash, append([]string{"--norc", "-c", complete, self.Path}, c.words...)...)
		cmd.Env = append(self.Env, "FENCECTL="+self.Path)
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.HasPrefix(string(out), c.want) || !strings.Contains(string(out), "-F _fencectl fencectl") {
			t.Errorf("%q: %v\n%s", c.words, err, out)
		}
	}
	if _, err := os.Stat(owned); err == nil {
		t.Error("the completion ran what stood on the command line")
	}
}
