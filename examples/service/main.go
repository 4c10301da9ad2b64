// Command service runs two replicas of an HTTP service on one PostgreSQL. Handlers run in a
// fenced transaction (InTx) and store an Idempotency-Key with their work, or are admitted at
// the door and fence their write (Admit). Holders overlap on both replicas.
//
//	go run ./examples/service
//	go run ./examples/service -unfenced   the same without the fence
//
// The code to copy is in service.go. The exit status is 0 if the flag's promise held: with the
// fence, no stale write took effect; without it, some did.
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
	"sync"
	"sync/atomic"
	"time"

	"github.com/fencepost-go/fencepost/examples/internal/demo"
	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/httpfence"
)

func main() {
	unfenced := flag.Bool("unfenced", false, "leave the fence out and see stale writes")
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
	// Without the fence the first piece of work takes as long as all the others together, like
	// that of a paused holder; with it the next holder would wait until that has ended.
	var paused atomic.Bool
	overtaken := make(chan struct{})
	var bases []string
	for range 2 {
		s, err := newService(ctx, pool)
		if err != nil {
			return err
		}
		s.unfenced = !fenced
		s.slow = func(*http.Request) {
			if !fenced && paused.CompareAndSwap(false, true) {
				select {
				case <-overtaken:
				case <-ctx.Done():
				}
			}
		}
		server := httptest.NewServer(s.handler())
		defer server.Close()
		bases = append(bases, server.URL)
	}
	transport, err := httpfence.NewTransport(nil, bases, nil)
	if err != nil {
		return err
	}
	client := &http.Client{Transport: transport}
	defer client.CloseIdleConnections()
	done, refused, err := handOver(ctx, client, bases, func() { close(overtaken) })
	if err != nil {
		return err
	}
	var stale, total int
	if err := pool.QueryRow(ctx, `SELECT count(*) FILTER (WHERE token < highest), count(*) FROM (
		SELECT token, max(token) OVER (ORDER BY id) AS highest FROM invoices) e`).Scan(&stale, &total); err != nil {
		return err
	}
	fmt.Fprintf(out, "%d requests got 201, %d refused as stale, %d writes, %d of them stale\n", done, refused, total, stale)
	if done != total || (stale == 0) != fenced {
		return demo.ErrUnexpected
	}
	return nil
}

// handOver makes holders follow each other while requests of the previous one are still in
// flight. It calls overtaken when the newest has written.
func handOver(ctx context.Context, client *http.Client, bases []string, overtaken func()) (done, stale int, failed error) {
	const holders, requests = 20, 6
	var mu sync.Mutex
	var group sync.WaitGroup
	for holder := range guard.Token(holders) {
		claim := guard.Claim{Resource: "tenant_1:invoices:2026-04", Token: holder + 1, LeaseID: fmt.Sprint("lease-", holder+1)}
		answered := make(chan struct{}, requests)
		for n := range requests {
			group.Go(func() {
				err := post(guard.WithClaim(ctx, claim), client, bases[n%2], fmt.Sprint(holder, "-", n))
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err == nil:
					done++
				case errors.Is(err, guard.ErrStale):
					stale++
				default:
					failed = errors.Join(failed, err)
				}
				answered <- struct{}{}
			})
		}
		<-answered // the rest is in flight when the next holder comes
	}
	overtaken()
	group.Wait()
	return done, stale, failed
}

// post asks for an invoice; the client's Transport presents the claim in ctx.
func post(ctx context.Context, client *http.Client, base, key string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/periods/2026-04/invoices", strings.NewReader("1000"))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer secret-1")
	req.Header.Set("Idempotency-Key", key)
	resp, err := httpfence.Do(client, req)
	if err == nil {
		err = resp.Body.Close()
	}
	return err
}
