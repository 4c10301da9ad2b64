// Command mutants breaks Fencepost in one place at a time, and reports which
// breaks its tests do not notice. See README.md.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/fencepost-go/fencepost/internal/pgtest"
)

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	// This module replaces Fencepost's own by the checkout.
	root, err := goCommand(ctx, ".", "list", "-m", "-f", "{{.Dir}}", "github.com/fencepost-go/fencepost")
	if err != nil {
		fmt.Fprintf(os.Stderr, "mutants: go list -m: %v: %s\n", err, root)
		os.Exit(2)
	}
	os.Exit(command(ctx, strings.TrimSpace(string(root)), os.Args[1:], os.Stdout, os.Stderr))
}

func command(ctx context.Context, root string, args []string, out, errs io.Writer) int {
	flags := flag.NewFlagSet("mutants", flag.ContinueOnError)
	flags.SetOutput(errs)
	named := flags.Bool("named", false, "try the mistakes, or those whose name matches the argument, each by the test that is named for it")
	short := flags.Bool("short", false, "with -named: only by the tests, which take a few seconds each, not by the campaign")
	times := flags.Int("times", 1, "with -named: how often each test must catch its mistake")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if flags.NArg() > 1 || !*named {
		fmt.Fprintln(errs, "mutants: -named, and at most one pattern of names after the flags")
		return 2
	}
	// All tests that only need a database share one PostgreSQL.
	url, drop, err := pgtest.Provide(ctx)
	if err == nil {
		defer drop()
		err = os.Setenv("FENCEPOST_DATABASE_URL", url)
	}
	code := 2
	if err == nil {
		code, err = huntMistakes(ctx, root, flags.Arg(0), *times, *short, out)
	}
	if err != nil {
		fmt.Fprintln(errs, "mutants:", err)
	}
	return code
}
