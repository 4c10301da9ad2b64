package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

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
