package main

import (
	"context"
	"fmt"

	"github.com/fencepost-go/fencepost/lockclient"

	"github.com/urfave/cli/v3"
)

func (a *app) migrateCommand() *cli.Command {
	return &cli.Command{
		Name: "migrate", Category: categorySetup,
		Usage: "bring the schema to this build's version, or print its SQL",
		Description: "Upgrades in place beside running holders, and does nothing where nothing is\n" +
			"missing. --print connects to nothing; run what it prints in one transaction\n" +
			"(psql --single-transaction).",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "print", Usage: "print the whole schema as SQL instead"},
			componentFlag(),
		},
		Action: a.migrate,
	}
}

func (a *app) migrate(ctx context.Context, cmd *cli.Command) error {
	if _, err := arguments(cmd); err != nil {
		return err
	}
	component := cmd.String("component")
	if cmd.Bool("print") {
		return a.printSQL(cmd, map[string]string{leasesComponent: schemaSQL(leasesComponent), marksComponent: schemaSQL(marksComponent)})
	}
	s, err := connect(ctx, cmd)
	if err != nil {
		return err
	}
	defer s.close()
	before, err := s.versions(ctx)
	if err != nil {
		return failed("read the schema's version", err)
	}
	if component != marksComponent {
		if err := lockclient.Migrate(ctx, s.pool); err != nil {
			return err
		}
	}
	if component != leasesComponent {
		if err := s.marks.Migrate(ctx); err != nil {
			return err
		}
	}
	after, err := s.versions(ctx)
	if err != nil {
		return failed("migrated; read the schema's version", err)
	}
	return a.printVersions(cmd, component, before, after)
}

func (a *app) printVersions(cmd *cli.Command, component string, before, after map[string]int64) error {
	for _, name := range components {
		if component != "all" && component != name {
			continue
		}
		var err error
		switch {
		case asJSON(cmd):
			err = a.printJSON(struct {
				Component string `json:"component"`
				Before    int64  `json:"before"`
				Version   int64  `json:"version"`
			}{name, before[name], after[name]})
		case before[name] == after[name]:
			err = a.say("%s: version %d, nothing to do\n", name, after[name])
		default:
			err = a.say("%s: version %d, was %d\n", name, after[name], before[name])
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func componentFlag() cli.Flag {
	return &cli.StringFlag{
		Name: "component", Value: "all", Usage: "`NAME`: lockclient (leases), sqlfence (marks) or all",
		Validator: oneOf(leasesComponent, marksComponent, "all"),
	}
}

// oneOf checks a flag.
func oneOf(values ...string) func(string) error {
	return func(s string) error {
		for _, v := range values {
			if s == v {
				return nil
			}
		}
		return fmt.Errorf("%s is not one of %v", shown(s), values)
	}
}
