// Command bench measures what fencing costs (-suite cost) and how the lease
// client compares with other lock libraries (-suite peers). Every comparison runs
// its ways in turns in one run; see Compare.
//
//	go -C internal/suites/bench run . -suite cost
//
// Each suite takes a few minutes on two idle cores. It writes tables, JSON and
// plots to -out, but nothing that a busy machine measured. It needs what .ci/setup servers installs. What a statement, a
// trigger, a request or an object costs is measured by the benchmarks of their
// packages.
package main

import (
	"context"
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
	name, title, about string
	columns            []string
	run                func(ctx context.Context, e *env, s *Section) error
	plot               func(s Section, file string) error
}

var suites = map[string][]experiment{"cost": cost, "peers": peers}

func main() {
	etcdnode.Main() // if this process is to be a node
	suite := flag.String("suite", "", "cost or peers")
	only := flag.String("only", "", "run only the sections whose name matches this expression; the others stay as they are stored")
	short := flag.Bool("short", false, "two rounds in one setting: shows that all works, and measures nothing")
	draw := flag.Bool("draw", false, "measure nothing: write tables and plots of the stored figures again")
	out := flag.String("out", "results", "directory of the results")
	flag.Parse()
	slog.SetDefault(slog.New(slog.DiscardHandler)) // waits, which it would warn of, are what is measured
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := runSuite(ctx, *suite, *only, *out, *short, *draw); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		stop()
		os.Exit(1)
	}
}

func runSuite(ctx context.Context, suite, only, out string, short, draw bool) error {
	experiments, ok := suites[suite]
	if !ok {
		return fmt.Errorf("-suite %q is neither cost nor peers", suite)
	}
	match, err := regexp.Compile(only)
	if err != nil {
		return fmt.Errorf("-only: %w", err)
	}
	report := load(out, suite)
	if !short && !draw {
		if err := thisMachine("").calm(); err != nil {
			return err
		}
	}
	for _, x := range experiments {
		if !match.MatchString(x.name) {
			continue
		}
		s := report.section(x.name)
		if !draw {
			*s = Section{Name: x.name, Title: x.title, About: x.about, Columns: x.columns,
				Machine: thisMachine("go -C internal/suites/bench run . " + strings.Join(os.Args[1:], " "))}
			began := time.Now()
			e := &env{short: short}
			if err := e.part(func(e *env) error { return x.run(ctx, e, s) }); err != nil {
				return fmt.Errorf("%s: %w", x.name, err)
			}
			s.Seconds, s.Machine.PostgreSQL = time.Since(began).Seconds(), e.version
			fmt.Println(s.markdown())
			if err := s.calm(); err != nil && !short {
				return err
			}
		}
		if err := report.write(out); err != nil {
			return err
		}
		if x.plot == nil {
			continue
		}
		if err := x.plot(*s, out+"/"+suite+"-"+x.name+".svg"); err != nil {
			return err
		}
	}
	return nil
}
