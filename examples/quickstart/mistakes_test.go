package main

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/httpfence"
	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient"
	"github.com/fencepost-go/fencepost/lockclient/lockhttp"
	"github.com/fencepost-go/fencepost/lockclient/locktest"
	"github.com/fencepost-go/fencepost/lockclient/pglock"
	"github.com/fencepost-go/fencepost/s3fence"
	"github.com/fencepost-go/fencepost/sqlfence"
	"github.com/fencepost-go/fencepost/sqlfence/sqladmin"
	"github.com/fencepost-go/fencepost/sqlfence/sqlrow"
)

// TestMistakes makes the likely mistakes of who begins: each message names the
// way out.
func TestMistakes(t *testing.T) {
	testkit.CaptureDefault(t)
	ctx := t.Context()
	pool, bare := pgtest.Pool(t), pgtest.Pool(t) // bare has no schema
	unmigrated := need(sqlfence.Pgx(bare, nil))
	need(0, pglock.Migrate(ctx, pool))
	need(0, sqladmin.Pgx(pool).Migrate(ctx))
	need(pool.Exec(ctx, `CREATE TABLE closes (tenant text, period text, n int, last_fencing_token bigint NOT NULL DEFAULT 0, PRIMARY KEY (tenant, period));
		CREATE TABLE bare (tenant text, period text, n int, PRIMARY KEY (tenant, period));
		CREATE TABLE texts (tenant text, period text, n int, last_fencing_token text NOT NULL DEFAULT '', PRIMARY KEY (tenant, period));
		CREATE TABLE ints (tenant text, period text, n int, last_fencing_token integer NOT NULL DEFAULT 0, PRIMARY KEY (tenant, period));
		INSERT INTO closes VALUES ('acme', '2026-04'); INSERT INTO texts VALUES ('acme', '2026-04')`))
	rows := sqlrow.Pgx(pool)
	locks, keys := need(lockclient.New(need(pglock.New(pool, nil)), "w", nil)), []string{"tenant", "period"}
	defer locks.Close(context.WithoutCancel(ctx))
	claim, key := guard.Claim{Resource: "acme:billing-close:2026-04", Token: 3, LeaseID: "L"}, sqlrow.Key{"acme", "2026-04"}
	nothing := func(context.Context, pgx.Tx) error { return nil }
	update := func(claim guard.Claim, set sqlrow.Set, name ...string) error {
		return need(sqlrow.NewTable(name, keys, closes, nil)).Update(ctx, rows, claim, key, set)
	}
	set := sqlrow.Set{"n": 1}
	need(0, update(claim, set, "closes"))
	other := claim
	other.Resource = "acme:2026-04"
	request := func(handler http.Handler) string {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest("POST", "/", nil))
		return w.Body.String()
	}
	resource := func(*http.Request) (string, error) { return claim.Resource, nil }
	admitting := need(httpfence.New(guard.NewMemory(), resource, nil))

	for name, c := range map[string]struct {
		said func() any
		want string // the way out
	}{
		"no Migrate: lease": {func() any {
			return second(need(lockclient.New(need(pglock.New(bare, nil)), "w", nil)).TryAcquire(ctx, "r", &lockclient.AcquireOptions{TTL: time.Minute}))
		}, "run pglock.Migrate"},
		"no Migrate: transaction": {func() any { return unmigrated.InTx(ctx, claim, nothing) }, "run sqladmin's Migrate"},
		"no Migrate: store":       {func() any { return second(unmigrated.Admit(ctx, claim)) }, "run sqladmin's Migrate"},
		"token as text":           {func() any { return second(guard.ParseToken("0x12")) }, "must be a decimal number from 1 to"},
		"token column of text":    {func() any { return update(claim, set, "texts") }, "must be bigint NOT NULL DEFAULT 0"},
		"token column of integer": {func() any { return update(claim, set, "ints") }, "ALTER COLUMN ... TYPE bigint"},
		"no token column":         {func() any { return update(claim, set, "bare") }, "must be bigint NOT NULL DEFAULT 0"},
		"token column written":    {func() any { return update(claim, sqlrow.Set{"last_fencing_token": 3}, "closes") }, "which only the fence writes"},
		"schema in the name":      {func() any { return update(claim, set, "public.closes") }, `[]string{"public", "closes"}`},
		"OncePerToken, twice":     {func() any { return update(claim, set, "closes") }, "use SameOrNewer to write many times"},
		"another resource":        {func() any { return update(other, set, "closes") }, "name both by one guard.Template"},
		"no template":             {func() any { return second(sqlrow.NewTable([]string{"closes"}, keys, nil, nil)) }, "TableOptions.InsecureAnyResource"},
		"column not bound":        {func() any { return second(sqlrow.NewTable([]string{"closes"}, []string{"tenant_id"}, closes, nil)) }, "TableOptions.Columns"},
		"variable not bound":      {func() any { return second(httpfence.Named(closes, nil)) }, "Bindings"},
		"no lease":                {func() any { return request(admitting.Admit(http.NotFoundHandler())) }, "in X-Fencing-Token, the lease ID in X-Fencing-Lease"},
		"no KeepAlive": {func() any {
			client, server := locktest.New(t, nil)
			lease := need(client.Acquire(ctx, "r", &lockclient.AcquireOptions{TTL: time.Minute}))
			server.Advance(2 * time.Minute)
			<-lease.Done()
			return lease.Err()
		}, "Lease.KeepAlive"},
		"KeepAlive after its end": {func() any {
			lease := need(locks.Acquire(ctx, "over", &lockclient.AcquireOptions{TTL: time.Minute}))
			need(0, lease.Release(ctx))
			return lease.KeepAlive(0)
		}, "lease released"},
		"used after its end": {func() any {
			lease := need(locks.Acquire(ctx, "ended", &lockclient.AcquireOptions{TTL: time.Minute}))
			need(0, lease.Release(ctx))
			web := &http.Client{Transport: need(httpfence.NewTransport(nil, []string{"http://localhost"}, nil))}
			_, err := web.Do(need(http.NewRequestWithContext(guard.WithLease(ctx, lease), "POST", "http://localhost", nil)))
			return err
		}, "lease lost"},
		"TTL without a unit":    {func() any { return second(locks.Acquire(ctx, "r", &lockclient.AcquireOptions{TTL: 30})) }, `"30ns": must be 100ms to`},
		"nil pool: leases":      {func() any { return second(pglock.New((*pgxpool.Pool)(nil), nil)) }, "pool"},
		"nil pool: fence":       {func() any { return second(sqlfence.Pgx(nil, nil)) }, "pool"},
		"nil store":             {func() any { return second(httpfence.New(nil, resource, nil)) }, "store"},
		"nil resource":          {func() any { return second(httpfence.New(guard.NewMemory(), nil, nil)) }, "ResourceFunc"},
		"nil client":            {func() any { return second(s3fence.Open(ctx, nil, "bucket", nil)) }, "client"},
		"origin without scheme": {func() any { return second(httpfence.NewTransport(nil, []string{"ledger:8080"}, nil)) }, "must be http or https"},
		"lock server unsigned": {func() any {
			issuer := need(lockhttp.NewIssuer("http://localhost", nil))
			return second(issuer.Proof(ctx, claim))
		}, "lockhttp.Options.Signer"},
		"nil Transactor": {func() any { return second(httpfence.NewTx(nil, resource, nil)) }, "Transactor"},
	} {
		t.Run(name, func(t *testing.T) {
			var said string
			switch v := c.said().(type) {
			case error:
				said = v.Error()
			case string:
				said = v
			}
			if !strings.Contains(said, c.want) {
				t.Errorf("%q does not say %q", said, c.want)
			}
		})
	}
}

func second[T any](_ T, err error) error { return err }

// need is must for tests: a panic names the test that it ends.
var closes = guard.Must(guard.NewTemplate("{tenant}:billing-close:{period}"))

func need[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
