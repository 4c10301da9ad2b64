package main

import (
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/go-chi/chi/v5"
	"github.com/jackc/pgx/v5"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/httpfence"
	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/sqlfence"
	"github.com/fencepost-go/fencepost/sqlfence/sqladmin"
)

// handler is the README's sample, line by line.
func handler(db *sqlfence.DB[pgx.Tx]) http.Handler {
	accounts := guard.Must(guard.NewTemplate("account:{id:int}"))
	resource := guard.Must(httpfence.Named(accounts, httpfence.Bindings{"id": httpfence.ChiParam("id")}))
	fence := guard.Must(httpfence.NewTx(db.Transactor(), resource, &httpfence.Options{GuardAllMethods: true}))
	return fence.InTxFunc(func(w http.ResponseWriter, r *http.Request) error {
		claim, _ := guard.ClaimFrom(r.Context())
		account, _ := accounts.Match(claim.Resource)
		tx, _ := db.TxFrom(r.Context())
		_, err := tx.Exec(r.Context(), "UPDATE accounts SET closed = true WHERE id = $1", account[0])
		return err // an error or a status of 400 and above rolls back; the response is sent after COMMIT
	})
}

// The handler is mounted for all methods: none reaches it without a claim.
func TestHandler(t *testing.T) {
	testkit.CaptureDefault(t)
	pool := pgtest.Pool(t)
	db := need(sqlfence.Pgx(pool, nil))
	need(0, sqladmin.Pgx(pool).Migrate(t.Context()))
	need(pool.Exec(t.Context(), `CREATE TABLE accounts (id bigint, closed boolean); INSERT INTO accounts VALUES (7, false)`))
	router := chi.NewRouter()
	router.Handle("/accounts/{id}/close", handler(db))
	send := func(method, token string) int {
		r := httptest.NewRequest(method, "/accounts/7/close", nil)
		if token != "" {
			r.Header.Set(httpfence.TokenHeader, token)
			r.Header.Set(httpfence.LeaseHeader, "a")
			r.Header.Set(httpfence.ResourceHeader, httpfence.Encode("account:7"))
		}
		w := httptest.NewRecorder()
		router.ServeHTTP(w, r)
		return w.Code
	}
	for _, method := range []string{"GET", "HEAD", "OPTIONS", "TRACE", "POST"} {
		if code := send(method, ""); code != http.StatusPreconditionRequired {
			t.Errorf("%s without a claim: %d", method, code)
		}
	}
	if code := send("POST", "1"); code != http.StatusOK {
		t.Errorf("with a claim: %d", code)
	}
	var closed bool
	if err := pool.QueryRow(t.Context(), "SELECT closed FROM accounts").Scan(&closed); err != nil || !closed {
		t.Errorf("closed: %v, %v", closed, err)
	}
}

func TestHandlerIsTheReadmes(t *testing.T) {
	source, readme := string(need(os.ReadFile("handler_test.go"))), string(need(os.ReadFile("../../README.md")))
	_, body, _ := strings.Cut(source, "http.Handler {\n")
	body, _, _ = strings.Cut(body, "\n}\n")
	want := strings.TrimPrefix(strings.ReplaceAll("\n"+body, "\n\t", "\n"), "\n")
	if !strings.Contains(readme, "```go\n"+want+"\n```\n") {
		t.Errorf("README.md does not show this handler:\n%s", want)
	}
}
