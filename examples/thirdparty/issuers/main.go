// Command issuers is a short form of examples/billingclose, with leases from
// three nodes of another issuer, one of which is killed during it: a worker is
// stopped for longer than its lease, another takes over and closes the period,
// and the first continues and writes.
//
//	go -C examples/thirdparty/issuers run . -issuer etcd       or zookeeper, or redis (a master, two replicas, three Sentinels)
//	go -C examples/thirdparty/issuers run . -issuer etcd -unfenced
//	go -C examples/thirdparty/issuers run . -issuer redlock    shows why that is none
//
// The exit status is 0 exactly when the flags' promise held: the first worker's
// write was refused or, with -unfenced, was not.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/internal/suites/issuers/etcdnode"
	"github.com/fencepost-go/fencepost/internal/suites/process"
)

// limit ends a run that hangs.
const limit = 5 * time.Minute

func main() {
	etcdnode.Main()
	if role := os.Getenv(roleVariable); role != "" {
		if err := work(context.Background(), role); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(tell(os.Args[1:], os.Stdout, os.Stderr))
}

func tell(args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("issuers", flag.ContinueOnError)
	flags.SetOutput(stderr)
	kind := flags.String("issuer", "", "`who` issues the leases: etcd, redis, zookeeper; redlock shows why it is none")
	unfenced := flags.Bool("unfenced", false, "write without a fence and show the damage")
	if err := flags.Parse(args); err != nil || flags.NArg() > 0 {
		return 1
	}
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	ctx, cancel = context.WithTimeoutCause(ctx, limit, fmt.Errorf("the story did not end within %s", limit))
	defer cancel()
	started := &process.Run{}
	defer started.Close()
	var err error
	switch *kind {
	case "redlock":
		err = redlock(ctx, started, stdout)
	case "etcd", "redis", "zookeeper":
		err = story(ctx, started, *kind, !*unfenced, stdout)
	default:
		err = fmt.Errorf("-issuer must be etcd, redis, zookeeper or redlock, not %q", *kind)
	}
	if err != nil {
		fmt.Fprintln(stderr, "issuers:", err)
		return 1
	}
	return 0
}

// story runs the two workers and judges the result.
func story(ctx context.Context, started *process.Run, kind string, fenced bool, out io.Writer) error {
	url, drop, err := pgtest.Provide(ctx)
	if err != nil {
		return err
	}
	defer drop()
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return err
	}
	defer pool.Close()
	if _, err := pool.Exec(ctx, `CREATE TABLE closes (tenant text PRIMARY KEY, closed_by text NOT NULL DEFAULT '',
		times int NOT NULL DEFAULT 0, last_fencing_token bigint NOT NULL DEFAULT 0); INSERT INTO closes VALUES ('tenant_123')`); err != nil {
		return err
	}
	r := role{Issuer: kind, Database: url, Fenced: fenced}
	kill := r.startNodes(started)
	fmt.Fprintf(out, "%s: %s\n", kind, strings.Join(r.Addrs, ", "))

	a, err := start(ctx, r, "a")
	if err != nil {
		return err
	}
	defer a.end()
	token, err := a.expect("granted")
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "worker a: granted, token %s\n", token)
	a.cmd.Process.Signal(syscall.SIGSTOP)
	fmt.Fprintf(out, "kernel: SIGSTOP, worker a stands still\n")
	fmt.Fprintf(out, "%s: kill -9 of %s\n", kind, kill())

	b, err := start(ctx, r, "b")
	if err != nil {
		return err
	}
	defer b.end()
	for _, word := range []string{"granted", "wrote"} {
		if word == "wrote" {
			b.goOn()
		}
		said, err := b.expect(word)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "worker b: %s, %s\n", word, said)
	}
	a.goOn()
	a.cmd.Process.Signal(syscall.SIGCONT)
	said, err := a.expect("wrote")
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "kernel: SIGCONT\nworker a: wrote, %s\n", said)

	var by string
	var times int
	if err := pool.QueryRow(ctx, "SELECT closed_by, times FROM closes").Scan(&by, &times); err != nil {
		return err
	}
	fmt.Fprintf(out, "the period was closed %d times, last by worker %s\n", times, by)
	switch {
	case fenced && (by != "b" || times != 1 || !strings.Contains(said, "stale")):
		return errors.New("the fence did not hold")
	case !fenced && times != 2:
		return errors.New("nothing was lost, so the story shows nothing")
	}
	return nil
}

// worker is one of the two processes.
type worker struct {
	cmd   *exec.Cmd
	lines *bufio.Scanner
	stdin io.WriteCloser
}

func start(ctx context.Context, r role, name string) (*worker, error) {
	r.Name = name
	text, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(os.Environ(), roleVariable+"="+string(text))
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	return &worker{cmd: cmd, lines: bufio.NewScanner(stdout), stdin: stdin}, process.StartCommand(cmd)
}

// expect reads a line that begins with word and returns the rest.
func (w *worker) expect(word string) (string, error) {
	if !w.lines.Scan() {
		return "", fmt.Errorf("a worker ended before it said %q", word)
	}
	said, ok := strings.CutPrefix(w.lines.Text(), word+" ")
	if !ok {
		return "", fmt.Errorf("a worker said %q, not %q", w.lines.Text(), word)
	}
	return said, nil
}

// goOn tells the worker to write, once it runs.
func (w *worker) goOn() { fmt.Fprintln(w.stdin, "go on") }

func (w *worker) end() {
	w.cmd.Process.Kill()
	w.cmd.Wait()
}
