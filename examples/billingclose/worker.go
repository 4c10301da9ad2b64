package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient"
	"github.com/fencepost-go/fencepost/lockclient/pglock"
)

// ttls are the TTLs of the workers' leases. The story waits for worker a's to
// expire, so it is short; a real close would use that of worker b, whose lease
// does not expire on a busy machine.
var ttls = map[string]time.Duration{"a": 1500 * time.Millisecond, "b": 30 * time.Second}

// role is what a worker process gets in its environment.
type role struct {
	Name     string `json:"name"` // "a" or "b"
	Database string `json:"database"`
	Ledger   string `json:"ledger"`
	Store    string `json:"store"` // S3
	Fenced   bool   `json:"fenced"`
	Patient  bool   `json:"patient"` // in tests: the lease ends when the story says so
}

// ttl is the TTL of the worker's lease.
func (r role) ttl() time.Duration {
	if r.Patient {
		return 10 * time.Minute
	}
	return ttls[r.Name]
}

const roleVariable = "BILLINGCLOSE_WORKER"

// report is one line that a worker writes to the story: what it tried, and
// what came back.
type report struct {
	What  string      `json:"what"` // granted, takeover, invoices, ledger, export, close, lost, done
	Token guard.Token `json:"token,omitempty"`
	Text  string      `json:"text"`
	// Reason and Error say why it was refused; empty when it was done.
	Reason guard.Reason `json:"reason,omitempty"`
	Error  string       `json:"error,omitempty"`
	// Invoices are the rows that a successful write acknowledged.
	Invoices map[string]int64 `json:"invoices,omitempty"`
}

// worker closes the period once.
type worker struct {
	role
	pool   *pgxpool.Pool
	closer closer
	out    *json.Encoder
	in     *bufio.Scanner
}

// runWorker is the whole life of a worker process.
func runWorker(ctx context.Context, encoded string) error {
	w := worker{out: json.NewEncoder(os.Stdout), in: bufio.NewScanner(os.Stdin)}
	if err := json.Unmarshal([]byte(encoded), &w.role); err != nil {
		return fmt.Errorf("%s: %w", roleVariable, err)
	}
	pool, err := pgxpool.New(ctx, w.Database)
	if err != nil {
		return err
	}
	defer pool.Close()
	w.pool = pool
	store := newS3(w.Store)
	if w.Fenced {
		if w.closer, err = newFenced(ctx, pool, w.Ledger, store); err != nil {
			return err
		}
	} else {
		w.closer = &unfenced{pool: pool, client: &http.Client{Timeout: time.Minute}, ledger: w.Ledger, store: store}
	}
	issuer, err := pglock.New(pool, nil)
	if err != nil {
		return err
	}
	client, err := lockclient.New(issuer, "worker-"+w.Name, nil)
	if err != nil {
		return err
	}
	defer client.Close(ctx)

	job := w.closeCarefully
	if w.Name == "a" {
		job = w.closeNaively
	}
	err = client.Hold(ctx, resource(), &lockclient.AcquireOptions{TTL: w.ttl()}, job)
	if err != nil && w.Name == "a" {
		w.report(report{What: "lost", Text: "its lease client says", Reason: guard.ReasonOf(err), Error: err.Error()})
		err = nil
	}
	w.report(report{What: "done"})
	return err
}

// closeCarefully is worker b: it takes over before it reads.
func (w *worker) closeCarefully(ctx context.Context) error {
	claim, _ := guard.ClaimFrom(ctx)
	w.report(report{What: "granted", Token: claim.Token, Text: "lease granted, TTL " + ttls[w.Name].String()})

	if err := w.closer.takeOver(ctx, claim); err != nil {
		return err
	}
	var status string
	if err := w.pool.QueryRow(ctx, "SELECT status FROM tenant_billing_close WHERE tenant_id = $1 AND period = $2", tenant, period).Scan(&status); err != nil {
		return err
	}
	if status == "closed" {
		return nil // the last of the steps: a predecessor has done them all
	}
	issued, err := w.read(ctx, "invoices")
	if err != nil {
		return err
	}
	text := "raises the marks, then reads: %d invoices are there"
	if !w.Fenced {
		text = "reads: %d invoices are there"
	}
	w.report(report{What: "takeover", Token: claim.Token, Text: fmt.Sprintf(text, len(issued))})
	amounts, err := w.read(ctx, "metered")
	if err != nil {
		return err
	}
	missing := maps.Clone(amounts)
	for customer := range issued {
		delete(missing, customer) // what the predecessor committed stays
	}
	all := maps.Clone(issued)
	maps.Copy(all, missing)
	for _, s := range w.steps(ctx, claim, missing, all) {
		if err := w.attempt(claim, s); err != nil {
			return err // a step builds on those before it; if it is stale, a newer holder does the rest
		}
	}
	return nil
}

// closeNaively is worker a: it reads once, trusts its lease and never checks
// it. Half-way it is paused for longer than its lease; it cannot notice.
func (w *worker) closeNaively(ctx context.Context) error {
	claim, _ := guard.ClaimFrom(ctx)
	// Most code does this without knowing: a library further down with its own
	// context does not learn that the lease is gone.
	ctx = context.WithoutCancel(ctx)
	w.report(report{What: "granted", Token: claim.Token, Text: "lease granted, TTL " + ttls[w.Name].String()})

	amounts, err := w.read(ctx, "metered")
	if err != nil {
		return err
	}
	first, rest := halves(amounts)
	if err := w.attempt(claim, step{"invoices", "issues " + names(first), func() error {
		return w.closer.issue(ctx, claim, w.Name, first)
	}, first}); err != nil {
		return err
	}
	if err := w.attempt(claim, step{"export", exports(first), func() error {
		return w.closer.export(ctx, claim, w.Name, first)
	}, nil}); err != nil {
		return err
	}
	if !w.in.Scan() { // the story stops the process here; this is where the pause falls
		return io.ErrUnexpectedEOF
	}
	for _, s := range w.steps(ctx, claim, rest, amounts) {
		w.attempt(claim, s) // after a failure the next is tried, as naive code does
	}
	return nil
}

// step is one piece of work, and how the story calls it.
type step struct {
	what, text string
	do         func() error
	rows       map[string]int64 // that a success acknowledges
}

// steps are the four kinds of work: the missing invoices, and what is computed
// from all of them. The row is closed last, because it says that all is done;
// the others may be repeated by a successor.
func (w *worker) steps(ctx context.Context, claim guard.Claim, missing, all map[string]int64) []step {
	total := sum(all)
	return []step{
		{"invoices", "issues " + names(missing), func() error { return w.closer.issue(ctx, claim, w.Name, missing) }, missing},
		{"ledger", "posts " + money(total) + " to the ledger", func() error { return w.closer.post(ctx, claim, w.Name, total) }, nil},
		{"export", exports(all), func() error { return w.closer.export(ctx, claim, w.Name, all) }, nil},
		{"close", "closes the period at " + money(total), func() error { return w.closer.closePeriod(ctx, claim, w.Name, total) }, nil},
	}
}

// attempt does one piece of work and reports how it ended.
func (w *worker) attempt(claim guard.Claim, s step) error {
	err := s.do()
	r := report{What: s.what, Token: claim.Token, Text: s.text, Reason: guard.ReasonOf(err)}
	if err != nil {
		r.Error = err.Error()
	} else {
		r.Invoices = s.rows
	}
	w.report(r)
	return err
}

// read returns cents by customer from one of the two tables that have them.
func (w *worker) read(ctx context.Context, table string) (map[string]int64, error) {
	rows, _ := w.pool.Query(ctx, "SELECT customer, cents FROM "+table+" WHERE tenant_id = $1 AND period = $2", tenant, period)
	amounts := map[string]int64{}
	var customer string
	var cents int64
	_, err := pgx.ForEachRow(rows, []any{&customer, &cents}, func() error { amounts[customer] = cents; return nil })
	return amounts, err
}

func (w *worker) report(r report) { w.out.Encode(r) }

func halves(amounts map[string]int64) (first, rest map[string]int64) {
	first, rest = maps.Clone(amounts), maps.Clone(amounts)
	for i, customer := range slices.Sorted(maps.Keys(amounts)) {
		if i < len(amounts)/2 {
			delete(rest, customer)
		} else {
			delete(first, customer)
		}
	}
	return first, rest
}

func exports(amounts map[string]int64) string {
	return fmt.Sprintf("exports %d invoices to s3://%s", len(amounts), exportBucket)
}

func sum(amounts map[string]int64) (total int64) {
	for _, cents := range amounts {
		total += cents
	}
	return total
}
