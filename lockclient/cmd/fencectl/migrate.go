package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/fencepost-go/fencepost/lockclient/lockadmin/pgadmin"

	"github.com/urfave/cli/v3"
)

func (a *app) migrateCommand() *cli.Command {
	migrate, printed := a.onDatabase(nil, (*call).migrate), a.offline((*call).printSchema)
	return &cli.Command{
		Name: "migrate", Category: categorySetup,
		Usage: "bring the schema to this build's version, or print its SQL",
		Description: "Upgrades in place while holders run, and does nothing where nothing is\n" +
			"missing. It asks first; a script says --yes. --print connects to nothing; what it\n" +
			"prints is for an empty database. For psql it begins and ends its transactions; for\n" +
			"goose it is one file with both directions, for golang-migrate the file of one\n" +
			"direction. --down removes marks and tokens, and refuses while a lease runs or a\n" +
			"table has triggers.",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "print", Usage: "print the whole schema as SQL instead"},
			&cli.StringFlag{Name: "for", Usage: "print it for `TOOL`: psql, goose or golang-migrate", Value: "psql"},
			&cli.BoolFlag{Name: "repair", Usage: "also make again the functions and triggers that doctor finds missing or changed"},
			&cli.BoolFlag{Name: "down", Usage: "print what removes the schema"},
			yesFlag(),
		},
		Action: func(ctx context.Context, cmd *cli.Command) error {
			switch {
			case cmd.Bool("print") && cmd.Bool("repair"):
				return usage("--repair does not go with --print: it looks at what the database lacks")
			case cmd.Bool("print"):
				return printed(ctx, cmd)
			case cmd.IsSet("for") || cmd.IsSet("down"):
				return usage("--for and --down go with --print: this program does not remove a schema by itself")
			}
			return migrate(ctx, cmd)
		},
	}
}

func (c *call) migrate(ctx context.Context) error {
	before, err := c.versions(ctx)
	if err != nil {
		return err
	}
	if err := c.confirm(ctx, c.whatOfTheSchema(before)); err != nil {
		return err
	}
	if err := pgadmin.Migrate(ctx, c.pool); err != nil {
		return err
	}
	var repaired []string
	if c.cmd.Bool("repair") {
		var err error
		if repaired, err = pgadmin.Repair(ctx, c.pool); err != nil {
			return partial(ctx, err, "the schema is migrated, made again is only %q", repaired)
		}
	}
	after, err := c.versions(ctx)
	if err != nil {
		return partial(ctx, err, "the schema is migrated, and its version could not be read")
	}
	for n, component := range after {
		was, is := before[n].Applied, component.Applied
		said := "nothing to do"
		if was != is {
			said = fmt.Sprintf("was %d", was)
		}
		if err := c.changed(object{"component": component.Name, "before": was, "version": is}, "%s: version %d, %s", component.Name, is, said); err != nil {
			return err
		}
	}
	for _, name := range repaired {
		if err := c.changed(object{"repaired": name}, "made again: %s", name); err != nil {
			return err
		}
	}
	if c.cmd.Bool("repair") && len(repaired) > 0 {
		fmt.Fprintln(c.errOut, "Grant the rights again, as the schema's owner: run what fencectl roles prints. Then run fencectl doctor.")
	}
	return nil
}

// whatOfTheSchema is the question before a migration.
func (c *call) whatOfTheSchema(have []pgadmin.Component) string {
	does := make([]string, len(have))
	for n, component := range have {
		switch {
		case component.Applied == 0:
			does[n] = fmt.Sprintf("Create %s, version %d.", component.Name, component.Known)
		case component.Applied < component.Known:
			does[n] = fmt.Sprintf("Migrate %s from version %d to %d. Earlier builds may not be able to use it.", component.Name, component.Applied, component.Known)
		default:
			does[n] = fmt.Sprintf("Leave %s at version %d.", component.Name, component.Applied)
		}
	}
	if c.cmd.Bool("repair") {
		does = append(does, "Make again each of its functions and triggers that is missing or changed.")
	}
	return strings.Join(does, "\n")
}

// printSchema prints the schema for the tool that will run it.
func (c *call) printSchema(context.Context) error {
	var up, down []string
	for _, name := range components {
		makes, removes := scripts(name)
		up, down = append(up, makes), append(down, removes)
	}
	whole := func(text string) error { return c.print(object{"sql": text}, "%s", text) }
	switch tool, removing := c.cmd.String("for"), c.cmd.Bool("down"); {
	case tool == "psql" && removing:
		// psql goes on after an error: in a transaction of its own each part would be
		// removed although the other is in use.
		return whole("BEGIN;\n" + strings.Join(down, "\n") + "COMMIT;\n")
	case tool == "psql":
		return c.printSQL("BEGIN;\n", "COMMIT;\n", up...)
	case tool == "golang-migrate" && removing:
		return c.printSQL("", "", down...)
	case tool == "golang-migrate":
		return c.printSQL("", "", up...)
	case tool == "goose" && removing:
		return usage("--down does not go with --for goose, whose file has both directions")
	case tool == "goose":
		const begin, end = "-- +goose StatementBegin\n", "-- +goose StatementEnd\n"
		return whole("-- +goose Up\n" + begin + strings.Join(up, "\n") + end + "\n-- +goose Down\n" + begin + strings.Join(down, "\n") + end)
	default:
		return usage("--for %q: want psql, goose or golang-migrate", tool)
	}
}

// printSQL prints a script for each of the components, and as text what comes before
// and after it.
func (c *call) printSQL(before, after string, scripts ...string) error {
	for i, name := range components {
		if err := c.print(object{"component": name, "sql": scripts[i]}, "-- %s\n%s%s\n%s", name, before, scripts[i], after); err != nil {
			return err
		}
	}
	return nil
}
