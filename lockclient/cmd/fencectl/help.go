package main

import (
	"context"
	_ "embed"
	"strings"

	"github.com/urfave/cli/v3"
)

//go:embed runbook.txt
var runbook string

// helpCommand prints the pages that are not about one command.
func (a *app) helpCommand() *cli.Command {
	return &cli.Command{
		Name: "help", Category: categorySetup, ArgsUsage: "[TOPIC or COMMAND...]",
		Usage: "print a page: exit-codes, runbook, or the help of a command",
		Action: func(ctx context.Context, cmd *cli.Command) error {
			topic := cmd.Args().Slice()
			switch strings.Join(topic, " ") {
			case "exit-codes":
				return (&call{app: a, cmd: cmd}).printExitCodes()
			case "runbook":
				text := strings.ReplaceAll(runbook, "\t", "  ")
				return (&call{app: a, cmd: cmd}).print(object{"runbook": text}, "%s", text)
			}
			at := cmd.Root()
			for _, name := range topic {
				if at = at.Command(name); at == nil {
					return usage("no command or topic %s", shown(strings.Join(topic, " ")))
				}
			}
			return showHelp(at)
		},
	}
}

func (c *call) printExitCodes() error {
	for _, e := range exitCodes {
		reasons := orNothing(len(e.Reasons) > 0, "     reason: "+strings.Join(e.Reasons, ", ")+"\n")
		if err := c.print(e, "%3d  %s\n%s", e.Code, e.Meaning, reasons); err != nil {
			return err
		}
	}
	return nil
}
