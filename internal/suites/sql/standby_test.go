package sqlsuite

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/sqlfence"
	"github.com/fencepost-go/fencepost/sqlfence/sqladmin"
)

// TestRaiseAgain (P2): a raise whose COMMIT gave up its wait for the synchronous standby is on
// the primary alone. Raised again under the same claim, by SQL and by Go, it is done when
// the standby has the mark, and not before. The control is a server without a synchronous
// standby: there it writes nothing, and so waits for nobody.
func TestRaiseAgain(t *testing.T) {
	primary := guard.Must(pgtest.Start(t.Context(), nil))
	t.Cleanup(func() {
		_ = primary.Kill() // sessions that wait for the standby delay a fast end
		_ = primary.Stop()
	})
	url, _, err := primary.NewDatabase(t.Context()) // it ends with the server
	testkit.Must(t, err)
	pool := pgtest.Connect(t, url)
	testkit.Must(t, sqladmin.Pgx(pool).Migrate(t.Context()))
	const raise = `SELECT fencepost.raise('r', 5, 'lease-5', 2000)`
	run := func(sql string) error {
		_, err := pool.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol)
		return err
	}
	standby := guard.Must(primary.Standby(t.Context()))
	t.Cleanup(func() { _ = standby.Stop() })

	// The control.
	var writes bool
	for _, want := range []bool{true, false} {
		if err := pool.QueryRow(t.Context(), `SELECT pg_current_xact_id_if_assigned() IS NOT NULL FROM fencepost.raise('control', 5, 'lease-5', 2000)`).Scan(&writes); err != nil || writes != want {
			t.Errorf("control: it writes: %v, want %v (%v)", writes, want, err)
		}
	}

	testkit.Must(t, standby.StopFast())
	for _, sql := range []string{"ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()"} {
		testkit.Must(t, run(sql))
	}
	waiting := func() (n int) {
		testkit.Must(t, pool.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'").Scan(&n))
		return n
	}
	givesUp := func(what string) {
		testkit.Eventually(t, what, func() bool { return waiting() == 1 })
		testkit.Must(t, run("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"))
	}
	// Until the checkpointer knows the setting, commits do not wait.
	ctx, cancel := context.WithCancel(t.Context())
	first := make(chan struct{})
	go func() {
		defer close(first)
		for ctx.Err() == nil {
			_ = run("SELECT pg_logical_emit_message(true, '', '')")
		}
	}()
	testkit.Eventually(t, "a commit that waits", func() bool { return waiting() == 1 })
	cancel()
	givesUp("the last of them")
	testkit.Receive(t, "its end", first)

	raised := make(chan error, 1)
	go func() { raised <- run(raise) }()
	givesUp("the first raise")
	testkit.Must(t, testkit.Receive(t, "the first raise, on the primary alone", raised))

	db := guard.Must(sqlfence.Pgx(pool, &sqlfence.Options{Logger: testkit.Logger(t)}))
	claim := guard.Claim{Resource: "r", Token: 5, LeaseID: "lease-5"}
	ways := map[string]func() error{
		"SQL":   func() error { return run(raise) },
		"Raise": func() error { return db.Raise(t.Context(), claim) },
		"Admit": func() error { _, err := db.Admit(t.Context(), claim); return err },
	}
	type result struct {
		way string
		err error
	}
	done := make(chan result, len(ways))
	for way, again := range ways {
		go func() { done <- result{way, again()} }()
	}
	testkit.Eventually(t, "all to wait for the standby", func() bool {
		select {
		case early := <-done:
			t.Fatalf("%s is done, and the standby has nothing (%v)", early.way, early.err)
		default:
		}
		return waiting() == len(ways)
	})
	testkit.Must(t, standby.Restart(t.Context()))
	for range ways {
		if r := testkit.Receive(t, "the standby", done); r.err != nil {
			t.Errorf("%s: %v", r.way, r.err)
		}
	}
	testkit.Must(t, primary.Kill())
	config := pool.Config().ConnConfig.Copy()
	config.Port = uint16(standby.Port())
	replica := guard.Must(pgx.ConnectConfig(t.Context(), config))
	defer func() { _ = replica.Close(context.Background()) }()
	testkit.Eventually(t, "the mark on the standby", func() bool {
		var token int64
		_ = replica.QueryRow(t.Context(), "SELECT token FROM fencepost.marks WHERE resource = 'r'").Scan(&token)
		return token == 5
	})
}
