package main

import (
	"context"
	"embed"
	"fmt"
	"strings"

	"github.com/fencepost-go/fencepost/lockclient/lockadmin"
	"github.com/fencepost-go/fencepost/lockclient/pglock"
	"github.com/fencepost-go/fencepost/sqlfence/sqladmin"

	"github.com/urfave/cli/v3"
)

func (a *app) migrateCommand() *cli.Command {
	return &cli.Command{
		Name: "migrate", Category: categorySetup,
		Usage: "bring the schema to this build's version, or print its SQL",
		Description: "Upgrades in place while holders run, and does nothing where nothing is\n" +
			"missing. --print connects to nothing; what it prints is for an empty database.\n" +
			"For psql it begins and ends its transactions; for goose it is one file with both\n" +
			"directions, for golang-migrate the file of one direction. --down removes marks\n" +
			"and tokens, and refuses while a lease runs or a table has triggers.",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "print", Usage: "print the whole schema as SQL instead"},
			&cli.StringFlag{Name: "for", Usage: "print it for `TOOL`: psql, goose or golang-migrate", Value: "psql"},
			&cli.BoolFlag{Name: "down", Usage: "print what removes the schema"},
		},
		Action: a.migrate,
	}
}

func (a *app) migrate(ctx context.Context, cmd *cli.Command) error {
	if cmd.Bool("print") {
		if _, err := arguments(cmd); err != nil {
			return err
		}
		return a.printSchema(cmd)
	}
	if cmd.IsSet("for") || cmd.IsSet("down") {
		return usage("--for and --down go with --print: this program does not remove a schema by itself")
	}
	_, s, err := open(ctx, cmd, nil)
	if err != nil {
		return err
	}
	defer s.close()
	before, err := s.versions(ctx)
	if err != nil {
		return failed("read the schema's version", err)
	}
	if err := lockadmin.Migrate(ctx, s.pool); err != nil {
		return err
	}
	after, err := s.versions(ctx)
	if err != nil {
		return failed("migrated; read the schema's version", err)
	}
	for _, name := range components {
		was := "nothing to do"
		if before[name] != after[name] {
			was = fmt.Sprintf("was %d", before[name].applied)
		}
		result := object{"component": name, "before": before[name].applied, "version": after[name].applied}
		if err := a.print(cmd, result, "%s: version %d, %s\n", name, after[name].applied, was); err != nil {
			return err
		}
	}
	return nil
}

// printSchema prints the schema for the tool that will run it.
func (a *app) printSchema(cmd *cli.Command) error {
	up, down := []string{schemaSQL(leasesComponent), schemaSQL(marksComponent)}, []string{pglock.DownSQL(), sqladmin.DownSQL()}
	chosen := up
	if cmd.Bool("down") {
		chosen = down
	}
	switch tool := cmd.String("for"); {
	case tool == "psql" && cmd.Bool("down"):
		// psql goes on after an error: in a transaction of its own each part would be
		// removed although the other is in use.
		text := "BEGIN;\n" + strings.Join(down, "\n") + "COMMIT;\n"
		return a.print(cmd, object{"sql": text}, "%s", text)
	case tool == "psql":
		return a.printSQL(cmd, "BEGIN;\n", "COMMIT;\n", up...)
	case tool == "golang-migrate":
		return a.printSQL(cmd, "", "", chosen...)
	case tool == "goose" && cmd.Bool("down"):
		return usage("--down does not go with --for goose, whose file has both directions")
	case tool == "goose":
		const begin, end = "-- +goose StatementBegin\n", "-- +goose StatementEnd\n"
		text := "-- +goose Up\n" + begin + strings.Join(up, "\n") + end + "\n-- +goose Down\n" + begin + strings.Join(down, "\n") + end
		return a.print(cmd, object{"sql": text}, "%s", text)
	default:
		return usage("--for %q: want psql, goose or golang-migrate", tool)
	}
}

func (a *app) rolesCommand() *cli.Command {
	return &cli.Command{
		Name: "roles", Category: categorySetup,
		Usage: "print the SQL of the database roles: issuer, enforcer, operator, reader",
		Description: "The issuer acquires leases, the enforcer writes under a fence, the operator is\n" +
			"for people who run this program, the reader for dashboards. None can log in:\n" +
			"grant them to roles that do. Run the SQL as the schema's owner, after migrate\n" +
			"and after each upgrade; it may be run again. Connects to nothing.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "issuer", Usage: "`NAME` of the role", Value: "fencepost_issuer"},
			&cli.StringFlag{Name: "enforcer", Usage: "`NAME` of the role", Value: "fencepost_enforcer"},
			&cli.StringFlag{Name: "operator", Usage: "`NAME` of the role", Value: "fencepost_operator"},
			&cli.StringFlag{Name: "reader", Usage: "`NAME` of the role", Value: "fencepost_reader"},
		},
		Action: a.roles,
	}
}

func (a *app) roles(_ context.Context, cmd *cli.Command) error {
	if _, err := arguments(cmd); err != nil {
		return err
	}
	issuer, enforcer := cmd.String("issuer"), cmd.String("enforcer")
	if issuer == enforcer && issuer != "" {
		return usage("--issuer and --enforcer must differ: grant both to a role that does both")
	}
	ofLeases, err := lockadmin.RolesSQL(&lockadmin.RoleNames{Issuer: issuer, Operator: cmd.String("operator"), Reader: cmd.String("reader")})
	if err != nil {
		return err
	}
	ofMarks, err := sqladmin.RolesSQL(&sqladmin.RoleNames{Enforcer: enforcer, Operator: cmd.String("operator"), Reader: cmd.String("reader")})
	if err != nil {
		return err
	}
	return a.printSQL(cmd, "-- Run in one transaction.\n", "", ofLeases, ofMarks)
}

// printSQL prints a script for each of the components, and as text what comes before
// and after it.
func (a *app) printSQL(cmd *cli.Command, before, after string, scripts ...string) error {
	for i, name := range components {
		if err := a.print(cmd, object{"component": name, "sql": scripts[i]}, "-- %s\n%s%s\n%s", name, before, scripts[i], after); err != nil {
			return err
		}
	}
	return nil
}

// The library's own script for bash needs the package bash-completion, and
// passes the words of the command line to eval.
//
//go:embed completion
var completionScripts embed.FS

var shells = []string{"bash", "zsh", "fish"}

// completionCommand replaces the library's scripts, and keeps its protocol: a
// command line that ends with the flag --generate-shell-completion prints what
// could come next.
func (a *app) completionCommand(cmd *cli.Command) {
	cmd.Hidden, cmd.Category = false, categorySetup
	cmd.Usage = "print the completion script for a shell"
	cmd.Description = "bash:  source <(fencectl completion bash)\n" +
		"zsh:   source <(fencectl completion zsh)\n" +
		"fish:  fencectl completion fish | source"
	cmd.Commands = nil
	for _, shell := range shells {
		cmd.Commands = append(cmd.Commands, &cli.Command{
			Name: shell, Usage: "for " + shell,
			Action: func(_ context.Context, cmd *cli.Command) error {
				if _, err := arguments(cmd); err != nil {
					return err
				}
				script, err := completionScripts.ReadFile("completion/fencectl." + shell)
				if err != nil {
					return err
				}
				_, err = a.out.Write(script)
				return err
			},
		})
	}
	_ = cmd.Walk(func(cmd *cli.Command) error {
		a.prepare(cmd)
		return nil
	})
}
