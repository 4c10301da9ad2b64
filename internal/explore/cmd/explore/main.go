// Command explore prints what the exploration of Fencepost's protocols found:
// a table of the protocols as they are built, then one of their mutants.
//
//	go run ./internal/explore/cmd/explore
//	go run ./internal/explore/cmd/explore -mutant tx-savepoint
//
// With -mutant it prints that mutant's shortest counterexample; "all" prints
// those of all mutants. It exits with 1 if a protocol violates a promise or a
// mutant does not.
package main

import (
	"flag"
	"fmt"
	"os"

	"github.com/fencepost-go/fencepost/internal/explore"
)

func main() {
	name := flag.String("mutant", "", "print the counterexample of the mutant of this `name`, or of all")
	flag.Parse()
	if flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	ok, err := false, error(nil)
	if *name == "" {
		ok, err = tables()
	} else {
		ok, err = traces(*name)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "explore:", err)
	}
	if err != nil || !ok {
		os.Exit(1)
	}
}

func tables() (ok bool, err error) {
	ok = true
	var models, found []explore.Result
	explore.Models(func(r explore.Result) {
		ok = ok && r.Broken == ""
		models = append(models, r)
	})
	if err := explore.WriteModels(os.Stdout, models); err != nil {
		return false, err
	}
	for _, r := range models {
		if r.Broken != "" {
			if err := explore.WriteTrace(os.Stdout, r); err != nil {
				return false, err
			}
		}
	}
	mutants := explore.Mutants()
	for _, m := range mutants {
		r := m.Run()
		ok = ok && r.Broken == m.Breaks
		found = append(found, r)
	}
	fmt.Println()
	return ok, explore.WriteMutants(os.Stdout, mutants, found)
}

func traces(name string) (ok bool, err error) {
	ok = true
	known := false
	for _, m := range explore.Mutants() {
		if name != "all" && name != m.Name {
			continue
		}
		known = true
		r := m.Run()
		ok = ok && r.Broken == m.Breaks
		fmt.Printf("%s: %s\n", m.Name, m.What)
		if err := explore.WriteTrace(os.Stdout, r); err != nil {
			return false, err
		}
		fmt.Println()
	}
	if !known {
		return false, fmt.Errorf("there is no mutant %q; without -mutant they are listed", name)
	}
	return ok, nil
}
