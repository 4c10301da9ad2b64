package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v3"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process at once
	os.Exit(run(ctx, os.Args, os.Stdin, os.Stdout, os.Stderr))
}

// run is the program. Its context ends at the operator's Ctrl-C.
func run(ctx context.Context, args []string, in *os.File, out, errOut io.Writer) int {
	a := &app{in: in, out: out, errOut: errOut}
	if err := a.execute(ctx, args); err != nil {
		return report(errOut, wantsJSON(args), err)
	}
	return exitOK
}

// app is one run of the program.
type app struct {
	in          *os.File // nil: nobody can be asked
	out, errOut io.Writer
	acted       bool // the command line was accepted, and its command has begun
}

// execute carries out a command line.
func (a *app) execute(ctx context.Context, args []string) error {
	err := a.root().Run(ctx, args)
	if err != nil && !a.acted { // the command line library refused the command line
		err = usage("%v", err)
	}
	if ctx.Err() != nil {
		err = interrupted(err)
	}
	return err
}

// The categories of commands. The library sorts them.
const (
	categoryLook  = "find out"
	categoryAct   = "intervene"
	categorySetup = "set up"
)

// root returns the command line: the table of the commands, each of which is in the
// file of its name. The library's own help command is omitted, because it would
// capture a resource called "help" or "h".
func (a *app) root() *cli.Command {
	root := &cli.Command{
		Name:    "fencectl",
		Usage:   "look after leases, fencing tokens and marks",
		Version: version(),
		Description: "Connects to PostgreSQL with --database-url, else with the usual PG variables (PGHOST,\n" +
			"PGSERVICE, ...), or to another --issuer with --address.\n" +
			"At 3 a.m.: fencectl help runbook. For scripts: fencectl help exit-codes.",
		HideHelpCommand: true,
		Writer:          a.out,
		ErrWriter:       a.errOut,
		ExitErrHandler:  func(context.Context, *cli.Command, error) {}, // run decides
		Flags: append(engineFlags(),
			&cli.StringFlag{
				Name: "output", Aliases: []string{"o"}, Sources: cli.EnvVars("FENCECTL_OUTPUT"), Value: formatTable, Validator: validFormat,
				Usage: "print as `FORMAT`, table or json",
			},
			&cli.DurationFlag{
				Name: "timeout", Sources: cli.EnvVars("FENCECTL_TIMEOUT"), Value: 5 * time.Second, Validator: validTimeout,
				Usage: "longest wait for a response",
			},
		),
		Commands: []*cli.Command{
			a.listCommand(),
			a.showCommand(),
			a.auditCommand(),
			a.doctorCommand(),
			a.forceUnlockCommand(),
			a.marksCommand(), // list, raise, reset, resets, retire
			a.epochCommand(), // show, raise
			a.advanceCommand(),
			a.purgeCommand(),
			a.triggersCommand(), // install, report, enforce, remove, verify
			a.migrateCommand(),
			a.rolesCommand(),
			a.helpCommand(), // exit-codes, runbook
		},
	}
	_ = root.Walk(func(cmd *cli.Command) error {
		a.prepare(cmd)
		return nil
	})
	return root
}

// prepare says what is wrong with a command line in one line, where the library
// prints a page of help by default.
func (a *app) prepare(cmd *cli.Command) {
	cmd.OnUsageError = func(_ context.Context, cmd *cli.Command, err error, _ bool) error {
		message := strings.NewReplacer("flag provided but not defined: -", "unknown flag ", " for flag -", " for --").Replace(err.Error())
		if required := requiredFlags.FindStringSubmatch(message); required != nil {
			message = "missing: --" + strings.ReplaceAll(required[1], ", ", ", --")
		}
		return fmt.Errorf("%s%s (see %s --help)", inside(cmd), message, cmd.FullName())
	}
	act := cmd.Action
	if act == nil { // it only has subcommands
		act = func(_ context.Context, cmd *cli.Command) error {
			if name := cmd.Args().First(); name != "" {
				return usage("%sno command %s%s", inside(cmd), shown(name), suggestion(cmd.Commands, name))
			}
			return showHelp(cmd)
		}
	}
	cmd.Action = func(ctx context.Context, cmd *cli.Command) error {
		a.acted = true
		return act(ctx, cmd)
	}
}

var requiredFlags = regexp.MustCompile(`^Required flags? "(.*)" not set$`)

// showHelp prints the help of any command: the library has a page of its own for the
// first.
func showHelp(cmd *cli.Command) error {
	if cmd == cmd.Root() {
		return cli.ShowRootCommandHelp(cmd)
	}
	return cli.ShowSubcommandHelp(cmd)
}

// inside names the command in which something is wrong; the program's name
// precedes every error.
func inside(cmd *cli.Command) string {
	if cmd == cmd.Root() {
		return ""
	}
	return strings.TrimPrefix(cmd.FullName(), cmd.Root().Name+" ") + ": "
}

func suggestion(commands []*cli.Command, name string) string {
	near := cli.SuggestCommand(commands, name)
	if near == "" || near[0] != name[0] { // it always finds something
		return ""
	}
	return ", did you mean " + near + "?"
}

const (
	formatTable = "table"
	formatJSON  = "json"
)

func validFormat(s string) error {
	if s != formatTable && s != formatJSON && s != "" {
		return fmt.Errorf("unknown output format %s: use table or json", shown(s))
	}
	return nil
}

func validTimeout(d time.Duration) error {
	if d < 10*time.Millisecond || d > 10*time.Minute {
		return errors.New("must be 10ms to 10m")
	}
	return nil
}

// wantsJSON reads the output format without the library: an error of the command
// line is also printed in the requested format.
func wantsJSON(args []string) bool {
	format := os.Getenv("FENCECTL_OUTPUT")
	for i, arg := range args {
		if arg == "--" {
			break
		}
		name, value, given := strings.Cut(arg, "=")
		if !slices.Contains([]string{"-o", "--output", "--o", "-output"}, name) {
			continue
		}
		if !given && i+1 < len(args) {
			value = args[i+1]
		}
		format = value
	}
	return format == formatJSON
}

// version returns the module's version, as the go command recorded it.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" {
		return "(devel)"
	}
	return info.Main.Version
}
