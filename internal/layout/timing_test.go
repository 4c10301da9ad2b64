package layout

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// timed lists the functions of tests that sleep or set a short limit on the real clock, by the
// reason why no verdict depends on it. Another entry needs one of these reasons.
var timed = map[string][]string{
	"a time that has to pass; a longer one is as good": {
		"lockclient/client_test.go: TestConformance",
		"lockclient/internal/waiting/queue_test.go: TestNoted",
		"lockclient/lockadmin/pgadmin/events_test.go: TestOperatorEvents",
		"lockclient/lockadmin/pgadmin/failover_test.go: TestPromotedStandby",
		"lockclient/lockadmin/pgadmin/failover_test.go: TestRestoredDump",
		"lockclient/lockadmin/pgadmin/list_test.go: TestListStates",
		"lockclient/lockadmin/pgadmin/purge_race_test.go: TestPurgeBesideAnInsert",
		"lockclient/lockadmin/pgadmin/purge_race_test.go: TestPurgeThenInsert",
		"lockclient/lockadmin/pgadmin/purge_test.go: TestPurgeFails",
		"lockclient/lockadmin/pgadmin/roles_test.go: TestIssuerCannotStopGrants",
		"lockclient/lockadmin/pgadmin/roles_test.go: TestRolesSuffice",
		"lockclient/lockhttp/harness_test.go: TestConformanceOnPostgreSQL",
	},
	"what must not happen by then: a slow machine can only miss it": {
		"lockclient/acquire_test.go: TestLockedReleasesDelayNoRenewal",
		"lockclient/many_test.go: TestHandOver",
		"lockclient/internal/pglease/batch_test.go: TestCloseEndsNoStatement",
		"lockclient/internal/pglease/line_test.go: TestAbandonedWaitersLeave",
		"lockclient/internal/pglease/listen_test.go: TestListenerIdle",
		"lockclient/lockadmin/pgadmin/advance_test.go: TestAdvanceFloorWaitsForGrants",
		"lockclient/network_test.go: open",
		"lockclient/migrate_test.go: TestPollingWaiter",
		"sqlfence/lost_test.go: TestCommitIgnoresCancel",
		"sqlfence/outcome_test.go: Scan",
	},
	"the limit is what is tested: whatever waits is meant to reach it": {
		"httpfence/client_test.go: TestDoSeesThroughTimeouts",
		"lockclient/lease_test.go: TestHoldInsideHold",
		"lockclient/lockadmin/pgadmin/purge_test.go: TestPurgeBesideOpenTransaction",
		"lockclient/lockhttp/close_test.go: TestCloseGivesUp",
		"lockclient/pooler_test.go: Renew",
		"lockclient/network_test.go: TestPoolExhausted",
		"lockclient/lease_test.go: TestNoNewConnection",
		"sqlfence/tx_test.go: raiseMustWait",
		"sqlfence/lost_test.go: TestPoolExhausted",
		"sqlfence/lost_test.go: TestResolveUnknowable",
		"sqlfence/outcome_test.go: TestShortRaiseTimeout",
		"sqlfence/raise_test.go: TestTimesOut",
		"sqlfence/terminate_test.go: TestExclusiveStranger",
		"sqlfence/unix_test.go: TestStoppedWhileReceiving",
	},
	"it bounds the wait for a lock that nobody has, not the work": {
		"sqlfence/tx_test.go: TestEnterAnotherTransaction",
		"sqlfence/migrate_test.go: TestLockKeyIsSecret",
	},
	"each outcome is a right one, in time or late": {
		"examples/lockserver/main_test.go: TestShutdown",
		"lockclient/crash_test.go: TestServerKilled",
		"lockclient/many_test.go: handOver",
		"lockclient/internal/pglease/listen_test.go: TestWatchWhileOpening",
		"lockclient/lease_test.go: TestLeaseConcurrently",
		"lockclient/locktest/locktest_test.go: TestServer",
		"lockclient/many_test.go: together",
		"lockclient/acquire_test.go: TestAcquireCancelledAnytime",
		"sqlfence/ended_test.go: TestLeakedRowsOfEndedContext",
		"sqlfence/guardedtraps_test.go: torturedLedger",
		"sqlfence/raise_test.go: TestStoppedHolder",
	},
	"a poll that ends with something else": {
		"lockclient/example_leader_test.go: lead",
		"lockclient/internal/pglease/functions_test.go: run",
		"lockclient/internal/pglease/issuer_test.go: TestCancelledStandbyWait",
		"lockclient/lockhttp/close_test.go: TestRestarts",
		"lockclient/contended_test.go: terminate",
	},
	"bubbles call it by an interface": {
		"httpfence/harness_test.go: run",
		"lockclient/lockhttp/clients_test.go: ForceUnlock",
		"lockclient/lockhttp/articles_test.go: Acquire",
		"lockclient/lockhttp/clients_test.go: Release",
		"lockclient/lockhttp/clients_test.go: Watch",
		"lockclient/lockhttp/line_test.go: Acquire",
		"lockclient/lockhttp/line_test.go: TestIssuerFailsTheQueue",
		"lockclient/lockhttp/line_test.go: TestPlaceIsKept",
		"lockclient/schedule_test.go: Acquire",
		"s3fence/sdk_test.go: Read",
	},
	"options that are looked at and not used": {
		"lockclient/internal/pglease/issuer_test.go: TestNewIssuerInvalid",
		"lockclient/lockadmin/pgadmin/events_test.go: TestOptionsInvalid",
		"lockclient/events_test.go: TestDefaultOptions",
		"lockclient/validate_test.go: TestInvalidInput",
		"lockclient/validate_test.go: TestNewInvalid",
		"sqlfence/input_test.go: TestInvalidOptions",
	},
	"the default TTL, in a program to copy": {
		"lockclient/example_test.go: ExampleClient_Hold",
	},
}

// TestTiming: no test's verdict depends on the machine's speed. Tests wait with
// internal/testkit, or in a bubble of testing/synctest, whose clock is its own. What sleeps,
// or sets a limit of less than a minute for what must happen, is in the list above. A random
// pause and the pause of a poll are no limits.
func TestTiming(t *testing.T) {
	found := map[string][]string{}
	read := map[string][]*ast.File{}
	files := token.NewFileSet()
	walk(t, func(path string, d fs.DirEntry) {
		path = filepath.ToSlash(path)
		if !strings.HasSuffix(path, "_test.go") || slices.ContainsFunc(modules, func(m string) bool { return m != "." && strings.HasPrefix(path, m+"/") }) {
			return
		}
		file, err := parser.ParseFile(files, path, readPage(t, path), parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		dir := filepath.ToSlash(filepath.Dir(path))
		read[dir] = append(read[dir], file)
	})
	for dir, of := range read {
		if dir != "internal/testkit" {
			maps.Copy(found, timings(files, of))
		}
	}
	for _, names := range timed {
		for _, name := range names {
			if found[name] == nil {
				t.Errorf("%s is listed and neither sleeps nor sets a short limit", name)
			}
			delete(found, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(found)) {
		t.Errorf("%s depends on the real clock:\n\t%s", name, strings.Join(found[name], "\n\t"))
	}
	if len(read) < 20 {
		t.Errorf("%d packages read: the check is broken", len(read))
	}
}

// The check must be able to fail, and be fair.
func TestTimingControl(t *testing.T) {
	for body, hits := range map[string]int{
		"func TestX(t *testing.T) { time.Sleep(d) }":                                                                                                           1,
		"func TestX(t *testing.T) { for !done() { time.Sleep(d) } }":                                                                                           1,
		"func TestX(t *testing.T) { select { case <-c: case <-time.After(time.Second): } }":                                                                    1,
		"func TestX(t *testing.T) { context.WithTimeout(t.Context(), d) }":                                                                                     1,
		"func TestX(t *testing.T) { for end := time.Now().Add(time.Second); !done(); time.Sleep(d) {} }":                                                       1,
		"func TestX(t *testing.T) { use(&Options{OpTimeout: 20 * time.Millisecond}) }":                                                                         1,
		"func TestX(t *testing.T) { use(&Options{TTL: short}) }\nconst short = time.Second":                                                                    1,
		"func TestX(t *testing.T) { use(&Options{TTL: long, OpTimeout: -1}) }\nconst long = time.Hour":                                                         0,
		"func TestX(t *testing.T) { context.WithTimeout(t.Context(), testkit.Patience) }":                                                                      0,
		"func TestX(t *testing.T) { time.AfterFunc(2*time.Minute, f) }":                                                                                        0,
		"func TestX(t *testing.T) { time.Sleep(rand.N(time.Second)) }":                                                                                         0,
		"func TestX(t *testing.T) { for ; !done(); time.Sleep(d) {} }":                                                                                         0,
		"func TestX(t *testing.T) { synctest.Test(t, func(t *testing.T) { time.Sleep(time.Second) }) }":                                                        0,
		"func TestX(t *testing.T) { synctest.Test(t, inside) }\nfunc inside(t *testing.T) { time.Sleep(d) }":                                                   0,
		"func TestX(t *testing.T) { synctest.Test(t, func(*testing.T) { help() }) }\nfunc help() { time.Sleep(d) }":                                            0,
		"func TestX(t *testing.T) { synctest.Test(t, func(*testing.T) { help() }); help() }\nfunc help() { time.Sleep(d) }":                                    1,
		"func TestX(t *testing.T) { bubble(t, func() { time.Sleep(d) }) }\nfunc bubble(t *testing.T, f func()) { synctest.Test(t, func(*testing.T) { f() }) }": 0,
	} {
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, "x_test.go", "package x\n"+body, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		if found := timings(files, []*ast.File{file}); len(found) != hits {
			t.Errorf("%d hits, want %d: %v in\n%s", len(found), hits, found, body)
		}
	}
}

// timings returns the places, by file and function, at which a package's tests sleep or set
// a short limit on the real clock. A function that only bubbles call is part of them.
func timings(files *token.FileSet, of []*ast.File) map[string][]string {
	c := clockwork{wrappers: map[string]bool{"synctest.Test": true, "testkit.Bubble": true}, values: map[string]ast.Expr{}}
	for _, file := range of {
		for _, decl := range file.Decls {
			switch decl := decl.(type) {
			case *ast.FuncDecl:
				if decl.Body != nil && !isTest(decl) && has(decl.Body, "synctest.Test") {
					c.wrappers[decl.Name.Name] = true
				}
			case *ast.GenDecl:
				for _, spec := range decl.Specs {
					if v, ok := spec.(*ast.ValueSpec); ok && len(v.Names) == len(v.Values) {
						for i, name := range v.Names {
							c.values[name.Name] = v.Values[i]
						}
					}
				}
			}
		}
	}
	type use struct{ by, position, what string } // by is the function
	var uses []use
	callers := map[string][]string{} // of each name, outside of bubbles
	bubbled := map[string]bool{}     // functions that only bubbles call
	for _, file := range of {
		for _, decl := range file.Decls {
			by := ""
			var body ast.Node = decl
			if fn, ok := decl.(*ast.FuncDecl); ok {
				if fn.Body == nil {
					continue
				}
				by, body = fn.Name.Name, fn.Body
				bubbled[by] = !isTest(fn)
			}
			polls := map[ast.Node]bool{}
			c.outside(body, func(n ast.Node) {
				switch n := n.(type) {
				case *ast.Ident:
					callers[n.Name] = append(callers[n.Name], by)
				case *ast.ForStmt:
					if poll, ok := n.Post.(*ast.ExprStmt); ok {
						polls[poll.X] = true
					}
				}
				if what := c.limit(n); what != "" && !polls[n] {
					uses = append(uses, use{by, files.Position(n.Pos()).String(), what})
				}
			})
		}
	}
	for again := true; again; {
		again = false
		for name, is := range bubbled {
			if is && slices.ContainsFunc(callers[name], func(by string) bool { return by != name && !bubbled[by] }) {
				bubbled[name], again = false, true
			}
		}
	}
	found := map[string][]string{}
	for _, u := range uses {
		if !bubbled[u.by] {
			file, line, _ := strings.Cut(u.position, ":")
			found[file+": "+u.by] = append(found[file+": "+u.by], line+": "+u.what)
		}
	}
	return found
}

// clockwork knows of a package's tests what runs in a bubble, and the package's values.
type clockwork struct {
	wrappers map[string]bool // functions that run their argument in a bubble
	values   map[string]ast.Expr
}

// outside visits what is not in a bubble.
func (c clockwork) outside(body ast.Node, visit func(ast.Node)) {
	ast.Inspect(body, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok && c.wrappers[dotted(call.Fun)] {
			for _, arg := range call.Args {
				if _, ok := arg.(*ast.FuncLit); !ok && dotted(call.Fun) != "synctest.Test" {
					c.outside(arg, visit)
				}
			}
			return false
		}
		if n != nil {
			visit(n)
		}
		return true
	})
}

// limits are the fields of options that bound what must happen.
var limits = regexp.MustCompile(`(Timeout|TTL|Deadline)$`)

// limit says what sleeps or is a limit of less than a minute; "" is neither.
func (c clockwork) limit(n ast.Node) string {
	var d ast.Expr
	what := ""
	switch n := n.(type) {
	case *ast.KeyValueExpr:
		if what = dotted(n.Key); limits.MatchString(what) && c.isShort(n.Value) {
			return what
		}
		return ""
	case *ast.CallExpr:
		switch what = dotted(n.Fun); what {
		case "time.Sleep":
			if !has(n.Args[0], "rand.") && !has(n.Args[0], "rng.") {
				return what
			}
			return ""
		case "time.After", "time.AfterFunc", "time.NewTimer":
			d = n.Args[0]
		case "context.WithTimeout", "context.WithTimeoutCause":
			d = n.Args[1]
		case "Add":
			if call, ok := n.Fun.(*ast.SelectorExpr).X.(*ast.CallExpr); ok && dotted(call.Fun) == "time.Now" && c.isShort(n.Args[0]) {
				return "time.Now().Add"
			}
		}
	}
	if d == nil || c.isLong(d) {
		return ""
	}
	return what
}

// isLong recognises a time that only a hang reaches: a minute or more.
func (c clockwork) isLong(d ast.Expr) bool {
	switch d := d.(type) {
	case *ast.BinaryExpr:
		return d.Op == token.MUL && (c.isLong(d.X) || c.isLong(d.Y))
	case *ast.UnaryExpr:
		return d.Op == token.SUB // in the past
	case *ast.Ident:
		if value := c.values[d.Name]; value != nil {
			return c.isLong(value)
		}
	}
	return slices.Contains([]string{"testkit.Patience", "time.Minute", "time.Hour", "lockclient.MaxTTL", "MaxTTL"}, dotted(d))
}

// isShort recognises a constant of less than a minute.
func (c clockwork) isShort(d ast.Expr) bool {
	switch d := d.(type) {
	case *ast.BinaryExpr:
		return d.Op == token.MUL && !c.isLong(d) && (c.isShort(d.X) || c.isShort(d.Y))
	case *ast.Ident:
		if value := c.values[d.Name]; value != nil {
			return c.isShort(value)
		}
	}
	return slices.Contains([]string{"time.Second", "time.Millisecond", "time.Microsecond", "time.Nanosecond"}, dotted(d))
}

func isTest(fn *ast.FuncDecl) bool {
	return fn.Recv == nil && regexp.MustCompile(`^(Test|Benchmark|Fuzz|Example)`).MatchString(fn.Name.Name)
}

// dotted returns the name of a function or a value, "" for another expression.
func dotted(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.SelectorExpr:
		if x, ok := e.X.(*ast.Ident); ok {
			return x.Name + "." + e.Sel.Name
		}
		return e.Sel.Name
	case *ast.Ident:
		return e.Name
	case *ast.IndexExpr:
		return dotted(e.X)
	}
	return ""
}

// has reports whether a name is used; one that ends in a dot stands for a package.
func has(n ast.Node, name string) (found bool) {
	ast.Inspect(n, func(n ast.Node) bool {
		if e, ok := n.(ast.Expr); ok && (dotted(e) == name || strings.HasSuffix(name, ".") && strings.HasPrefix(dotted(e), name)) {
			found = true
		}
		return !found
	})
	return found
}
