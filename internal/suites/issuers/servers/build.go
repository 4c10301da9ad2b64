package servers

import (
	"os/exec"
	"path/filepath"

	"github.com/fencepost-go/fencepost/internal/suites/process"
)

// Build builds a command of this module, such as "lockclient/etcdlock/cmd/fencectl-etcd",
// and returns what runs it: its output, and its exit code.
func Build(t process.TB, path string) func(args ...string) (output string, code int) {
	t.Helper()
	program := filepath.Join(t.TempDir(), filepath.Base(path))
	if out, err := exec.Command("go", "build", "-o", program, "github.com/fencepost-go/fencepost/"+path).CombinedOutput(); err != nil {
		t.Fatalf("building %s: %v, %s", path, err, out)
	}
	return func(args ...string) (string, int) {
		cmd := exec.Command(program, args...)
		out, err := cmd.CombinedOutput()
		if cmd.ProcessState == nil {
			t.Fatalf("%s: %v", path, err)
		}
		return string(out), cmd.ProcessState.ExitCode()
	}
}
