package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/urfave/cli/v3"
)

// yesFlag is on every command that cannot be taken back.
func yesFlag() cli.Flag {
	return &cli.BoolFlag{Name: "yes", Aliases: []string{"y"}, Usage: "do not ask for confirmation", Local: true}
}

var errNotConfirmed = &coded{exitCancelled, "cancelled", errors.New("not confirmed, nothing was changed")}

// confirm asks the operator. It asks on standard error, so that a redirected
// output does not swallow the question, and only where standard input is a
// terminal: a script must say --yes.
func (a *app) confirm(ctx context.Context, cmd *cli.Command, question string) error {
	if cmd.Bool("yes") {
		return nil
	}
	if !isTerminal(a.in) {
		return usage("%s asks for confirmation and standard input is not a terminal: say --yes", cmd.Name)
	}
	fmt.Fprintf(a.errOut, "%s\nType \"yes\" to go on: ", question)
	answer := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(io.LimitReader(a.in, 256)).ReadString('\n')
		answer <- strings.TrimSpace(line)
	}()
	select {
	case got := <-answer:
		if strings.EqualFold(got, "yes") {
			return nil
		}
	case <-ctx.Done():
		fmt.Fprintln(a.errOut)
	}
	return errNotConfirmed
}

// isTerminal reports whether somebody can be asked at f. The null device is a
// character device, too.
func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	if err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return false
	}
	null, err := os.Stat(os.DevNull)
	return err != nil || !os.SameFile(info, null)
}
