package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient"
	"github.com/fencepost-go/fencepost/lockclient/internal/leasetest"
	"github.com/fencepost-go/fencepost/lockclient/pglock"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

var update = flag.Bool("update", false, "rewrite testdata/runbook.txt with what was seen")

const runbookFile = "testdata/runbook.txt"

// The runbook is carried out on a private server with a standby, and the
// operator sees what testdata/runbook.txt says.
func TestRunbook(t *testing.T) {
	t.Parallel()
	golden, err := os.ReadFile(runbookFile)
	if err != nil {
		t.Fatal(err)
	}
	w := newWalk(t)
	var seen strings.Builder
	typed := map[string]bool{}
	for line := range strings.Lines(string(golden)) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case strings.HasPrefix(line, "$ fencectl "):
			args := words(t, strings.TrimPrefix(line, "$ fencectl "))
			typed[args[0]] = true
			fmt.Fprintf(&seen, "%s\n%s", line, w.run(args))
		case strings.HasPrefix(line, "> "):
			fmt.Fprintf(&seen, "%s\n%s", line, indent(w.happens(strings.Fields(line[2:]))))
		case line == "" || strings.HasPrefix(line, "#"):
			seen.WriteString(line + "\n")
		case !strings.HasPrefix(line, "    "):
			t.Fatalf("%s: a line of no kind: %q", runbookFile, line)
		}
	}
	// Every command that the runbook names was typed.
	for _, m := range regexp.MustCompile(`fencectl ([a-z-]+)`).FindAllStringSubmatch(runbook, -1) {
		if !typed[m[1]] {
			t.Errorf("the walk does not have fencectl %s, which the runbook has", m[1])
		}
	}
	if seen.String() == string(golden) {
		return
	}
	if *update {
		if err := os.WriteFile(runbookFile, []byte(seen.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Errorf("what is seen is not what %s says (go test -update rewrites it):\n%s", runbookFile, firstDifference(string(golden), seen.String()))
}

func firstDifference(golden, seen string) string {
	want, got := strings.Split(golden, "\n"), strings.Split(seen, "\n")
	for i := range want {
		if i >= len(got) || want[i] != got[i] {
			return fmt.Sprintf("line %d:\n  file: %s\n  seen: %s", i+1, want[i], strings.Join(got[min(i, len(got)):min(i+3, len(got))], "\n        "))
		}
	}
	return "it has more lines: " + got[len(want)]
}

// words splits a command as a shell would, single quotes included.
func words(t *testing.T, line string) (args []string) {
	t.Helper()
	for i, part := range strings.Split(line, "'") {
		if i%2 == 1 {
			args = append(args, part)
			continue
		}
		args = append(args, strings.Fields(part)...)
	}
	return args
}

// changing is what differs from run to run, and its placeholders.
var changing = []struct {
	pattern *regexp.Regexp
	with    string
}{
	{regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`), "UUID"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ`), "TIME"},
	{regexp.MustCompile(`-?\b\d+\.\d+ms|\b\d+ms of this`), "MS"},
	{regexp.MustCompile(`\b(host \S+, )?process [0-9]+`), "host HOST, process PID"},
	{regexp.MustCompile(`\b(held for|another|was:  *held for|expired for) [0-9a-z.]+`), "$1 SPAN"},
	{regexp.MustCompile(`(?m)^((?:held|expired)(?:, awaited|, [0-9]+ waiting)?) +(?:[0-9][0-9a-z.]*|-) +(?:-?[0-9][0-9a-z.]*|-) +`), "$1 SPAN SPAN  "},
	{regexp.MustCompile(`127\.0\.0\.1:\d+`), "HOST"},
	{regexp.MustCompile(`PostgreSQL \d+\.\d+`), "PostgreSQL VERSION"},
	{regexp.MustCompile(`system identifier: +\d+`), "system identifier: SYSTEM"},
	{regexp.MustCompile(`server process \d+`), "server process PID"},
	{regexp.MustCompile(`version \d+`), "version N"},
	{regexp.MustCompile(`was \d+\b`), "was N"},
	{regexp.MustCompile(` {2,}`), "  "},
}

func equal(s string) string {
	for _, c := range changing {
		s = c.pattern.ReplaceAllString(s, c.with)
	}
	return s
}

func indent(s string) string {
	if s == "" {
		return ""
	}
	return "    " + strings.ReplaceAll(strings.TrimSuffix(s, "\n"), "\n", "\n    ") + "\n"
}

// walk is the environment in which the operator works.
type walk struct {
	t       *testing.T
	primary *pgtest.Server
	standby *pgtest.Server
	url     string
	pool    *pgxpool.Pool
	clients map[string]*lockclient.Client
	leases  map[string]*lockclient.Lease // by owner and resource
	waiting map[string]chan *lockclient.Lease
	blocker pgx.Tx
}

func newWalk(t *testing.T) *walk {
	t.Helper()
	// doctor rightly reports fsync=off as an error.
	primary, err := pgtest.Start(t.Context(), &pgtest.Options{Settings: map[string]string{"fsync": "on"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { primary.Stop() })
	w := &walk{t: t, primary: primary, clients: map[string]*lockclient.Client{}, leases: map[string]*lockclient.Lease{}, waiting: map[string]chan *lockclient.Lease{}}
	w.connect(primary)
	return w
}

func (w *walk) connect(server *pgtest.Server) {
	w.url = server.URL()
	w.pool = dial(w.t, w.url)
	for _, c := range w.clients {
		c.Close(w.t.Context())
	}
	w.clients = map[string]*lockclient.Client{}
}

// run types a command. LEASE and TOKEN stand for those of the resource's lease.
func (w *walk) run(args []string) string {
	column := map[string]string{"LEASE": "lease_id", "TOKEN": "token::text"}
	for i := range args {
		if column[args[i]] != "" {
			args[i] = value[string](w.t, w.pool, "SELECT "+column[args[i]]+" FROM fencepost.leases WHERE resource = ANY ($1)", args[:3])
		}
	}
	r := fencectl(w.t, w.url, args...)
	out := indent(equal(r.out + onServer.ReplaceAllString(r.errOut, "")))
	if r.code != exitOK {
		out += fmt.Sprintf("    [exit code %d]\n", r.code)
	}
	return out
}

// onServer is the line that names the server, before what a command says itself.
var onServer = regexp.MustCompile(`(?m)^On \S+:\n`)

func (w *walk) client(owner string) *lockclient.Client {
	if c := w.clients[owner]; c != nil {
		return c
	}
	c, err := lockclient.New(leasetest.Patient(guard.Must(pglock.New(w.pool, nil))), owner, &lockclient.Options{Logger: testkit.Logger(w.t)})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { c.Close(context.Background()) })
	w.clients[owner] = c
	return c
}

// happens acts for everybody else; the applications see what it says.
func (w *walk) happens(args []string) string {
	verb, key := args[0], strings.Join(args[1:], " ")
	switch verb {
	case "hold":
		lease, err := w.client(args[1]).TryAcquire(w.t.Context(), args[2], &lockclient.AcquireOptions{TTL: time.Hour})
		if err != nil {
			w.t.Fatal(err)
		}
		w.leases[key] = lease
		return "token " + lease.Token().String()
	case "wait":
		got, owner, resource := make(chan *lockclient.Lease, 1), w.client(args[1]), args[2]
		w.waiting[key] = got
		go func() {
			lease, _ := owner.Acquire(context.WithoutCancel(w.t.Context()), resource, &lockclient.AcquireOptions{TTL: time.Hour})
			got <- lease
		}()
		w.until(`SELECT wake_until > clock_timestamp() FROM fencepost.leases WHERE resource = $1`, resource)
		// The waiter sets it again every other second, which on a busy machine
		// may come too late for the next command.
		exec1(w.t, w.pool, "UPDATE fencepost.leases SET wake_until = clock_timestamp() + interval '1 hour' WHERE resource = $1", resource)
	case "granted":
		w.leases[key] = testkit.Receive(w.t, "a grant for "+key, w.waiting[key])
		// That somebody waited is visible for some seconds more; let them pass.
		exec1(w.t, w.pool, "UPDATE fencepost.leases SET wake_until = NULL WHERE resource = $1", args[2])
		return "token " + w.leases[key].Token().String()
	case "write":
		err := fenced(w.t, w.pool).InTx(w.t.Context(), w.leases[key].Claim(), func(context.Context, pgx.Tx) error { return nil })
		if err != nil {
			return "refused: " + string(guard.ReasonOf(err))
		}
		return "written under token " + w.leases[key].Token().String()
	case "release":
		if err := w.leases[key].Release(w.t.Context()); errors.Is(err, lockclient.ErrLeaseLost) {
			return "lease lost"
		} else if err != nil {
			return string(guard.ReasonOf(err))
		}
		return "released"
	case "expire":
		exec1(w.t, w.pool, "UPDATE fencepost.leases SET expires_at = clock_timestamp() - interval '1 second' WHERE resource = $1", args[2])
	case "block":
		tx, err := w.pool.Begin(w.t.Context())
		if err != nil {
			w.t.Fatal(err)
		}
		if _, err := tx.Exec(w.t.Context(), "LOCK TABLE fencepost.leases IN ROW EXCLUSIVE MODE"); err != nil {
			w.t.Fatal(err)
		}
		w.blocker = tx
		time.Sleep(1100 * time.Millisecond) // a second is not yet forgotten
	case "unblock":
		if err := w.blocker.Rollback(w.t.Context()); err != nil {
			w.t.Fatal(err)
		}
	case "restore":
		w.restore()
	case "failover":
		w.failover()
	default:
		w.t.Fatalf("%s: nothing is called %q", runbookFile, verb)
	}
	return ""
}

func (w *walk) until(condition string, args ...any) {
	w.t.Helper()
	testkit.Eventually(w.t, condition, func() bool {
		var met *bool
		err := w.pool.QueryRow(context.Background(), condition, args...).Scan(&met)
		return err == nil && met != nil && *met
	})
}

// restore resets the issuer's rows to their initial state, as a restore of the
// leases alone would, which the server cannot notice.
func (w *walk) restore() {
	exec1(w.t, w.pool, "TRUNCATE fencepost.leases")
	exec1(w.t, w.pool, "INSERT INTO fencepost.leases (resource, token) VALUES ('billing', 1)")
	for _, c := range w.clients {
		c.Close(w.t.Context())
	}
	w.clients = map[string]*lockclient.Client{}
}

func (w *walk) failover() {
	standby, err := w.primary.Standby(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { standby.Stop() })
	w.standby = standby
	if err := w.primary.Kill(); err != nil {
		w.t.Fatal(err)
	}
	w.connect(standby)
	exec1(w.t, w.pool, "SELECT pg_promote()")
	w.until("SELECT NOT pg_is_in_recovery()")
	exec1(w.t, w.pool, "ALTER SYSTEM SET fsync = on")
	exec1(w.t, w.pool, "SELECT pg_reload_conf()")
	w.until("SELECT current_setting('fsync') = 'on'")
}
