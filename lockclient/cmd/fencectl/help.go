package main

import (
	"context"
	_ "embed"
	"strings"

	"github.com/urfave/cli/v3"
)

// helpCommand prints the pages that are not about one command.
func (a *app) helpCommand() *cli.Command {
	return &cli.Command{
		Name: "help", Category: categorySetup, ArgsUsage: "[TOPIC or COMMAND...]",
		Usage: "print a page: exit-codes, runbook, or the help of a command",
		Action: func(ctx context.Context, cmd *cli.Command) error {
			topic := cmd.Args().Slice()
			switch strings.Join(topic, " ") {
			case "":
				return cli.ShowRootCommandHelp(cmd.Root())
			case "exit-codes":
				return a.printExitCodes(cmd)
			case "runbook":
				return a.say("%s", strings.ReplaceAll(runbook, "\t", "  "))
			}
			at := cmd.Root()
			for _, name := range topic[:len(topic)-1] {
				if at = at.Command(name); at == nil {
					return usage("no command or topic %s", shown(strings.Join(topic, " ")))
				}
			}
			if at.Command(topic[len(topic)-1]) == nil {
				return usage("no command or topic %s", shown(strings.Join(topic, " ")))
			}
			return cli.ShowCommandHelp(ctx, at, topic[len(topic)-1])
		},
		ShellComplete: func(_ context.Context, cmd *cli.Command) {
			for _, topic := range []string{"exit-codes:what each exit code means", "runbook:which command helps with what"} {
				_ = a.say("%s\n", topic)
			}
			for _, c := range cmd.Root().VisibleCommands() {
				_ = a.say("%s:%s\n", c.Name, c.Usage)
			}
		},
	}
}

func (a *app) printExitCodes(cmd *cli.Command) error {
	for _, e := range exitCodes {
		reasons := []string{}
		if e.reasons != "" {
			reasons = strings.Split(e.reasons, ", ")
		}
		text := strings.Join(wrapped(e.meaning+orNothing(e.reasons != "", " ("+e.reasons+")"), 74), "\n     ")
		if err := a.print(cmd, object{"code": e.code, "reasons": reasons, "meaning": e.meaning}, "%3d  %s\n", e.code, text); err != nil {
			return err
		}
	}
	return nil
}

// wrapped breaks a text between words.
func wrapped(text string, width int) (lines []string) {
	line := ""
	for _, word := range strings.Fields(text) {
		if line != "" && len(line)+1+len(word) > width {
			lines, line = append(lines, line), ""
		}
		line += orNothing(line != "", " ") + word
	}
	return append(lines, line)
}
