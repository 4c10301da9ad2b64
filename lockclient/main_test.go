package lockclient

import (
	"flag"
	"fmt"
	"os"
	"testing"
	"time"
)

// childVariable names what a copy of the test binary does instead of testing;
// see [startChild].
const childVariable = "FENCEPOST_LOCKCLIENT_CHILD"

// children are the programs of the copies, by name.
var children = map[string]func() error{}

func TestMain(m *testing.M) {
	name := os.Getenv(childVariable)
	if name == "" {
		flag.Parse()
		if f := flag.Lookup("test.parallel"); f.Value.String() == f.DefValue {
			f.Value.Set("4") // they wait for servers most of the time
		}
		os.Exit(m.Run())
	}
	program := children[name]
	if program == nil {
		fmt.Fprintf(os.Stderr, "no child program %q\n", name)
		os.Exit(2)
	}
	go func() { // a child does not outlive a killed parent
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
