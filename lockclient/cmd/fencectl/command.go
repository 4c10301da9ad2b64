package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/fencepost-go/fencepost/guard"
)

// call is one call of a command: what it was given, and what it acts on.
type call struct {
	*app
	*session // nil if the command needs no server
	cmd      *cli.Command

	resource, pattern string // the arguments RESOURCE and PATTERN
	table, template   string // TABLE and TEMPLATE
	token             guard.Token

	confirmed bool // it changes something
}

// action is what a command does.
type action func(*call, context.Context) error

// on returns the action of a command that works on any issuer; of PostgreSQL's schema it
// needs these components. names are its arguments; PATTERN may be omitted. A command line
// that is wrong in itself is refused before anything is sent.
func (a *app) on(needed []string, act action, names ...string) cli.ActionFunc {
	return a.with(needed, false, act, names)
}

// onDatabase is on for a command that works on PostgreSQL only.
func (a *app) onDatabase(needed []string, act action, names ...string) cli.ActionFunc {
	return a.with(needed, true, act, names)
}

func (a *app) with(needed []string, onlyDatabase bool, act action, names []string) cli.ActionFunc {
	return func(ctx context.Context, cmd *cli.Command) error {
		c, err := a.call(cmd, names)
		if err != nil {
			return err
		}
		if issuer := cmd.String("issuer"); onlyDatabase && issuer != issuerPostgres {
			return &commandError{exitUsage, "unsupported", fmt.Errorf("%sis about a PostgreSQL database: it does not go with --issuer %s", inside(cmd), issuer)}
		}
		if c.session, err = open(ctx, cmd); err != nil {
			return err
		}
		defer c.session.close()
		if c.postgres == nil && !slices.Contains(names, "PATTERN") { // PostgreSQL's calls are bounded one by one, and lists by the row
			var cancel context.CancelFunc
			ctx, cancel = c.bounded(ctx)
			defer cancel()
		}
		if err = c.need(ctx, needed...); err == nil {
			err = act(c, ctx)
		}
		return c.explained(ctx, err)
	}
}

// explained adds to an error where it happened, and what helps if that is known.
func (c *call) explained(ctx context.Context, err error) error {
	code, _ := exitOf(err)
	const noRight, readOnly, recovering = "42501", "25006", "0A000" // the last is also of other statements that a server does not have
	switch {
	case err == nil || ctx.Err() == context.Canceled:
		return err
	case sqlState(err) == noRight && inside(c.cmd) == "migrate: ": // none of the roles may
		return fmt.Errorf("%w; role %s is not the owner of schema fencepost on %s, who alone may migrate it", err, shown(c.pool.Config().ConnConfig.User), c.target)
	case sqlState(err) == noRight:
		return fmt.Errorf("%w; it is role %s: fencectl roles prints the roles that may, and it needs to be a member of one", err, shown(c.pool.Config().ConnConfig.User))
	case sqlState(err) == readOnly, sqlState(err) == recovering && code == exitUnavailable:
		return fmt.Errorf("%w; %s is a standby, or set to read only, and trying again there does not help: connect to the primary (target_session_attrs=read-write)", err, c.target)
	case code != exitUnavailable:
		return err
	case c.postgres == nil:
		return fmt.Errorf("%w (on %s)", err, c.target)
	case errors.Is(err, context.DeadlineExceeded) && inside(c.cmd) != "doctor: ":
		return fmt.Errorf("%w (on %s); fencectl doctor says what is in the way", err, c.target)
	}
	return err
}

// offline returns the action of a command that connects to nothing.
func (a *app) offline(act action, names ...string) cli.ActionFunc {
	return func(ctx context.Context, cmd *cli.Command) error {
		c, err := a.call(cmd, names)
		if err != nil {
			return err
		}
		return act(c, ctx)
	}
}

// call reads exactly the named arguments.
func (a *app) call(cmd *cli.Command, names []string) (*call, error) {
	c := &call{app: a, cmd: cmd}
	given := cmd.Args().Slice()
	if len(given) > len(names) {
		return nil, usage("%s%s is one argument too many (see %s --help)", inside(cmd), shown(given[len(names)]), cmd.FullName())
	}
	for i, name := range names {
		if i == len(given) {
			if name == "PATTERN" || name == "[TEMPLATE]" {
				break
			}
			return nil, usage("%sthe argument %s is missing (see %s --help)", inside(cmd), name, cmd.FullName())
		}
		var err error
		switch name {
		case "RESOURCE":
			c.resource, err = given[i], guard.ValidateResource(given[i])
		case "TOKEN":
			c.token, err = guard.ParseToken(given[i])
		case "PATTERN":
			c.pattern = given[i]
		case "TABLE":
			c.table = given[i]
		case "[TEMPLATE]":
			c.template = given[i]
		}
		if err != nil {
			return nil, err
		}
	}
	return c, nil
}

// yesFlag is on every command that cannot be taken back; see confirm.
func yesFlag() cli.Flag {
	return &cli.BoolFlag{Name: "yes", Aliases: []string{"y"}, Usage: "do not ask for confirmation", Local: true}
}

// actorFlag and reasonFlag are on every command that writes a record.
func actorFlag() cli.Flag {
	return &cli.StringFlag{Name: "actor", Usage: "`WHO` does it (required)", Required: true, Validator: notBlank, Sources: cli.EnvVars("FENCECTL_ACTOR")}
}

func reasonFlag() cli.Flag {
	return &cli.StringFlag{Name: "reason", Usage: "`WHY` (required)", Required: true, Validator: notBlank}
}

// notBlank refuses what an empty variable in a script would give.
func notBlank(s string) error {
	if strings.TrimSpace(s) == "" {
		return errors.New("must have more than spaces in it")
	}
	return nil
}

func limitFlag() cli.Flag {
	return &cli.IntFlag{Name: "limit", Aliases: []string{"n"}, Usage: "print at most this many; 0 is all", Local: true, Validator: atLeast(0)}
}

// olderThanFlag has no zero, which would be the library's default.
func olderThanFlag(days int, text string) cli.Flag {
	return &cli.DurationFlag{
		Name: "older-than", Value: time.Duration(days) * 24 * time.Hour, DefaultText: fmt.Sprintf("%d days", days), Usage: text,
		Validator: atLeast(time.Nanosecond),
	}
}

// raiseTimeoutFlag bounds the wait for older holders.
func raiseTimeoutFlag() cli.Flag {
	return &cli.DurationFlag{
		Name: "raise-timeout", Value: 20 * time.Second, Usage: "longest wait for older holders", Local: true, Validator: atLeast(time.Millisecond),
	}
}

func tokenFlag(name, text string, required bool, into *guard.Token) cli.Flag {
	return &cli.TextFlag{Name: name, Usage: text, Required: required, Value: into, HideDefault: true}
}

// atLeast is what a flag's value has to be.
func atLeast[T int | time.Duration](least T) func(T) error {
	return func(value T) error {
		if value < least {
			return fmt.Errorf("must be at least %v", least)
		}
		return nil
	}
}

// confirm asks the operator, and says on which server. It asks on standard error, so that redirected
// output does not hide the question, and only where standard input is a
// terminal: a script must say --yes. What changes something then goes on although
// nobody reads its output any more, and says on standard error what was done.
func (c *call) confirm(ctx context.Context, question string) error {
	signal.Ignore(syscall.SIGPIPE)
	if c.cmd.Bool("yes") {
		if c.confirmed = true; !c.asJSON() { // programs find it in the result
			fmt.Fprintf(c.errOut, "On %s:\n", shown(c.target))
		}
		return nil
	}
	if !isTerminal(c.in) {
		return usage("%s asks for confirmation and standard input is not a terminal: say --yes", c.cmd.Name)
	}
	fmt.Fprintf(c.errOut, "On %s:\n%s\nType \"yes\" to go on: ", shown(c.target), question)
	answer := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(io.LimitReader(c.in, 256)).ReadString('\n')
		answer <- strings.TrimSpace(line)
	}()
	select {
	case got := <-answer:
		if strings.EqualFold(got, "yes") {
			c.confirmed = true
			return nil
		}
	case <-ctx.Done():
		fmt.Fprintln(c.errOut)
	}
	return &commandError{Code: exitCancelled, Reason: "cancelled", Err: errors.New("not confirmed, nothing was changed")}
}

// isTerminal reports whether somebody sits at f. The null device is a character
// device too.
func isTerminal(f *os.File) bool {
	info, err := f.Stat() // of a nil file: an error
	if err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return false
	}
	null, err := os.Stat(os.DevNull)
	return err != nil || !os.SameFile(info, null)
}
