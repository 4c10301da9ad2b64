package main

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/testkit"

	"github.com/jackc/pgx/v5"
)

// A raise that times out waiting says for whom, with the statement that ends
// that session; running the statement frees the raise. The control is a holder
// of the mark's own claim on another resource, which is not named.
func TestRaiseNamesBlockers(t *testing.T) {
	t.Parallel()
	url, pool := database(t)
	role := "app_" + value[string](t, pool, "SELECT substr(md5(random()::text), 1, 12)")
	exec1(t, pool, "CREATE ROLE "+role+" LOGIN PASSWORD 'x'; GRANT USAGE ON SCHEMA fencepost TO "+role+"; GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA fencepost TO "+role)
	t.Cleanup(func() { exec1(t, pool, "DROP OWNED BY "+role+"; DROP ROLE "+role) })
	lease := hold(t, pool, "worker-1", "billing", time.Hour)
	other := hold(t, pool, "worker-1", "shipping", time.Hour)
	inside := map[string]uint32{}
	for _, claim := range []guard.Claim{lease.Claim(), other.Claim()} {
		if err := fenced(t, pool).Raise(t.Context(), claim); err != nil {
			t.Fatal(err)
		}
		config := pool.Config().ConnConfig.Copy()
		config.User, config.Password = role, "x"
		config.RuntimeParams["application_name"] = "work\x1ber"
		conn, err := pgx.ConnectConfig(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close(context.Background()) })
		if _, err := conn.Exec(t.Context(), fmt.Sprintf("BEGIN; SELECT fencepost.enter('%s', %d, '%s', 0, 0)", claim.Resource, claim.Token, claim.LeaseID)); err != nil {
			t.Fatal(err)
		}
		inside[claim.Resource] = conn.PgConn().PID()
	}
	r := fencectl(t, url, "force-unlock", "billing", "--actor", "ana", "--reason", "it hangs", "--raise", "--raise-timeout", "200ms", "--yes")
	goOn := func(more ...string) []string {
		_, again, _ := strings.Cut(strings.TrimSpace(r.errOut[strings.LastIndex(r.errOut, "go on with: "):]), "go on with: fencectl ")
		return append(append(strings.Fields(again), "--yes"), more...)
	}
	want := fmt.Sprintf("session %d of role %s (work", inside["billing"], role)
	end := fmt.Sprintf("SELECT pg_terminate_backend(%d)", inside["billing"])
	// A busy machine does not see the session within the shortest time.
	for timeout := 800 * time.Millisecond; r.code == exitPartial && !strings.Contains(r.errOut, want) && timeout < testkit.Patience; timeout *= 4 {
		again := fencectl(t, url, goOn("--raise-timeout", timeout.String())...)
		r.errOut += again.errOut
	}
	if r.code != exitPartial || !strings.Contains(r.errOut, want) || !strings.Contains(r.errOut, end) || strings.Contains(r.errOut, fmt.Sprint(inside["shipping"])) {
		t.Fatalf("exit code %d, want %d, %q and %q, without %d:\n%s", r.code, exitPartial, want, end, inside["shipping"], r.errOut)
	}
	printable(t, r.errOut)
	exec1(t, pool, end)
	if out := must(t, url, goOn()...); !strings.Contains(out, "the mark of billing is") {
		t.Error(out)
	}
}
