// Command effects pays by a provider that knows no fencing tokens: no fence stands where the
// money moves. A holder with token 1 is stopped before it pays, a holder with token 2 pays,
// and then the first wakes up and pays, in each of the ways that people try.
//
//	go run ./examples/effects
//
// What helps: an outbox that a fenced transaction writes and one holder sends; a proxy of
// yours that admits claims; an Idempotency-Key of resource and step, if the provider keeps keys.
// Nothing helps when a request without a key is on its way while the lease changes hands.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost-go/fencepost/examples/internal/demo"
	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/httpfence"
	"github.com/fencepost-go/fencepost/sqlfence"
	"github.com/fencepost-go/fencepost/sqlfence/sqladmin"
)

const resource, onItsWay = "acme:payout", "nothing: it was on its way"

// provider pays once for each request, or once for each key if it gets one.
type provider struct {
	seen    map[string]bool
	paid    atomic.Int32
	arrives chan bool // a request is on its way; what is received lets it arrive
}

func (p *provider) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	if p.arrives != nil && r.Header.Get(httpfence.TokenHeader) == "1" {
		p.arrives <- true
		<-p.arrives
	}
	if k := r.Header.Get("Idempotency-Key"); k == "" || !p.seen[k] {
		p.seen[k] = true
		p.paid.Add(1)
	}
}

// pay sends a payment with the claim in ctx. Only the proxy looks at that.
func pay(ctx context.Context, to, key string) error {
	r := guard.Must(http.NewRequestWithContext(ctx, http.MethodPost, to, nil))
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	resp, err := guard.Must(httpfence.NewTransport(nil, []string{to}, nil)).RoundTrip(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return httpfence.ErrorFrom(resp)
}

// admitting is the proxy: it refuses a claim below the highest that it has admitted.
func admitting(to string) http.Handler {
	marks := guard.NewMemory() // with more than one replica: sqlfence.DB
	fence := guard.Must(httpfence.New(marks, func(*http.Request) (string, error) { return resource, nil }, nil))
	return fence.Admit(httputil.NewSingleHostReverseProxy(guard.Must(url.Parse(to))))
}

// queue writes a payment to the outbox, which only the current holder can do.
func queue(ctx context.Context, db *sqlfence.DB[pgx.Tx]) error {
	claim, _ := guard.ClaimFrom(ctx)
	return db.InTx(ctx, claim, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "INSERT INTO outbox DEFAULT VALUES")
		return err
	})
}

// drain sends what is in the outbox. Whoever runs it holds a lease of its own; a row that is
// sent twice all the same, by a sender that died before the DELETE, has one key.
func drain(ctx context.Context, pool *pgxpool.Pool, to string) error {
	rows, _ := pool.Query(ctx, "SELECT id FROM outbox ORDER BY id")
	ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	for _, id := range ids {
		if err = pay(ctx, to, fmt.Sprint("outbox-", id)); err == nil {
			_, err = pool.Exec(ctx, "DELETE FROM outbox WHERE id = $1", id)
		}
	}
	return err
}

func main() { demo.Main(2*time.Minute, run) }

func run(ctx context.Context, out io.Writer) error {
	pool, cleanup, err := demo.Pool(ctx)
	if err != nil {
		return err
	}
	defer cleanup()
	_, err = pool.Exec(ctx, "CREATE TABLE outbox (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY)")
	if err := errors.Join(err, sqladmin.Pgx(pool).Migrate(ctx)); err != nil {
		return err
	}
	db := guard.Must(sqlfence.Pgx(pool, nil))
	var result error
	for _, way := range []struct {
		name string
		want int32
		pay  func(ctx context.Context, to, proxy string) error
	}{
		{"a plain request", 2, func(ctx context.Context, to, _ string) error { return pay(ctx, to, "") }},
		{"an outbox", 1, func(ctx context.Context, to, _ string) error {
			return errors.Join(queue(ctx, db), drain(ctx, pool, to))
		}},
		{"a proxy with Admit", 1, func(ctx context.Context, _, proxy string) error { return pay(ctx, proxy, "") }},
		{"a key of resource and step", 1, func(ctx context.Context, to, _ string) error { return pay(ctx, to, resource+":pay") }},
		{onItsWay, 2, func(ctx context.Context, _, proxy string) error { return pay(ctx, proxy, "") }},
	} {
		p := &provider{seen: map[string]bool{}}
		server := httptest.NewServer(p)
		proxy := httptest.NewServer(admitting(server.URL))
		as := func(token guard.Token) error {
			claim := guard.Claim{Resource: resource, Token: token, LeaseID: token.String()}
			return way.pay(guard.WithClaim(ctx, claim), server.URL, proxy.URL)
		}
		var first, second error
		if late := make(chan error); way.name == onItsWay {
			p.arrives = make(chan bool)
			go func() { late <- as(1) }()
			<-p.arrives // the proxy has admitted it
			second = as(2)
			p.arrives <- true
			first = <-late
		} else {
			second, first = as(2), as(1)
		}
		fmt.Fprintf(out, "%-28s paid %d times; token 2: %v; token 1: %v\n", way.name, p.paid.Load(), second, first)
		if p.paid.Load() != way.want {
			result = demo.ErrUnexpected
		}
		proxy.Close()
		server.Close()
	}
	return result
}
