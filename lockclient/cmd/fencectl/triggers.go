package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/sqlfence/sqladmin"

	"github.com/jackc/pgx/v5"
	"github.com/urfave/cli/v3"
)

// triggersCommand is the table of the commands for guarded tables.
func (a *app) triggersCommand() *cli.Command {
	print := &cli.BoolFlag{Name: "print", Usage: "print the SQL, change nothing"}
	columns := &cli.StringSliceFlag{Name: "column", Usage: "`V=C`, column C for variable V"}
	install := func(name, usage, text string, report bool) *cli.Command {
		run := func(c *call, ctx context.Context) error { return c.install(ctx, report) }
		asked, printed := a.onDatabase(marksOnly, run, "TABLE", "[TEMPLATE]"), a.offline(run, "TABLE", "[TEMPLATE]")
		return &cli.Command{
			Name: name, ArgsUsage: "TABLE [TEMPLATE]", Usage: usage, Description: text,
			Flags: []cli.Flag{columns, &cli.BoolFlag{Name: "replace", Usage: "though the table has triggers with another template"}, print, yesFlag()},
			Action: func(ctx context.Context, cmd *cli.Command) error {
				if cmd.Bool("print") && cmd.Args().Len() > 1 {
					return printed(ctx, cmd)
				}
				return asked(ctx, cmd)
			},
		}
	}
	const how = "TEMPLATE names the resource of a row, such as {tenant}:billing-close:{period}; a variable\n" +
		"has the column of its name, unless --column says another. It may be left out for a table\n" +
		"that has triggers. With it, --print connects to nothing. Run it as a role that owns the\n" +
		"table and is a member of the schema's owner. It locks the table for a moment."
	remove, printed := a.onDatabase(marksOnly, (*call).removeTriggers, "TABLE"), a.offline((*call).removeTriggers, "TABLE")
	return &cli.Command{
		Name: "triggers", Category: categorySetup,
		Usage: "put a table under triggers that refuse writers without a current claim",
		Commands: []*cli.Command{
			install("install", "install triggers that refuse", how, false),
			install("report", "install triggers that only report, or make those that refuse do so", how+"\nWhat they would refuse is counted: see fencectl triggers verify.", true),
			install("enforce", "make triggers that report refuse", how, false),
			{
				Name: "remove", ArgsUsage: "TABLE", Usage: "remove the triggers, which lets every writer through",
				Flags: []cli.Flag{print, yesFlag()},
				Action: func(ctx context.Context, cmd *cli.Command) error {
					if cmd.Bool("print") {
						return printed(ctx, cmd)
					}
					return remove(ctx, cmd)
				},
			},
			{
				Name: "verify", Usage: "say what is wrong with the guarded tables, and what reports counted",
				Description: "With --role also what lets that role get around the triggers. Ends with exit code 10\n" +
					"if something must be repaired.",
				Flags:  []cli.Flag{roleFlag()},
				Action: a.onDatabase(marksOnly, (*call).verifyTriggers),
			},
		},
	}
}

func roleFlag() cli.Flag {
	return &cli.StringFlag{Name: "role", Usage: "`ROLE` as which the application writes: it must not get around the triggers", Validator: notBlank}
}

// tableParts splits schema.table.
func tableParts(name string) []string { return strings.Split(name, ".") }

// trigger is what the command line describes. Without a template it is what the table has.
func (c *call) trigger(ctx context.Context) (t sqladmin.Trigger, err error) {
	t.Table = tableParts(c.table)
	if c.template == "" {
		return c.installed(ctx, t.Table)
	}
	if t.Resource, err = guard.NewTemplate(c.template); err != nil {
		return t, err
	}
	for _, v := range t.Resource.Variables() {
		if t.Columns == nil {
			t.Columns = map[string]string{}
		}
		t.Columns[v] = v
	}
	for _, pair := range c.cmd.StringSlice("column") {
		variable, column, both := strings.Cut(pair, "=")
		if _, known := t.Columns[variable]; !both || !known {
			return t, guard.Invalid("column", pair, "must be VARIABLE=COLUMN, with a variable of the template")
		}
		t.Columns[variable] = column
	}
	return t, nil
}

// installed returns the description of the triggers that a table has.
func (c *call) installed(ctx context.Context, table []string) (t sqladmin.Trigger, err error) {
	if len(c.cmd.StringSlice("column")) > 0 {
		return t, usage("triggers: --column goes with a TEMPLATE")
	}
	t, err = c.guarding(ctx, table)
	if err == nil && t.Table == nil {
		err = notFound("%s has no triggers: say its TEMPLATE, too", shown(strings.Join(table, ".")))
	}
	return t, err
}

// guarding returns what a table has, nothing if it has no triggers. The server finds the
// table, as it does for the installation.
func (c *call) guarding(ctx context.Context, table []string) (t sqladmin.Trigger, err error) {
	if _, err := sqladmin.RemoveTriggerSQL(table); err != nil { // not the name of a table
		return t, err
	}
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	const sql = `SELECT n.nspname::text, c.relname::text FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
		WHERE c.oid = pg_catalog.to_regclass($1::text)`
	found := make([]string, 2)
	err = c.pool.QueryRow(ctx, sql, pgx.Identifier(table).Sanitize()).Scan(&found[0], &found[1])
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return t, notFound("there is no table %s; if it is not on the search path, say SCHEMA.TABLE", shown(strings.Join(table, ".")))
	case err != nil:
		return t, guard.Unavailable("find the table", guard.Claim{}, err)
	}
	all, err := c.admin.Triggers(ctx)
	for _, s := range all {
		if s.Trigger.Resource != nil && slices.Equal(s.Trigger.Table, found) {
			t = s.Trigger
		}
	}
	return t, err
}

// described returns a template and, where they are not its variables, the columns.
func described(t sqladmin.Trigger) string {
	text := shown(t.Resource.String())
	for _, v := range t.Resource.Variables() {
		text += orNothing(t.Columns[v] != v, ", "+v+" in column "+shown(t.Columns[v]))
	}
	return text
}

func (c *call) install(ctx context.Context, report bool) error {
	t, err := c.trigger(ctx)
	if err != nil {
		return err
	}
	t.InsecureReportOnly = report
	sql, err := sqladmin.TriggerSQL(t)
	if err != nil {
		return err
	}
	if c.cmd.Bool("print") {
		return c.print(object{"sql": sql}, "%s", sql)
	}
	name := shown(strings.Join(t.Table, "."))
	does := "refuse every write without a current claim"
	if report {
		does = "report each write without a current claim, and refuse none"
	}
	question := fmt.Sprintf("Install triggers on %s, whose rows belong to %s. They %s.", name, described(t), does)
	old := t
	if c.template != "" {
		if old, err = c.guarding(ctx, t.Table); err != nil {
			return err
		}
	}
	if old.Table != nil && described(old) != described(t) {
		replaces := fmt.Sprintf("the rows of %s belong to %s, and would belong to %s: claims for the former are refused then", name, described(old), described(t))
		if c.cmd.Bool("yes") && !c.cmd.Bool("replace") {
			return &commandError{Code: exitRefused, Reason: string(guard.ReasonConflict), Err: fmt.Errorf("triggers: %s; if that is meant, say --replace", replaces)}
		}
		question = "Replace the triggers: " + replaces + ". They " + does + "."
	}
	if err := c.confirm(ctx, question); err != nil {
		return err
	}
	if err := c.admin.InstallTrigger(ctx, t); err != nil {
		return err
	}
	return c.changed(object{"table": t.Table, "resource": t.Resource.String(), "reportOnly": report}, "triggers of %s %s", name, does)
}

func (c *call) removeTriggers(ctx context.Context) error {
	table := tableParts(c.table)
	sql, err := sqladmin.RemoveTriggerSQL(table)
	if err != nil {
		return err
	}
	if c.cmd.Bool("print") {
		return c.print(object{"sql": sql}, "%s", sql)
	}
	if err := c.confirm(ctx, "Remove the triggers of "+shown(c.table)+": every writer is let through."); err != nil {
		return err
	}
	if err := c.admin.RemoveTrigger(ctx, table); err != nil {
		return err
	}
	return c.changed(object{"table": table}, "%s has no triggers", shown(c.table))
}

func (c *call) verifyTriggers(ctx context.Context) error {
	f := &findings{}
	f.objects(ctx, c.session)
	f.guarded(ctx, c.session, c.cmd.String("role"))
	looking, done := c.bounded(ctx)
	defer done()
	tables, _ := c.admin.Triggers(looking) // guarded has the error
	for _, t := range tables {
		if t.Trigger.Resource != nil && len(t.Findings) == 0 {
			f.add("table "+strings.Join(t.Trigger.Table, "."), checkOK, "its rows belong to %s", described(t.Trigger))
		}
	}
	return c.conclude(f)
}

// conclude prints findings; the error says that something must be repaired.
func (c *call) conclude(f *findings) error {
	if err := c.printFindings(f); err != nil {
		return err
	}
	if f.worst() == checkFail {
		return &commandError{Code: exitUnhealthy, Reason: "unhealthy", Err: errors.New("something must be repaired, see the lines with " + checkFail)}
	}
	return nil
}
