package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/httpfence"
	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/internal/testkit"
)

// TestFenced has the control: without the fence stale writes take effect.
func TestFenced(t *testing.T) {
	for _, fenced := range []bool{true, false} {
		t.Run(fmt.Sprint(fenced), func(t *testing.T) {
			testkit.CaptureDefault(t)
			t.Setenv("FENCEPOST_DATABASE_URL", pgtest.Database(t)) // else run starts a server of its own
			var out bytes.Buffer
			if err := run(t.Context(), fenced, &out); err != nil || strings.HasSuffix(out.String(), ", 0 of them stale\n") != fenced {
				t.Errorf("%v\n%s", err, &out)
			}
		})
	}
}

type fixture struct {
	*service
	t testing.TB
	h http.Handler
}

func newFixture(t testing.TB) *fixture {
	t.Helper()
	testkit.CaptureDefault(t)
	pool := pgtest.Pool(t)
	s, err := newService(t.Context(), pool)
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{s, t, s.handler()}
	f.exec(schema)
	return f
}

// ask sends a request; header is name, value, name, value.
func (f *fixture) ask(path string, header ...string) (status int, body string) {
	f.t.Helper()
	r := httptest.NewRequest("POST", "/periods/"+path, strings.NewReader("1000"))
	r.Header.Set("Authorization", "Bearer secret-1")
	r.Header.Set("Idempotency-Key", "k")
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	if t := r.Header.Get(token); t != "" { // whoever sends a token sends the whole claim
		r.Header.Set(httpfence.LeaseHeader, "lease-"+t)
		r.Header.Set(httpfence.ResourceHeader, "tenant_1:invoices:"+strings.Split(path, "/")[0])
	}
	w := httptest.NewRecorder()
	f.h.ServeHTTP(w, r)
	if w.Header().Get("Idempotency-Replayed") != "" {
		return w.Code, "replayed " + w.Body.String()
	}
	return w.Code, w.Body.String()
}

func (f *fixture) count(sql string) (n int) {
	f.t.Helper()
	if err := f.pool.QueryRow(context.Background(), sql).Scan(&n); err != nil {
		f.t.Fatal(err)
	}
	return n
}

func (f *fixture) exec(sql string) {
	f.t.Helper()
	if _, err := f.pool.Exec(context.Background(), sql); err != nil {
		f.t.Fatal(err)
	}
}

const (
	april    = "2026-04/invoices"
	invoices = "SELECT count(*) FROM invoices"
	keys     = "SELECT count(*) FROM idempotency_keys"
	token    = httpfence.TokenHeader
	stale    = "problem/stale"
)

// TestOrder: each stage answers before the next one runs.
func TestOrder(t *testing.T) {
	f := newFixture(t)
	if status, body := f.ask(april, token, "10"); status != 201 {
		t.Fatal(status, body)
	}
	if status, body := f.ask(april, token, "11", "Idempotency-Key", "other"); status != 201 {
		t.Fatal(status, body)
	}
	for _, c := range []struct {
		name, path string
		header     []string
		status     int
		body       string
	}{
		{"authentication before not-found", "none/invoices", []string{"Authorization", "x"}, 401, ""},
		{"authentication before the replay", april, []string{"Authorization", "x"}, 401, ""},
		{"a key belongs to its tenant", april, []string{"Authorization", "Bearer secret-2"}, 428, ""},
		{"not-found before the fence", "none/invoices", []string{token, "12", "Idempotency-Key", "new"}, 404, "problem/not_found"},
		{"replay before the fence: stale token", april, []string{token, "10"}, 201, "replayed invoice 1"},
		{"replay before the fence: no token", april, nil, 201, "replayed invoice 1"},
		{"replay for the successor", april, []string{token, "11"}, 201, "replayed invoice 1"},
		{"fence before If-Match", april, []string{token, "10", "Idempotency-Key", "new", "If-Match", `"99"`}, 412, stale},
		{"If-Match before the work", april, []string{token, "11", "Idempotency-Key", "new", "If-Match", `"99"`}, 412, "the period has changed"},
		{"another request under the key", april, []string{token, "11", "If-Match", `"99"`}, 422, ""},
	} {
		if status, body := f.ask(c.path, c.header...); status != c.status || !strings.Contains(body, c.body) {
			t.Errorf("%s: %d %s", c.name, status, body)
		}
	}
	if n := f.count(invoices); n != 2 {
		t.Errorf("%d invoices", n)
	}
	if mark, err := f.db.Mark(t.Context(), "tenant_1:invoices:none"); err != nil || mark != (guard.Mark{}) {
		t.Errorf("what is not there has the mark %+v, %v", mark, err)
	}
	// The control: with the fence in front of the look-up, a holder that lost the response
	// together with its lease never learns that its work was done.
	name := func(*http.Request) (string, error) { return "tenant_1:invoices:2026-04", nil }
	fence := guard.Must(httpfence.New(f.db, name, nil))
	f.h = authenticate(fence.Admit(f.replayed(http.NotFoundHandler())))
	if status, body := f.ask(april, token, "10"); status != 412 || !strings.Contains(body, stale) {
		t.Errorf("control: %d %s", status, body)
	}
}

// TestRejectionsAreNotStored: a refused request can be sent again.
func TestRejectionsAreNotStored(t *testing.T) {
	f := newFixture(t)
	if status, _ := f.ask(april, token, "11", "Idempotency-Key", "first"); status != 201 {
		t.Fatal(status)
	}
	for _, header := range [][]string{{token, "10"}, {token, "+1"}, {}, {token, "11", "If-Match", `"3"`}} {
		if status, body := f.ask(april, header...); status < 400 || f.count(keys) != 1 {
			t.Errorf("%q: %d %s, %d keys", header, status, body, f.count(keys))
		}
	}
	f.exec("UPDATE periods SET version = 3")
	if status, body := f.ask(april, token, "11", "If-Match", `"3"`); status != 201 {
		t.Errorf("sent again: %d %s", status, body)
	}
	// The control: a stored refusal is returned forever.
	f.exec(`UPDATE idempotency_keys SET status = 412, body = 'stale' WHERE key = 'k'`)
	if status, body := f.ask(april, token, "12", "If-Match", `"3"`); status != 412 || !strings.HasPrefix(body, "replayed") {
		t.Errorf("control: %d %s", status, body)
	}
}

// TestTakeOver: a holder is paused in the middle of its transaction; its successor repeats the
// request with the same key, and exactly one invoice results. TestFenced has the control.
func TestTakeOver(t *testing.T) {
	f := newFixture(t)
	paused, wake := make(chan struct{}), make(chan struct{})
	f.slow = func(r *http.Request) {
		if claim, _ := guard.ClaimFrom(r.Context()); claim.Token == 10 {
			close(paused)
			<-wake
		}
	}
	old := make(chan string)
	go func() {
		status, body := f.ask(april, token, "10")
		old <- fmt.Sprint(status, " ", body)
	}()
	<-paused
	if status, body := f.ask(april, token, "11"); status != 201 {
		t.Errorf("successor: %d %s", status, body)
	}
	close(wake)
	if got := testkit.Receive(t, "the paused holder's response", old); !strings.HasPrefix(got, "412") || !strings.Contains(got, stale) {
		t.Errorf("the paused holder: %s", got)
	}
	if status, body := f.ask(april, token, "10"); status != 201 || !strings.HasPrefix(body, "replayed") || f.count(invoices) != 1 {
		t.Errorf("%d %s, %d invoices", status, body, f.count(invoices))
	}
}

// TestSameHolderTwice: two requests with one key make one invoice, whoever is first. The
// control, without the row of the key, makes two.
func TestSameHolderTwice(t *testing.T) {
	for _, keyed := range []bool{true, false} {
		f := newFixture(t)
		paused, wake, calls := make(chan struct{}), make(chan struct{}), 0
		f.slow = func(*http.Request) {
			if calls++; calls == 1 {
				close(paused)
				<-wake
			}
		}
		first := make(chan int)
		go func() { status, _ := f.ask(april, token, "10"); first <- status }()
		<-paused
		want, wantInvoices := 409, 1
		if !keyed {
			want, wantInvoices = 201, 2
		}
		if status, body := f.ask(april, token, "10"); status != 201 {
			t.Errorf("second: %d %s", status, body)
		}
		if !keyed {
			f.exec("DELETE FROM idempotency_keys")
		}
		close(wake)
		if status := testkit.Receive(t, "the first response", first); status != want || f.count(invoices) != wantInvoices {
			t.Errorf("first %d, %d invoices", status, f.count(invoices))
		}
	}
}

// TestSameTransaction: the work and its response are stored together or not at all. The control
// stores them apart.
func TestSameTransaction(t *testing.T) {
	f := newFixture(t)
	f.exec("ALTER TABLE idempotency_keys ADD CHECK (status <> 201)")
	if status, _ := f.ask(april, token, "10"); status != 500 || f.count(invoices) != 0 {
		t.Errorf("%d, %d invoices", status, f.count(invoices))
	}
	claim := guard.Claim{Resource: "tenant_1:invoices:2026-04", Token: 10, LeaseID: "lease-10"}
	var err error
	for _, sql := range []string{
		`INSERT INTO invoices (tenant, period, cents, token) VALUES ('tenant_1', '2026-04', 1, 10)`,
		`INSERT INTO idempotency_keys VALUES ('tenant_1', 'k', '', 201, '')`,
	} {
		err = errors.Join(err, f.db.InTx(t.Context(), claim, func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, sql)
			return err
		}))
	}
	if err == nil || f.count(invoices) != 1 {
		t.Errorf("control: %v, %d invoices", err, f.count(invoices))
	}
}

// TestOvertaken: a request is admitted, a newer holder raises the mark, the request writes. The
// fenced write is refused; the control, the same statement in a plain transaction, is not.
func TestOvertaken(t *testing.T) {
	f := newFixture(t)
	for _, fenced := range []bool{true, false} {
		f.exec("UPDATE periods SET version = 1; DELETE FROM fencepost.marks")
		f.slow = func(r *http.Request) {
			if status, body := f.ask("2026-04/raise", token, "11"); status != http.StatusNoContent {
				t.Errorf("raise: %d %s", status, body)
			}
			if !fenced {
				if err := pgx.BeginFunc(r.Context(), f.pool, func(tx pgx.Tx) error { return f.touch(r.Context(), tx, r) }); err != nil {
					t.Error(err)
				}
			}
		}
		if status, body := f.ask("2026-04/report", token, "10"); status != http.StatusPreconditionFailed || !strings.Contains(body, stale) {
			t.Errorf("%d %s", status, body)
		}
		if changed := f.count("SELECT max(version) FROM periods") > 1; changed == fenced {
			t.Errorf("fenced %v: the period has changed: %v", fenced, changed)
		}
		f.slow = func(*http.Request) {}
		if status, body := f.ask("2026-04/report", token, "11"); status != http.StatusNoContent {
			t.Errorf("the new holder: %d %s", status, body)
		}
	}
}
