// Command bench measures what fencing costs (-suite cost) and how the lease
// client compares with other lock libraries (-suite peers). Every comparison runs
// its ways in turns in one run; see Compare.
//
//	go -C internal/suites/bench run . -suite cost
//
// Each suite takes less than ten minutes on two idle cores. It writes tables,
// JSON and plots to -out. It needs what .ci/setup servers installs, and for
// cost/s3 builds a gateway on its first run.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/fencepost-go/fencepost/internal/suites/issuers/etcdnode"
)

// experiment is one section of a suite's report.
type experiment struct {
	suite, name, title, about string
	columns                   []string
	run                       func(ctx context.Context, e *env, s *Section) error
	plot                      func(s Section, file string) error // may be nil
}

var suites = map[string][]experiment{"cost": cost, "peers": peers}

func main() {
	etcdnode.Main() // if this process is to be a node
	suite := flag.String("suite", "", "cost or peers")
	only := flag.String("only", "", "run only the sections whose name matches this expression; the others stay as they are stored")
	scale := flag.Float64("scale", 1, "how long to measure, as a multiple of the usual")
	short := flag.Bool("short", false, "two rounds in a setting of each kind: shows that all works, and measures nothing")
	draw := flag.Bool("draw", false, "measure nothing: write tables and plots of the stored figures again")
	out := flag.String("out", "results", "directory of the results")
	flag.Parse()
	slog.SetDefault(slog.New(slog.DiscardHandler)) // waits, which it would warn of, are what is measured
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if *draw {
		*only = "^$" // no section has this name
	}
	if err := runSuite(ctx, *suite, *only, *out, *scale, *short); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		stop()
		os.Exit(1)
	}
}

func runSuite(ctx context.Context, suite, only, out string, scale float64, short bool) error {
	experiments, ok := suites[suite]
	if !ok {
		return fmt.Errorf("-suite %q is neither cost nor peers", suite)
	}
	match, err := regexp.Compile(only)
	if err != nil {
		return fmt.Errorf("-only: %w", err)
	}
	report := load(out, suite)
	if only == "^$" {
		return redraw(&report, experiments, out)
	}
	if short {
		scale = 0
	}
	e := &env{scale: scale, short: short}
	defer e.close()
	command := "go -C internal/suites/bench run . " + strings.Join(os.Args[1:], " ")
	var failed []error
	for _, x := range experiments {
		if !match.MatchString(x.name) {
			continue
		}
		s := Section{Name: x.name, Title: x.title, About: x.about, Columns: x.columns, Machine: thisMachine(command)}
		began := time.Now()
		if err := e.try(ctx, x, &s); err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", x.name, err))
			fmt.Fprintln(os.Stderr, "bench:", failed[len(failed)-1])
			if ctx.Err() != nil {
				return ctx.Err()
			}
			continue
		}
		s.Seconds = time.Since(began).Seconds()
		s.Machine.PostgreSQL = e.version
		fmt.Println(s.markdown())
		report.put(s)
		if err := report.write(out); err != nil {
			return err
		}
		if x.plot != nil {
			if err := x.plot(s, out+"/"+suite+"-"+x.name+".svg"); err != nil {
				return err
			}
		}
	}
	return errors.Join(failed...)
}

// redraw writes tables and plots from the stored figures.
func redraw(report *Report, experiments []experiment, out string) error {
	for _, s := range report.Sections {
		for _, x := range experiments {
			if x.name == s.Name && x.plot != nil {
				if err := x.plot(s, out+"/"+report.Suite+"-"+x.name+".svg"); err != nil {
					return err
				}
			}
		}
	}
	return report.write(out)
}
