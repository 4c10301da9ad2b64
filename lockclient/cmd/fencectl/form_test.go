package main

import (
	"bytes"
	"encoding/json"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient/internal/leasetest"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin/pgadmin"
	"github.com/fencepost-go/fencepost/lockclient/lockhttp"
	"github.com/fencepost-go/fencepost/lockclient/pglock"

	"github.com/urfave/cli/v3"
)

// lines are log lines that several goroutines write.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

// named returns the first line of an event; nil if there is none yet.
func (l *lines) named(event string) map[string]any {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.text.String()) {
		var found map[string]any
		if json.Unmarshal([]byte(line), &found) == nil && found["msg"] == event {
			return found
		}
	}
	return nil
}

// TestOneForm: a lease and a record of the audit have the same members, with the same values, in Go's
// JSON, in the lock server's API, and in what fencectl prints of PostgreSQL and of the lock
// server; and log lines use their names.
func TestOneForm(t *testing.T) {
	t.Parallel()
	url, pool := database(t)
	quiet, said := slog.New(slog.DiscardHandler), &lines{}
	logger := slog.New(slog.NewJSONHandler(said, nil))
	op := guard.Must(pgadmin.New(pool, &pgadmin.Options{OpTimeout: testkit.Patience, Logger: quiet}))
	logging := guard.Must(pgadmin.New(pool, &pgadmin.Options{OpTimeout: testkit.Patience, Logger: logger}))
	issuer := leasetest.Patient(guard.Must(pglock.New(pool, &pglock.Options{Logger: quiet})))
	t.Cleanup(func() { issuer.Close() })
	everything := func(*http.Request) (*lockhttp.Identity, error) {
		return &lockhttp.Identity{Subject: "ada", AllResources: true, Operator: true}, nil
	}
	serverSaid := &lines{}
	handler := guard.Must(lockhttp.New(issuer, everything, &lockhttp.Options{Admin: op, Timeout: testkit.Patience, Logger: slog.New(slog.NewJSONHandler(serverSaid, nil))}))
	server := httptest.NewServer(handler)
	t.Cleanup(func() { server.Close(); handler.Close(t.Context()) })
	onServer := func(args ...string) string {
		return must(t, "", append([]string{"--issuer", "http", "--address", server.URL}, args...)...)
	}
	const resource = "tenant_1:billing-close:2026-04"
	hold(t, pool, "worker-1", resource, time.Hour)

	object := func(text []byte) (v map[string]any) {
		t.Helper()
		if err := json.Unmarshal(text, &v); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		delete(v, "serverTime")
		return v
	}
	encoded := func(v any) map[string]any {
		t.Helper()
		text, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return object(text)
	}
	api := func(path, member string) map[string]any {
		t.Helper()
		resp, err := http.Get(server.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, _ := io.ReadAll(resp.Body)
		v := object(text)
		if member != "" {
			v, _ = v[member].([]any)[0].(map[string]any)
		}
		return v
	}
	compare := func(what string, names []string, forms map[string]map[string]any) {
		t.Helper()
		want := forms["Go"]
		for _, name := range names {
			if want[name] == nil {
				t.Errorf("%s has no %s: %v", what, name, want)
			}
		}
		for form, got := range forms {
			if a, b := slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)); !slices.Equal(a, b) {
				t.Errorf("%s in %s has %v, in Go %v", what, form, a, b)
			}
			for _, name := range names {
				if !reflect.DeepEqual(got[name], want[name]) {
					t.Errorf("%s: %s in %s is %v, in Go %v", what, name, form, got[name], want[name])
				}
			}
		}
	}

	info, err := op.Get(t.Context(), resource)
	if err != nil {
		t.Fatal(err)
	}
	compare("a lease", []string{"resource", "state", "ownerId", "leaseId", "fencingToken", "token", "createdAt", "expiresAt"}, map[string]map[string]any{
		"Go": encoded(info), "the API": api("/v1/resources/tenant_1:billing-close:2026-04", ""), "the API's list": api("/v1/locks", "locks"),
		"fencectl": object([]byte(must(t, url, "list", "-o", "json"))), "fencectl of the server": object([]byte(onServer("list", "-o", "json"))),
	})
	// What another engine's show says of the mark.
	if shown := object([]byte(onServer("show", resource, "-o", "json"))); shown["verdict"] != "elsewhere" || shown["mark"] != nil {
		t.Errorf("show of the lock server: %v", shown)
	}

	done, err := logging.ForceUnlock(t.Context(), resource, "ada", "it hangs", nil)
	if err != nil {
		t.Fatal(err)
	}
	var record lockadmin.AuditRecord
	for r, err := range op.Audit(t.Context(), resource, nil) {
		if err != nil {
			t.Fatal(err)
		}
		record = r
	}
	names := []string{"id", "createdAt", "action", "resource", "actorId", "reason", "requestId", "fencingToken", "token", "cut"}
	want := encoded(record)
	if want["databaseUser"] == nil {
		t.Errorf("a record of PostgreSQL's has no databaseUser: %v", want)
	}
	delete(want, "databaseUser") // the server does not say as whom it is logged in
	byRole := object([]byte(must(t, url, "audit", "-o", "json")))
	delete(byRole, "databaseUser")
	compare("a record", names, map[string]map[string]any{
		"Go": want, "the API": api("/v1/audit", "records"),
		"fencectl": byRole, "fencectl of the server": object([]byte(onServer("audit", "-o", "json"))),
	})
	if want["action"] != "FORCE_UNLOCK" {
		t.Errorf("action %v", want["action"])
	}

	second := hold(t, pool, "worker-2", resource, time.Hour)
	again := object([]byte(onServer("force-unlock", resource, "--actor", "ada", "--reason", "it hangs", "--yes", "-o", "json")))
	byProgram := object([]byte(must(t, url, "force-unlock", resource, "--actor", "ada", "--reason", "it hangs", "--request-id", "INC-1", "--yes", "-o", "json")))
	for name := range encoded(done) {
		if again[name] == nil || byProgram[name] == nil && name != "leaseId" {
			t.Errorf("a force unlock has %s, and fencectl prints %v and %v", name, again, byProgram)
		}
	}
	// leaseId is a lease's own everywhere, and so the cut one's here.
	invalidated, _ := byProgram["invalidated"].(map[string]any)
	if again["leaseId"] != second.ID() || byProgram["leaseId"] != nil || invalidated["leaseId"] != "INC-1" || invalidated["token"] == nil {
		t.Errorf("the lease %s was cut, and then nobody's: %v, %v", second.ID(), again, byProgram)
	}
	// The rest of what the runbook says of a lock server.
	for _, typed := range []string{"advance other 7 --yes", "advance --floor 8 --yes", "epoch show", "epoch raise --yes", "purge --older-than 1ms --yes"} {
		tokensInBothForms(t, "the server: "+typed, object([]byte(onServer(append(strings.Fields(typed), "-o", "json")...))))
	}
	var line, serverLine map[string]any
	testkit.Eventually(t, "the log lines", func() bool {
		line, serverLine = said.named("lock_force_unlocked"), serverSaid.named("lock_force_unlocked")
		return line != nil && serverLine != nil
	})
	for _, name := range []string{"resource", "actorId", "reason"} {
		if line[name] != want[name] || serverLine[name] != want[name] {
			t.Errorf("%s is %v in the log and %v in the server's, %v in the audit", name, line[name], serverLine[name], want[name])
		}
	}
	if line["fencingToken"] != want["token"] || line["requestId"] != want["requestId"] || serverLine["fencingToken"] == nil {
		t.Errorf("the log has %v and %v, the audit %v", line, serverLine, want)
	}
}

// TestEveryCommandInJSON: with -o json each command prints objects, one a line, in which a token
// is a number and a text: the object's own as fencingToken and token, any other as an object of both.
func TestEveryCommandInJSON(t *testing.T) {
	t.Parallel()
	url, pool := database(t)
	lease := hold(t, pool, "worker-1", "billing", time.Hour)
	if err := fenced(t, pool).Raise(t.Context(), lease.Claim()); err != nil {
		t.Fatal(err)
	}
	exec1(t, pool, "CREATE TABLE invoices (tenant text PRIMARY KEY)")
	lines := []string{
		"list", "show billing", "force-unlock billing --actor a --reason r --raise --yes", "audit", "doctor",
		"marks raise ahead 9000 --lease-id l --above-issuer --yes", "marks list", "marks list --ahead",
		"marks reset ahead --from 9000 --to 8000 --issuers-last 8000 --actor a --reason r --yes", "marks resets", "marks retire --older-than 1us --yes",
		"advance other 9500 --yes", "advance --floor 9600 --yes", "purge --older-than 1ms --yes", "epoch show", "epoch raise --yes",
		"triggers install invoices {tenant}:close --print", "triggers install invoices {tenant}:close --yes", "triggers report invoices --yes", "triggers enforce invoices --yes",
		"triggers verify", "triggers remove invoices --yes", "migrate --yes", "migrate --print", "migrate --print --for goose", "roles", "help exit-codes", "help runbook",
	}
	for _, line := range lines {
		r := fencectl(t, url, append(strings.Fields(line), "-o", "json")...)
		if r.code != exitOK && (line != "doctor" || r.code != exitUnhealthy) || r.out == "" { // fsync is off in tests
			t.Errorf("%s: exit code %d, %q: %s", line, r.code, r.out, r.errOut)
		}
		for one := range strings.Lines(r.out) {
			var v map[string]any
			if err := json.Unmarshal([]byte(one), &v); err != nil {
				t.Errorf("%s: %v: %s", line, err, one)
			}
			tokensInBothForms(t, line, v)
		}
	}
	var look func(path string, commands []*cli.Command)
	look = func(path string, commands []*cli.Command) {
		for _, cmd := range commands {
			name := path + cmd.Name + " "
			if look(name, cmd.Commands); len(cmd.Commands) == 0 && !slices.ContainsFunc(lines, func(line string) bool { return strings.HasPrefix(line+" ", name) }) {
				t.Errorf("no line for the command %s", name)
			}
		}
	}
	look("", (&app{}).root().Commands)
}

func tokensInBothForms(t *testing.T, where string, v any) {
	t.Helper()
	if list, is := v.([]any); is {
		for _, one := range list {
			tokensInBothForms(t, where, one)
		}
	}
	members, _ := v.(map[string]any)
	number, isNumber := members["fencingToken"].(float64)
	if text, isText := members["token"].(string); isText != isNumber || isText && text != strconv.FormatFloat(number, 'f', 0, 64) {
		t.Errorf("%s: fencingToken and token are not the same: %v", where, v)
	}
	for name, member := range members {
		switch name {
		case "floor", "issued", "above", "fromToken", "toToken", "issuersLast":
			if both, _ := member.(map[string]any); both["token"] == nil {
				t.Errorf("%s: %s is %v, want a number and a text", where, name, member)
			}
		}
		tokensInBothForms(t, where, member)
	}
}
