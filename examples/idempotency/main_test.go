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

func TestRun(t *testing.T) {
	testkit.CaptureDefault(t)
	t.Setenv("FENCEPOST_DATABASE_URL", pgtest.Database(t)) // else run starts a server of its own
	var out bytes.Buffer
	if err := run(t.Context(), &out); err != nil || !strings.Contains(out.String(), "(replayed)") {
		t.Errorf("%v\n%s", err, &out)
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
	s, err := newService(t.Context(), pgtest.Pool(t))
	if err != nil {
		t.Fatal(err)
	}
	return &fixture{s, t, s.handler()}
}

// ask sends a request; header is name, value, name, value.
func (f *fixture) ask(header ...string) (status int, body string) {
	f.t.Helper()
	r := httptest.NewRequest("POST", "/periods/2026-04/invoices", strings.NewReader(`{"cents":1000}`))
	r.Header.Set("Authorization", "Bearer secret-1")
	r.Header.Set("Idempotency-Key", "k")
	for i := 0; i < len(header); i += 2 {
		if header[i] == ":path" {
			r.URL.Path = header[i+1]
			continue
		}
		r.Header.Set(header[i], header[i+1])
	}
	if t := r.Header.Get(token); t != "" { // whoever sends a token sends the whole claim
		r.Header.Set(httpfence.LeaseHeader, "lease-"+t)
		r.Header.Set(httpfence.ResourceHeader, "tenant_1:invoices:2026-04")
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

func (f *fixture) exec(sql string, args ...any) {
	f.t.Helper()
	if _, err := f.pool.Exec(context.Background(), sql, args...); err != nil {
		f.t.Fatal(err)
	}
}

const (
	invoices = "SELECT count(*) FROM invoices"
	keys     = "SELECT count(*) FROM idempotency_keys"
	token    = httpfence.TokenHeader
	stale    = "problem/stale"
)

// TestOrder: each stage answers before the next one runs.
func TestOrder(t *testing.T) {
	f := newFixture(t)
	if status, body := f.ask(token, "10"); status != 201 {
		t.Fatal(status, body)
	}
	if status, body := f.ask(token, "11", "Idempotency-Key", "other"); status != 201 {
		t.Fatal(status, body)
	}
	for _, c := range []struct {
		name   string
		header []string
		status int
		body   string
	}{
		{"authentication before not-found", []string{"Authorization", "x", ":path", "/periods/none/invoices"}, 401, ""},
		{"authentication before the replay", []string{"Authorization", "x"}, 401, ""},
		{"a key belongs to its tenant", []string{"Authorization", "Bearer secret-2"}, 428, ""},
		{"not-found before the fence", []string{":path", "/periods/none/invoices", "Idempotency-Key", "new"}, 404, ""},
		{"replay before the fence: stale token", []string{token, "10"}, 201, "replayed invoice 1"},
		{"replay before the fence: no token", nil, 201, "replayed invoice 1"},
		{"fence before If-Match", []string{token, "10", "Idempotency-Key", "new", "If-Match", `"99"`}, 412, stale},
		{"If-Match before the work", []string{token, "11", "Idempotency-Key", "new", "If-Match", `"99"`}, 412, "the period has changed"},
		{"another request under the key", []string{token, "11", "If-Match", `"99"`}, 422, ""},
	} {
		if status, body := f.ask(c.header...); status != c.status || !strings.Contains(body, c.body) {
			t.Errorf("%s: %d %s", c.name, status, body)
		}
	}
	if n := f.count(invoices); n != 2 {
		t.Errorf("%d invoices", n)
	}
	f.exec("DELETE FROM periods WHERE tenant = 'tenant_1'")
	if status, _ := f.ask(token, "11"); status != 404 {
		t.Errorf("not-found before the replay: %d", status)
	}
	// The control: with the fence in front of the look-up, a holder that lost
	// the answer together with its lease never learns that its work was done.
	f.exec("INSERT INTO periods VALUES ('tenant_1', '2026-04')")
	april := func(*http.Request) (string, error) { return "tenant_1:invoices:2026-04", nil }
	fence := guard.Must(httpfence.New(f.db, april, nil))
	f.h = authenticate(fence.Admit(f.replayed(http.NotFoundHandler())))
	if status, body := f.ask(token, "10"); status != 412 || !strings.Contains(body, stale) {
		t.Errorf("control: %d %s", status, body)
	}
}

// TestFingerprintExcludesTheToken: a successor repeats the request.
func TestFingerprintExcludesTheToken(t *testing.T) {
	f := newFixture(t)
	if status, _ := f.ask(token, "10"); status != 201 {
		t.Fatal(status)
	}
	if status, body := f.ask(token, "11"); status != 201 || !strings.HasPrefix(body, "replayed") {
		t.Errorf("%d %s", status, body)
	}
	// The control: with the token in it, the successor's request is a different
	// one.
	with := func(token string) []byte { return fingerprint("POST", "/", "", []byte(token)) }
	f.exec("INSERT INTO idempotency_keys (tenant, key, fingerprint, token, status, body) VALUES ('tenant_1', 'control', $1, 10, 201, '')", with("10"))
	if _, err := replay(t.Context(), f.pool, "tenant_1", "control", with("11")); err != errReused {
		t.Errorf("control: %v", err)
	}
}

// TestRejectionsAreNotStored: a refused request can be sent again.
func TestRejectionsAreNotStored(t *testing.T) {
	f := newFixture(t)
	if status, _ := f.ask(token, "11", "Idempotency-Key", "first"); status != 201 {
		t.Fatal(status)
	}
	for _, header := range [][]string{{token, "10"}, {token, "+1"}, {}, {token, "11", "If-Match", `"3"`}} {
		if status, body := f.ask(header...); status < 400 || f.count(keys) != 1 {
			t.Errorf("%q: %d %s, %d keys", header, status, body, f.count(keys))
		}
	}
	f.tax = func(context.Context, int64) (int64, error) { return 0, guard.Unavailable("tax", guard.Claim{}, nil) }
	if status, _ := f.ask(token, "11"); status != 500 || f.count(keys) != 1 {
		t.Errorf("%d, %d keys", status, f.count(keys))
	}
	f.tax = func(context.Context, int64) (int64, error) { return 0, nil }
	f.exec("UPDATE periods SET version = 3")
	if status, body := f.ask(token, "11", "If-Match", `"3"`); status != 201 {
		t.Errorf("sent again: %d %s", status, body)
	}
	// The control: a stored refusal is returned forever.
	f.exec(`UPDATE idempotency_keys SET status = 412, body = 'stale' WHERE key = 'k'`)
	if status, body := f.ask(token, "12", "If-Match", `"3"`); status != 412 || !strings.HasPrefix(body, "replayed") {
		t.Errorf("control: %d %s", status, body)
	}
}

// TestTakeOver: a holder is paused between reserving the key and its work; its
// successor finishes the request, and the paused one achieves nothing.
func TestTakeOver(t *testing.T) {
	f := newFixture(t)
	paused, wake := make(chan struct{}), make(chan struct{})
	f.tax = func(ctx context.Context, _ int64) (int64, error) {
		if claim, _ := guard.ClaimFrom(ctx); claim.Token == 10 {
			close(paused)
			<-wake
		}
		return 0, nil
	}
	old := make(chan string)
	go func() {
		status, body := f.ask(token, "10")
		old <- fmt.Sprint(status, " ", body)
	}()
	<-paused
	// The key is taken, and not the successor's yet: the control, which does
	// not take over, could only wait for a holder that may never come back.
	tag, err := f.pool.Exec(t.Context(), `INSERT INTO idempotency_keys (tenant, key, fingerprint, token) VALUES ('tenant_1', 'k', '', 11) ON CONFLICT DO NOTHING`)
	if err != nil || tag.RowsAffected() != 0 {
		t.Errorf("control: %v, %v", tag, err)
	}
	if status, body := f.ask(token, "11"); status != 201 {
		t.Errorf("successor: %d %s", status, body)
	}
	close(wake)
	if got := <-old; !strings.HasPrefix(got, "412") || !strings.Contains(got, stale) {
		t.Errorf("the paused holder: %s", got)
	}
	if status, body := f.ask(token, "10"); status != 201 || !strings.HasPrefix(body, "replayed") || f.count(invoices) != 1 {
		t.Errorf("%d %s, %d invoices", status, body, f.count(invoices))
	}
}

// TestSameHolderTwice: while one works, the other is refused; if the first was
// given up too early, the attempt decides, and there is still one invoice.
func TestSameHolderTwice(t *testing.T) {
	for _, early := range []bool{false, true} {
		f := newFixture(t)
		paused, wake, calls := make(chan struct{}), make(chan struct{}), 0
		f.tax = func(context.Context, int64) (int64, error) {
			if calls++; calls == 1 {
				close(paused)
				<-wake
			}
			return 0, nil
		}
		first := make(chan int)
		go func() { status, _ := f.ask(token, "10"); first <- status }()
		<-paused
		wantFirst, wantSecond := 201, 409
		started := "started_at + interval '1 hour'" // however long the test takes
		if early {
			wantFirst, wantSecond = 409, 201
			started = "started_at - interval '1 hour'"
		}
		f.exec("UPDATE idempotency_keys SET started_at = " + started)
		if status, body := f.ask(token, "10"); status != wantSecond {
			t.Errorf("early %v: second %d %s", early, status, body)
		}
		close(wake)
		if status := <-first; status != wantFirst || f.count(invoices) != 1 {
			t.Errorf("early %v: first %d, %d invoices", early, status, f.count(invoices))
		}
	}
}

// TestSameTransaction: the work and its answer are stored together or not at
// all. The control stores them apart.
func TestSameTransaction(t *testing.T) {
	f := newFixture(t)
	f.exec("ALTER TABLE idempotency_keys ADD CHECK (status <> 201)")
	if status, _ := f.ask(token, "10"); status != 500 || f.count(invoices) != 0 {
		t.Errorf("%d, %d invoices", status, f.count(invoices))
	}
	var answer saved
	claim := guard.Claim{Resource: "tenant_1:invoices:2026-04", Token: 10, LeaseID: "lease-10"}
	in := func(fn func(ctx context.Context, tx pgx.Tx) error) error { return f.db.InTx(t.Context(), claim, fn) }
	err := errors.Join(
		in(func(ctx context.Context, tx pgx.Tx) (err error) {
			answer, err = insert(ctx, tx, "tenant_1", "2026-04", "", 1, claim)
			return err
		}),
		in(func(ctx context.Context, tx pgx.Tx) error { return finish(ctx, tx, "tenant_1", "k", 1, answer) }),
	)
	if err == nil || f.count(invoices) != 1 {
		t.Errorf("control: %v, %d invoices", err, f.count(invoices))
	}
}
