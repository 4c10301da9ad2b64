package main

import (
	"context"
	"embed"

	"github.com/urfave/cli/v3"
)

// The library's own script for bash needs the package bash-completion, and
// hands the words of the command line to eval.
//
//go:embed completion
var completionScripts embed.FS

var shells = []string{"bash", "zsh", "fish"}

// completionCommand takes the place of the library's scripts, and keeps its
// protocol: with the flag --generate-shell-completion at its end a command line
// prints what could come next.
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
