// Command httpintx runs two replicas of a service on one PostgreSQL. Its
// handlers run inside a fenced transaction (httpfence's InTx), so they contain
// no code for tokens at all. Two holders overlap on both replicas.
//
//	go run ./examples/httpintx
//	go run ./examples/httpintx -unfenced   the same without the fence
//
// The code to copy is in service.go. The exit status is 0 if the flag's promise
// held: with the fence, no stale write took effect; without it, some did.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/httpfence"
	"github.com/fencepost-go/fencepost/internal/pgtest"
)

func main() {
	unfenced := flag.Bool("unfenced", false, "leave the fence out and see stale writes")
	flag.Parse()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	if err := run(ctx, !*unfenced, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "httpintx:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, fenced bool, out io.Writer) error {
	url, cleanup, err := pgtest.Provide(ctx)
	if err != nil {
		return err
	}
	defer cleanup()
	// Work takes a moment. Without the fence the first piece takes as long as
	// all the others together, like that of a paused holder; with the fence the
	// next holder would wait until it has ended.
	var paused atomic.Bool
	overtaken := make(chan struct{})
	work := func() {
		time.Sleep(rand.N(15 * time.Millisecond))
		if !fenced && paused.CompareAndSwap(false, true) {
			select {
			case <-overtaken:
			case <-ctx.Done():
			}
		}
	}
	var bases []string
	var first *pgxpool.Pool
	for i := range 2 {
		pool, err := pgxpool.New(ctx, url)
		if err != nil {
			return err
		}
		defer pool.Close()
		s, err := newReplica(ctx, pool, fenced, work)
		if err != nil {
			return err
		}
		if i == 0 {
			first = pool
			if _, err := pool.Exec(ctx, schema); err != nil {
				return err
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
	counts, err := handOver(ctx, client, bases, func() { close(overtaken) })
	if err != nil {
		return err
	}
	var stale, total int
	if err := first.QueryRow(ctx, staleSQL).Scan(&stale, &total); err != nil {
		return err
	}
	fmt.Fprintf(out, "%d requests got 200, %d refused as stale, %d writes, %d of them stale\n", counts.done, counts.stale, total, stale)
	if counts.done != total || (stale == 0) != fenced {
		return errors.New("this is not what should have happened")
	}
	return nil
}

type tally struct{ done, stale int }

// handOver makes holders follow each other while requests of the previous one
// are still in flight. It calls overtaken when the newest has written.
func handOver(ctx context.Context, client *http.Client, bases []string, overtaken func()) (tally, error) {
	const holders, requests = 20, 6
	var mu sync.Mutex
	var counts tally
	var failed error
	var group sync.WaitGroup
	for holder := range guard.Token(holders) {
		claim := guard.Claim{Resource: "account:acme", Token: holder + 1, LeaseID: fmt.Sprint("lease-", holder+1)}
		answered := make(chan struct{}, requests)
		for n := range requests {
			group.Go(func() {
				err := post(guard.WithClaim(ctx, claim), client, bases[n%2]+"/accounts/acme/entries")
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err == nil:
					counts.done++
				case errors.Is(err, guard.ErrStale):
					counts.stale++
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
	return counts, failed
}

func post(ctx context.Context, client *http.Client, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, nil)
	if err != nil {
		return err
	}
	resp, err := httpfence.Do(client, req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	_, err = io.Copy(io.Discard, resp.Body)
	return err
}
