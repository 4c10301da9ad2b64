package main

import (
	"context"

	"github.com/fencepost-go/fencepost/lockclient/lockadmin/pgadmin"
	"github.com/fencepost-go/fencepost/sqlfence/sqladmin"

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
		},
		Action: a.offline((*call).roles),
	}
}

func (c *call) roles(context.Context) error {
	issuer, enforcer, operator, reader := c.cmd.String("issuer"), c.cmd.String("enforcer"), c.cmd.String("operator"), c.cmd.String("reader")
	if issuer == enforcer && issuer != "" {
		return usage("--issuer and --enforcer must differ: grant both to a role that does both")
	}
	ofLeases, err := pgadmin.RolesSQL(&pgadmin.RoleNames{Issuer: issuer, Operator: operator, Reader: reader})
	if err != nil {
		return err
	}
	ofMarks, err := sqladmin.RolesSQL(&sqladmin.RoleNames{Enforcer: enforcer, Operator: operator, Reader: reader})
	if err != nil {
		return err
	}
	return c.printSQL("-- Run in one transaction.\n", "", ofLeases, ofMarks)
}
