package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/fencepost-go/fencepost/guard"
)

// app is one run of the program.
type app struct {
	in          *os.File // nil: nobody can be asked
	out, errOut io.Writer
}

// The library sorts these.
const (
	categoryLook  = "find out"
	categoryAct   = "intervene"
	categorySetup = "set up"
)

const (
	formatTable = "table"
	formatJSON  = "json"
)

// root returns the command line. The library's own help command is omitted,
// because it would capture a resource called "help" or "h".
func (a *app) root() *cli.Command {
	root := &cli.Command{
		Name:    "fencectl",
		Usage:   "look after leases, fencing tokens and marks",
		Version: version(),
		Description: "Connects with --database-url, else with the usual PG variables (PGHOST, PGSERVICE, ...).\n" +
			"At 3 a.m.: fencectl help runbook. For scripts: fencectl help exit-codes.",
		HideHelpCommand:       true,
		EnableShellCompletion: true,
		Writer:                a.out,
		ErrWriter:             a.errOut,
		ExitErrHandler:        func(context.Context, *cli.Command, error) {}, // run decides
		Flags: []cli.Flag{
			&cli.StringFlag{
				Name: "database-url", Aliases: []string{"d"}, Sources: cli.EnvVars("FENCECTL_DATABASE_URL"), HideDefault: true,
				Usage: "connect to this `URL` (or key=value string)",
			},
			&cli.StringFlag{
				Name: "output", Aliases: []string{"o"}, Sources: cli.EnvVars("FENCECTL_OUTPUT"), Value: formatTable, Validator: validFormat,
				Usage: "print as `FORMAT`, table or json",
			},
			&cli.DurationFlag{
				Name: "timeout", Sources: cli.EnvVars("FENCECTL_TIMEOUT"), Value: 5 * time.Second, Validator: validTimeout,
				Usage: "longest wait for a response",
			},
		},
		Commands: []*cli.Command{
			a.listCommand(),
			a.showCommand(),
			a.auditCommand(),
			a.doctorCommand(),
			a.forceUnlockCommand(),
			a.marksCommand(),
			a.epochCommand(),
			a.advanceCommand(),
			a.purgeCommand(),
			a.migrateCommand(),
			a.rolesCommand(),
			a.helpCommand(),
		},
		ConfigureShellCompletionCommand: a.completionCommand,
	}
	root.Action = func(_ context.Context, cmd *cli.Command) error {
		if name := cmd.Args().First(); name != "" {
			return usage("no command %s%s", shown(name), suggestion(cmd.Commands, name))
		}
		return cli.ShowRootCommandHelp(cmd)
	}
	_ = root.Walk(func(cmd *cli.Command) error {
		a.prepare(cmd)
		return nil
	})
	return root
}

// prepare marks a command's errors, to distinguish them from those of its
// command line, which the library prints with a page of help by
// default.
func (a *app) prepare(cmd *cli.Command) {
	cmd.OnUsageError = func(_ context.Context, cmd *cli.Command, err error, _ bool) error {
		message := strings.NewReplacer("flag provided but not defined: -", "unknown flag ", " for flag -", " for --").Replace(err.Error())
		return usage("%s%s (see %s --help)", inside(cmd), message, cmd.FullName())
	}
	action := cmd.Action
	if action == nil { // it only has subcommands
		action = func(_ context.Context, cmd *cli.Command) error {
			if name := cmd.Args().First(); name != "" {
				return usage("%s has no command %s%s", strings.TrimSuffix(inside(cmd), ": "), shown(name), suggestion(cmd.Commands, name))
			}
			return cli.ShowSubcommandHelp(cmd)
		}
	}
	cmd.Action = func(ctx context.Context, cmd *cli.Command) error {
		if err := action(ctx, cmd); err != nil {
			return &actionError{err}
		}
		return nil
	}
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

func validFormat(s string) error {
	if s != formatTable && s != formatJSON && s != "" {
		return fmt.Errorf("unknown output format %s: use table or json", shown(s))
	}
	return nil
}

func validTimeout(d time.Duration) error {
	if d < 10*time.Millisecond || d > 10*time.Minute {
		return fmt.Errorf("must be 10ms to 10m")
	}
	return nil
}

// wantsJSON reads the output format without the library: an error of the command
// line is also printed in the requested format.
func wantsJSON(args []string) bool {
	format := os.Getenv("FENCECTL_OUTPUT")
	for i, arg := range args {
		switch {
		case arg == "--":
			return format == formatJSON
		case slices.Contains([]string{"-o", "--output", "--o", "-output"}, arg) && i+1 < len(args):
			format = args[i+1]
		default:
			for _, prefix := range []string{"-o=", "--output=", "--o=", "-output="} {
				if value, ok := strings.CutPrefix(arg, prefix); ok {
					format = value
				}
			}
		}
	}
	return format == formatJSON
}

// arguments returns exactly the named arguments; a name that ends with "?" is
// optional and "" if omitted.
func arguments(cmd *cli.Command, names ...string) ([]string, error) {
	given := cmd.Args().Slice()
	if len(given) > len(names) {
		return nil, usage("%s%s is one argument too many (see %s --help)", inside(cmd), shown(given[len(names)]), cmd.FullName())
	}
	values := make([]string, len(names))
	copy(values, given)
	for i, name := range names {
		if i >= len(given) && !strings.HasSuffix(name, "?") {
			return nil, usage("%sthe argument %s is missing (see %s --help)", inside(cmd), name, cmd.FullName())
		}
	}
	return values, nil
}

// claimArguments are the arguments RESOURCE and TOKEN, and --lease-id.
func claimArguments(cmd *cli.Command) (guard.Claim, error) {
	given, err := arguments(cmd, "RESOURCE", "TOKEN")
	if err != nil {
		return guard.Claim{}, err
	}
	token, err := guard.ParseToken(given[1])
	if err != nil {
		return guard.Claim{}, err
	}
	claim := guard.Claim{Resource: given[0], Token: token, LeaseID: cmd.String("lease-id")}
	return claim, claim.Validate()
}

func asJSON(cmd *cli.Command) bool { return cmd.String("output") == formatJSON }

func (a *app) printJSON(v any) error {
	line, err := jsonLine(v)
	if err == nil {
		_, err = a.out.Write(line)
	}
	return err
}

// object is a small result for programs.
type object map[string]any

// print prints one result, for programs or for people.
func (a *app) print(cmd *cli.Command, v any, format string, args ...any) error {
	if asJSON(cmd) {
		return a.printJSON(v)
	}
	return a.say(format, args...)
}

func (a *app) say(format string, args ...any) error {
	_, err := fmt.Fprintf(a.out, format, args...)
	return err
}

// version returns the module's version, as the go command recorded it.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" {
		return "(devel)"
	}
	return info.Main.Version
}
