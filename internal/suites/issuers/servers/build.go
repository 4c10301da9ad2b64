package servers

import (
	"os/exec"
	"path/filepath"

	"github.com/fencepost-go/fencepost/internal/process"
)

// Fencectl builds the operators' command, for a test in a package that is as deep as this
// one, and returns what runs it: its output, and its exit code.
func Fencectl(t process.TB) func(args ...string) (output string, code int) {
	t.Helper()
	program := filepath.Join(t.TempDir(), "fencectl")
	build := exec.Command("go", "build", "-o", program, ".")
	build.Dir = "../../../../lockclient/cmd/fencectl"
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building fencectl: %v, %s", err, out)
	}
	return func(args ...string) (string, int) {
		cmd := exec.Command(program, args...)
		out, err := cmd.CombinedOutput()
		if cmd.ProcessState == nil {
			t.Fatalf("fencectl: %v", err)
		}
		return string(out), cmd.ProcessState.ExitCode()
	}
}
