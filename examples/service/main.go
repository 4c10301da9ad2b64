// Command service runs two replicas of an HTTP service on one PostgreSQL. Handlers run in a
// fenced transaction (InTx) and store an Idempotency-Key with their work, or are admitted at
// the door and fence their write (Admit). A request stands still on one replica while the next
// holder takes over on the other.
//
//	go run ./examples/service             the late request is refused
//	go run ./examples/service -unfenced   the control: it writes after its successor
//
// The code to copy is in service.go.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/fencepost-go/fencepost/examples/internal/demo"
	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/httpfence"
)

func main() {
	unfenced := flag.Bool("unfenced", false, "leave the fence out and see a stale write")
	flag.Parse()
	demo.Main(3*time.Minute, func(ctx context.Context, out io.Writer) error { return run(ctx, !*unfenced, out) })
}

func run(ctx context.Context, fenced bool, out io.Writer) error {
	pool, cleanup, err := demo.Pool(ctx)
	if err != nil {
		return err
	}
	defer cleanup()
	if _, err := pool.Exec(ctx, schema); err != nil {
		return err
	}
	atWork, goOn := make(chan struct{}), make(chan struct{})
	var bases []string
	for range 2 {
		s, err := newService(ctx, pool)
		if err != nil {
			return err
		}
		s.unfenced = !fenced
		s.slow = func(r *http.Request) {
			if claim, _ := guard.ClaimFrom(r.Context()); claim.Token == 10 {
				close(atWork)
				<-goOn
			}
		}
		server := httptest.NewServer(s.handler())
		defer server.Close()
		bases = append(bases, server.URL)
	}
	client := &http.Client{Transport: guard.Must(httpfence.NewTransport(nil, bases, nil))}
	defer client.CloseIdleConnections()
	late := make(chan error, 1)
	go func() { late <- post(ctx, client, bases[0], 10) }()
	<-atWork
	fmt.Fprintln(out, "token 10 is at work on the first replica, and stands still")
	fmt.Fprintln(out, "token 11, on the second replica:", post(ctx, client, bases[1], 11))
	close(goOn)
	refused := <-late
	fmt.Fprintln(out, "token 10 goes on:", refused)
	var stale, total int
	if err := pool.QueryRow(ctx, `SELECT count(*) FILTER (WHERE token < highest), count(*) FROM (
		SELECT token, max(token) OVER (ORDER BY id) AS highest FROM invoices) e`).Scan(&stale, &total); err != nil {
		return err
	}
	fmt.Fprintf(out, "%d writes, %d of them stale\n", total, stale)
	if fenced != errors.Is(refused, guard.ErrStale) || fenced != (stale == 0) {
		return demo.ErrUnexpected
	}
	return nil
}

// post asks for an invoice; the client's Transport presents the claim.
func post(ctx context.Context, client *http.Client, base string, token guard.Token) error {
	ctx = guard.WithClaim(ctx, guard.Claim{Resource: "tenant_1:invoices:2026-04", Token: token, LeaseID: "lease-" + token.String()})
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/periods/2026-04/invoices", strings.NewReader("1000"))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer secret-1")
	req.Header.Set("Idempotency-Key", "of token "+token.String())
	resp, err := httpfence.Do(client, req)
	if err == nil {
		err = resp.Body.Close()
	}
	return err
}
