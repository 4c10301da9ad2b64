package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin"

	"github.com/urfave/cli/v3"
)

func watchFlags() []cli.Flag {
	return []cli.Flag{
		&cli.BoolFlag{Name: "watch", Aliases: []string{"w"}, Usage: "print it again and again until Ctrl-C", Local: true},
		&cli.DurationFlag{Name: "interval", Value: 2 * time.Second, Usage: "how often, with --watch", Local: true, Validator: func(d time.Duration) error {
			if d < 100*time.Millisecond {
				return fmt.Errorf("must be at least 100ms")
			}
			return nil
		}},
	}
}

func (a *app) watchCommand() *cli.Command {
	flags := watchFlags()
	flags[0] = &cli.BoolFlag{Name: "watch", Value: true, Hidden: true, Local: true}
	return &cli.Command{
		Name: "watch", Category: categoryLook, ArgsUsage: "[PATTERN]",
		Usage: "follow who holds what, who waits, and which marks are behind",
		Description: "PATTERN is as for list. MARK is what sqlfence has for the resource: = is the\n" +
			"lease's token, a lower one means that the holder has not raised or written yet,\n" +
			"so that its predecessor is still admitted.",
		Flags:  append(flags, limitFlag(watchedRows, "at most this many; 0 is all")),
		Action: a.watchLeases,
	}
}

// marked is a lease with its resource's mark.
type marked struct {
	lockadmin.LeaseInfo
	Mark guard.Mark `json:"mark"`
}

func (a *app) watchLeases(ctx context.Context, cmd *cli.Command) error {
	given, s, err := open(ctx, cmd, components, "PATTERN?")
	if err != nil {
		return err
	}
	defer s.close()
	opts := &lockadmin.ListOptions{States: []lockadmin.LeaseState{lockadmin.StateHeld, lockadmin.StateExpired}}
	return a.watch(ctx, cmd, func(ctx context.Context, w io.Writer) error {
		leases := func(yield func(marked, error) bool) {
			for l, err := range s.op.List(ctx, given[0], opts) {
				m := marked{LeaseInfo: l}
				if err == nil && guard.ValidateResource(l.Resource) == nil { // else no fence has it
					m.Mark, err = s.mark(ctx, l.Resource)
				}
				if !yield(m, err) || err != nil {
					return
				}
			}
		}
		out := newListing(w, cmd, cmd.Int("limit"), "STATE", ">HELD FOR", ">LEFT", ">TOKEN", ">MARK", "OWNER", "RESOURCE")
		return printAll(out, leases, "no lease", func(m marked) []string {
			return []string{stateOf(m.LeaseInfo), whenHeld(m.LeaseInfo, m.HeldFor), whenHeld(m.LeaseInfo, m.Remaining), m.Token.String(),
				compared(m.Mark, m.Token), shown(m.Owner), shown(m.Resource)}
		})
	})
}

// compared returns a mark, compared with the token of the lease.
func compared(mark guard.Mark, token guard.Token) string {
	switch {
	case mark.Token == guard.NoToken || mark.Floor:
		return "-"
	case mark.Token == token:
		return "="
	}
	return mark.Token.String()
}

// render prints a view once.
type render func(ctx context.Context, w io.Writer) error

// watch prints a view, once or with --watch until Ctrl-C, which is not an
// error then. The first time it must succeed; later, if the server is down, the
// screen says so and the server is asked again.
func (a *app) watch(ctx context.Context, cmd *cli.Command, view render) error {
	if !cmd.Bool("watch") {
		return view(ctx, a.out)
	}
	screen := newScreen(a.out, !asJSON(cmd))
	defer screen.close()
	for first := true; ; first = false {
		var b bytes.Buffer
		err := view(ctx, &b)
		switch code, _ := classify(err); {
		case ctx.Err() != nil:
			return nil
		case err != nil && (first || code != exitUnavailable):
			return err
		case err != nil && asJSON(cmd):
			report(a.errOut, true, err)
			err = nil
		}
		if err := screen.paint(b.String(), err, cmd.Duration("interval")); err != nil {
			return err
		}
		select {
		case <-time.After(cmd.Duration("interval")):
		case <-ctx.Done():
			return nil
		}
	}
}

// screen repaints a terminal in place, and on anything else, a dumb terminal or
// a file, prints one picture below the other.
type screen struct {
	w       io.Writer
	live    bool
	heading bool
	painted bool
}

func newScreen(out io.Writer, heading bool) *screen {
	s := &screen{w: out, heading: heading}
	s.live = heading && isTerminal(out) && os.Getenv("TERM") != "dumb" && os.Getenv("TERM") != ""
	if s.live {
		// No line wraps: a wrapped line would push the rest of the picture
		// down.
		fmt.Fprint(out, "\x1b[?7l\x1b[2J")
	}
	return s
}

func (s *screen) paint(picture string, failed error, every time.Duration) error {
	if s.heading {
		head := clockTime(time.Now()) + ", every " + every.String() + ", Ctrl-C ends\n\n"
		if failed != nil {
			picture = "asking again: " + oneLine(failed.Error()) + "\n"
		}
		picture = head + picture
	}
	switch {
	case s.live:
		// Overwriting line by line and clearing the rest of each avoids flicker.
		picture = "\x1b[H" + strings.ReplaceAll(picture, "\n", "\x1b[K\n") + "\x1b[J"
	case s.heading && s.painted:
		picture = "\n" + picture
	}
	s.painted = true
	_, err := io.WriteString(s.w, picture)
	return err
}

func (s *screen) close() {
	if s.live {
		fmt.Fprint(s.w, "\x1b[?7h\n") // below the picture
	}
}
