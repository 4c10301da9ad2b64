// Command idempotency combines an Idempotency-Key with the fence, on
// PostgreSQL: a holder is cut off in the middle of a request, its successor
// repeats the request with the same key, and exactly one invoice results.
//
//	go run ./examples/idempotency
//
// The code to copy is in keys.go and service.go, the tables are in schema.sql.
// A key does not replace the fence: it makes a request that is sent twice
// happen once, and says nothing about who may still send it. Nor does the fence
// replace the key: a holder that is not stale may send a request twice.
package main

import (
	"context"
	_ "embed"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost-go/fencepost/examples/internal/demo"
	"github.com/fencepost-go/fencepost/httpfence"
	"github.com/fencepost-go/fencepost/sqlfence"
	"github.com/fencepost-go/fencepost/sqlfence/sqladmin"
)

//go:embed schema.sql
var schema string

func main() { demo.Main(2*time.Minute, run) }

func run(ctx context.Context, out io.Writer) error {
	pool, cleanup, err := demo.Pool(ctx)
	if err != nil {
		return err
	}
	defer cleanup()
	s, err := newService(ctx, pool)
	if err != nil {
		return err
	}
	var cut atomic.Bool
	s.tax = func(_ context.Context, cents int64) (int64, error) {
		if !cut.Swap(true) { // the process of the first holder dies here
			panic(http.ErrAbortHandler)
		}
		return cents / 5, nil
	}
	server := httptest.NewServer(s.handler())
	defer server.Close()

	send := func(who, token string) (int, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL+"/periods/2026-04/invoices", strings.NewReader(`{"cents":1000}`))
		if err != nil {
			return 0, err
		}
		req.Header.Set("Authorization", "Bearer secret-1")
		req.Header.Set("Idempotency-Key", "invoice-ardent")
		req.Header.Set(httpfence.TokenHeader, token)
		req.Header.Set(httpfence.LeaseHeader, "lease-"+token)
		req.Header.Set(httpfence.ResourceHeader, "tenant_1:invoices:2026-04")
		resp, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			fmt.Fprintf(out, "%-28s no response\n", who)
			return 0, nil
		}
		defer func() { _ = resp.Body.Close() }()
		body, err := io.ReadAll(resp.Body)
		replayed := ""
		if resp.Header.Get("Idempotency-Replayed") != "" {
			replayed = "(replayed) "
		}
		fmt.Fprintf(out, "%-28s %d %s%s\n", who, resp.StatusCode, replayed, strings.TrimSpace(string(body)))
		return resp.StatusCode, err
	}
	var got []int
	for _, step := range [][2]string{{"token 10, cut off", "10"}, {"token 11, same key", "11"}, {"token 11, sent again", "11"}, {"token 10, wakes up, same key", "10"}} {
		status, err := send(step[0], step[1])
		if err != nil {
			return err
		}
		got = append(got, status)
	}
	var invoices int
	if err := pool.QueryRow(ctx, "SELECT count(*) FROM invoices").Scan(&invoices); err != nil {
		return err
	}
	fmt.Fprintf(out, "%d invoice\n", invoices)
	if invoices != 1 || fmt.Sprint(got) != "[0 201 201 201]" {
		return demo.ErrUnexpected
	}
	return nil
}

// newService creates the tables and a period.
func newService(ctx context.Context, pool *pgxpool.Pool) (*service, error) {
	db, err := sqlfence.Pgx(pool, nil)
	if err != nil {
		return nil, err
	}
	if err := sqladmin.Pgx(pool).Migrate(ctx); err != nil {
		return nil, err
	}
	if _, err := pool.Exec(ctx, schema+`INSERT INTO periods VALUES ('tenant_1', '2026-04'), ('tenant_2', '2026-04');`); err != nil {
		return nil, err
	}
	resource, err := httpfence.Named(invoicesOf, httpfence.Bindings{"tenant": tenantOf, "period": period})
	if err != nil {
		return nil, err
	}
	fence, err := httpfence.New(db, resource, nil)
	if err != nil {
		return nil, err
	}
	return &service{
		pool: pool, db: db, fence: fence,
		tax: func(context.Context, int64) (int64, error) { return 0, nil },
	}, nil
}
