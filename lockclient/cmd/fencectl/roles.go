package main

import (
	"context"

	"github.com/fencepost-go/fencepost/lockclient/lockadmin"
	"github.com/fencepost-go/fencepost/sqlfence"

	"github.com/urfave/cli/v3"
)

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
			componentFlag(),
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
	ofMarks, err := sqlfence.RolesSQL(&sqlfence.RoleNames{Enforcer: enforcer, Operator: cmd.String("operator"), Reader: cmd.String("reader")})
	if err != nil {
		return err
	}
	return a.printSQL(cmd, map[string]string{leasesComponent: ofLeases, marksComponent: ofMarks})
}

// printSQL prints a script of each component that --component asks for.
func (a *app) printSQL(cmd *cli.Command, scripts map[string]string) error {
	for _, name := range components {
		if only := cmd.String("component"); only != "all" && only != name {
			continue
		}
		var err error
		if asJSON(cmd) {
			err = a.printJSON(struct {
				Component string `json:"component"`
				SQL       string `json:"sql"`
			}{name, scripts[name]})
		} else {
			err = a.say("-- %s: run in one transaction.\n%s\n", name, scripts[name])
		}
		if err != nil {
			return err
		}
	}
	return nil
}
