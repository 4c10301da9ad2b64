package sqlfence

import (
	"bufio"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/sqlfence/internal/scratch"
)

// childVariable names the program that a copy of the test binary runs instead
// of the tests; see [startChild].
const childVariable = "FENCEPOST_SQLFENCE_CHILD"

// children are the programs of the copies, by name.
var children = map[string]func() error{}

func TestMain(m *testing.M) {
	name := os.Getenv(childVariable)
	if name == "" {
		flag.Parse()
		if f := flag.Lookup("test.parallel"); f.Value.String() == f.DefValue {
			f.Value.Set("4") // they wait for the server half of the time
		}
		code := m.Run()
		dropIdleDatabases()
		scratch.Close()
		os.Exit(code)
	}
	program := children[name]
	if program == nil {
		fmt.Fprintf(os.Stderr, "no child program %q\n", name)
		os.Exit(2)
	}
	go func() { // a child does not outlive a parent that was killed
		for parent := os.Getppid(); os.Getppid() == parent; {
			time.Sleep(100 * time.Millisecond)
		}
		os.Exit(1)
	}()
	if err := program(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// child is a copy of the test binary that runs one of [children].
type child struct {
	*exec.Cmd
	out *bufio.Scanner
}

func startChild(t testing.TB, name string, env ...string) *child {
	t.Helper()
	exe, err := os.Executable()
	must(t, err)
	c := &child{Cmd: exec.Command(exe)}
	c.Env = append(append(os.Environ(), childVariable+"="+name), env...)
	c.Stderr = os.Stderr
	out, err := c.StdoutPipe()
	must(t, err)
	c.out = bufio.NewScanner(out)
	must(t, c.Start())
	t.Cleanup(func() {
		c.Process.Kill()
		c.Wait()
	})
	return c
}

// line returns the child's next line.
func (c *child) line(t testing.TB) string {
	t.Helper()
	if !c.out.Scan() {
		t.Fatalf("the child ended: %v", c.out.Err())
	}
	return c.out.Text()
}
