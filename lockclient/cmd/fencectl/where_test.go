package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/internal/testkit"
)

// TestServerIsNamed: what changes something says where, without a question too: first, for
// people, and in the result for programs, without the password. What only reads does not.
func TestServerIsNamed(t *testing.T) {
	t.Parallel()
	url, pool := database(t)
	hold(t, pool, "worker-1", "billing", time.Hour)
	exec1(t, pool, "CREATE TABLE invoices (tenant text PRIMARY KEY)")
	c := pool.Config().ConnConfig
	name := c.Database
	for _, line := range []string{
		"force-unlock billing --actor a --reason r --raise --yes", "epoch raise --yes", "advance billing 7 --yes", "advance --floor 7 --yes", "purge --yes",
		"marks raise other 5 --lease-id l --above-issuer --yes", "marks reset other --from 5 --to 4 --issuers-last 5 --actor a --reason r --yes",
		"triggers install invoices {tenant}:close --yes", "triggers remove invoices --yes", "migrate --yes", "marks retire --older-than 1us --yes",
	} {
		r := fencectl(t, url, strings.Fields(line)...)
		if first, _, _ := strings.Cut(r.errOut, "\n"); r.code != exitOK || !strings.HasPrefix(first, "On ") || !strings.HasSuffix(first, "/"+name+":") {
			t.Errorf("%s: exit code %d: %s", line, r.code, r.errOut)
		}
	}
	for _, line := range []string{"force-unlock billing --actor a --reason r --yes", "epoch raise --yes", "advance billing 7 --yes", "marks raise other 6 --lease-id l --above-issuer --yes"} {
		r := fencectl(t, url, append(strings.Fields(line), "-o", "json")...)
		var said struct{ Server string }
		if err := json.Unmarshal([]byte(r.out), &said); err != nil || r.errOut != "" || !strings.HasSuffix(said.Server, "/"+name) || c.Password != "" && strings.Contains(said.Server, c.Password) {
			t.Errorf("%s: %v: %+v", line, err, r)
		}
	}
	for _, line := range []string{"show billing", "epoch show", "marks list", "audit"} {
		for _, format := range []string{"table", "json"} {
			if r := fencectl(t, url, append(strings.Fields(line), "-o", format)...); r.errOut != "" || strings.Contains(r.out, `"server"`) {
				t.Errorf("control: %s: %+v", line, r)
			}
		}
	}
}

// TestStandby: on a standby, and on a database that is set to read only, trying again never
// helps, and the message says what does.
func TestStandby(t *testing.T) {
	t.Parallel()
	primary, err := pgtest.Start(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { primary.Stop() })
	pool := dial(t, primary.URL())
	if err := createSchemas(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	hold(t, pool, "worker-1", "billing", time.Hour)
	standby, err := primary.Standby(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { standby.Stop() })
	reader := dial(t, standby.URL())
	testkit.Eventually(t, "the lease on the standby", func() bool {
		return value[int64](t, reader, "SELECT count(*) FROM fencepost.leases WHERE resource = 'billing'") == 1
	})
	lines := []string{"force-unlock billing --actor a --reason r --yes", "epoch raise --yes", "advance billing 7 --yes", "purge --yes", "marks raise other 5 --lease-id l --above-issuer --yes"}
	for _, line := range lines {
		r := fencectl(t, standby.URL(), strings.Fields(line)...)
		if r.code != exitUnavailable || !strings.Contains(r.errOut, "connect to the primary") {
			t.Errorf("%s: %d, %s", line, r.code, r.errOut)
		}
	}
}

// TestDoctorOfADeadServer: whatever the issuer is, a server that cannot be reached is one exit code.
func TestDoctorOfADeadServer(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ issuer, address string }{{"http", "http://127.0.0.1:1"}, {"etcd", "127.0.0.1:1"}, {"redis", "127.0.0.1:1"}, {"zookeeper", "127.0.0.1:1"}} {
		if r := fencectl(t, "", "--issuer", c.issuer, "--address", c.address, "--timeout", "1s", "doctor"); r.code != exitUnavailable || !strings.Contains(r.errOut, c.address) {
			t.Errorf("%s: %+v", c.issuer, r)
		}
	}
	if r := fencectl(t, "postgres://nobody@127.0.0.1:1/none", "doctor", "--timeout", "1s"); r.code != exitUnavailable {
		t.Errorf("postgres: %+v", r)
	}
}

// TestExpectNobody: --expect none cuts nothing that somebody holds.
func TestExpectNobody(t *testing.T) {
	t.Parallel()
	url, pool := database(t)
	lease := hold(t, pool, "worker-1", "billing", time.Hour)
	unlock := strings.Fields("force-unlock billing --actor a --reason r --yes --expect none")
	if r := fencectl(t, url, unlock...); r.code != exitRefused || !strings.Contains(r.errOut, lease.ID()) {
		t.Errorf("%+v", r)
	}
	if err := lease.Release(t.Context()); err != nil {
		t.Errorf("the holder was cut: %v", err)
	}
	must(t, url, unlock...)
}

// TestLockedTable: a list that waits for a lock in vain says what shows the way.
func TestLockedTable(t *testing.T) {
	t.Parallel()
	url, pool := database(t)
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context())
	if _, err := tx.Exec(t.Context(), "LOCK TABLE fencepost.leases IN ACCESS EXCLUSIVE MODE"); err != nil {
		t.Fatal(err)
	}
	if r := fencectl(t, url, "list", "--timeout", "1s"); r.code != exitUnavailable || !strings.Contains(r.errOut, "fencectl doctor") {
		t.Errorf("%+v", r)
	}
}
