package httpfence_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/go-chi/chi/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/httpfence"
	"github.com/fencepost-go/fencepost/sqlfence"
)

// send is a one-line client for the examples below: the holder of a lease on
// acme. Programs use a Transport.
func send(h http.Handler, method, path, token string) *http.Response {
	r := httptest.NewRequest(method, path, nil)
	if token != "" {
		r.Header.Set(httpfence.TokenHeader, token)
		r.Header.Set(httpfence.LeaseHeader, "lease-"+token)
		r.Header.Set(httpfence.ResourceHeader, "acme")
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result()
}

// acme names one resource for all requests.
var acme = guard.Must(httpfence.Named(guard.Must(guard.NewTemplate("acme")), nil))

// The superseded holder is refused.
func ExampleNew() {
	fence := guard.Must(httpfence.New(guard.NewMemory(), httpfence.ChiParam("id"), &httpfence.Options{DiscloseMark: true}))

	router := chi.NewRouter()
	router.With(fence.Admit).Post("/accounts/{id}/close", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, "closed")
	})

	for _, token := range []string{"10", "11", "10", ""} {
		resp := send(router, "POST", "/accounts/acme/close", token)
		body, _ := io.ReadAll(resp.Body)
		fmt.Println(resp.StatusCode, strings.TrimSpace(string(body)))
	}
	// Output:
	// 200 closed
	// 200 closed
	// 412 {"type":"tag:fencepost-go.github.io,2026:problem/stale","title":"Stale fencing token","status":412,"detail":"A newer holder has taken over this resource. Stop; do not repeat the request.","token":"10","mark":"11"}
	// 428 {"type":"tag:fencepost-go.github.io,2026:problem/missing","title":"Claim incomplete","status":428,"detail":"Send the claim of your lease, each field once: the fencing token in X-Fencing-Token, the lease ID in X-Fencing-Lease, the percent-encoded name of the resource in X-Fencing-Resource.","field":"X-Fencing-Token"}
}

// The claim is in the context for the write that compares it once more. Without
// that, a request admitted before the newer holder came could still write.
func ExampleMiddleware_Admit() {
	fence := guard.Must(httpfence.New(guard.NewMemory(), httpfence.PathValue("id"), nil))

	closeAccount := func(ctx context.Context) error {
		claim, ok := guard.ClaimFrom(ctx)
		if !ok {
			return guard.ErrMissing
		}
		// UPDATE accounts SET closed = true, last_fencing_token = $token
		// WHERE id = $id AND $token > last_fencing_token
		fmt.Println("writing under token", claim.Token, "to", claim.Resource)
		return nil
	}
	mux := http.NewServeMux()
	mux.Handle("POST /accounts/{id}/close", fence.Admit(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := closeAccount(r.Context()); err != nil {
			fence.Reject(w, r, err)
		}
	})))

	fmt.Println(send(mux, "POST", "/accounts/acme/close", "11").StatusCode)
	fmt.Println(send(mux, "POST", "/accounts/%61cme/close", "10").StatusCode)
	// Output:
	// writing under token 11 to acme
	// 200
	// 412
}

// Check compares and raises nothing: here for a preview that is of no use to a
// superseded holder.
func ExampleMiddleware_Check() {
	marks := guard.NewMemory()
	_, _ = marks.Admit(context.Background(), guard.Claim{Resource: "acme", Token: 11, LeaseID: "lease-11"})
	fence := guard.Must(httpfence.New(marks, httpfence.PathValue("id"), nil))

	mux := http.NewServeMux()
	mux.HandleFunc("GET /accounts/{id}/preview", func(w http.ResponseWriter, r *http.Request) {
		claim, err := fence.Check(r)
		if err != nil {
			fence.Reject(w, r, err)
			return
		}
		fmt.Println("preview for token", claim.Token)
	})

	fmt.Println(send(mux, "GET", "/accounts/acme/preview", "12").StatusCode)
	fmt.Println(send(mux, "GET", "/accounts/acme/preview", "10").StatusCode)
	// Output:
	// preview for token 12
	// 200
	// 412
}

// The new holder raises before it reads: from then on its predecessor cannot
// change anything that it has read.
func ExampleMiddleware_Raise() {
	fence := guard.Must(httpfence.New(guard.NewMemory(), httpfence.PathValue("id"), nil))
	mux := http.NewServeMux()
	mux.HandleFunc("POST /accounts/{id}/raise", fence.Raise)
	mux.Handle("POST /accounts/{id}/close", fence.Admit(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})))

	fmt.Println(send(mux, "POST", "/accounts/acme/close", "10").StatusCode)
	fmt.Println(send(mux, "POST", "/accounts/acme/raise", "11").StatusCode)
	fmt.Println(send(mux, "POST", "/accounts/acme/close", "10").StatusCode)
	// Output:
	// 200
	// 204
	// 412
}

// The hook sees every refusal; if it writes nothing, the default response is
// sent.
func ExampleOptions() {
	fence := guard.Must(httpfence.New(guard.NewMemory(), acme, &httpfence.Options{
		OnReject: func(w http.ResponseWriter, r *http.Request, rej *httpfence.Rejection) {
			fmt.Println("refused:", rej.Reason, rej.Status, rej.Err)
		},
		Logger: slog.New(slog.DiscardHandler),
	}))
	h := fence.Admit(http.NotFoundHandler())
	fmt.Println(send(h, "POST", "/", "").StatusCode)
	// Output:
	// refused: missing 428 fencepost: X-Fencing-Token is missing
	// 428
}

// Both spellings of the path name one resource.
func ExampleChiParam() {
	resource := httpfence.ChiParam("id")
	router := chi.NewRouter()
	router.Post("/accounts/{id}/close", func(_ http.ResponseWriter, r *http.Request) {
		name, err := resource(r)
		fmt.Println(chi.URLParam(r, "id"), name, err)
	})
	send(router, "POST", "/accounts/acme/close", "")
	send(router, "POST", "/accounts/%61cme/close", "")
	// Output:
	// acme acme <nil>
	// %61cme acme <nil>
}

type identityKey struct{}

// The tenant comes from the authenticated identity, the period from the route.
// The lease client asks the same template for the same name.
func ExampleNamed() {
	closes := guard.Must(guard.NewTemplate("{tenant}:billing-close:{period}"))
	tenant := func(r *http.Request) (string, error) {
		tenant, ok := r.Context().Value(identityKey{}).(string)
		if !ok {
			return "", errors.New("not authenticated") // 500: authentication must run first
		}
		return tenant, nil
	}
	resource, err := httpfence.Named(closes, httpfence.Bindings{"tenant": tenant, "period": httpfence.PathValue("period")})
	if err != nil {
		fmt.Println(err)
	}

	mux := http.NewServeMux()
	mux.HandleFunc("POST /billing/{period}", func(_ http.ResponseWriter, r *http.Request) {
		fmt.Println(resource(r))
	})
	authenticated := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mux.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), identityKey{}, "tenant_123")))
	})
	send(authenticated, "POST", "/billing/2026-04", "")
	send(authenticated, "POST", "/billing/2026:04", "")
	send(mux, "POST", "/billing/2026-04", "")
	_, err = httpfence.Named(closes, httpfence.Bindings{"tenant": tenant})
	fmt.Println(err)
	// Output:
	// tenant_123:billing-close:2026-04 <nil>
	// tenant_123:billing-close:2026%3A04 <nil>
	//  not authenticated
	// fencepost: invalid template variable "period": of template {tenant}:billing-close:{period} is not bound to anything: name its source (TableOptions.Columns, Bindings, KeyPattern)
}

// The client presents the claim in the context, and gets back the server's
// reason as the same error.
func ExampleDo() {
	fence := guard.Must(httpfence.New(guard.NewMemory(), acme, nil))
	ledger := httptest.NewServer(fence.Admit(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})))
	defer ledger.Close()

	client := &http.Client{Transport: guard.Must(httpfence.NewTransport(nil, []string{ledger.URL}, nil))}
	closeUnder := func(token guard.Token) error {
		// With a lease: guard.WithLease(ctx, lease).
		ctx := guard.WithClaim(context.Background(), guard.Claim{Resource: "acme", Token: token, LeaseID: "lease-" + token.String()})
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, ledger.URL+"/close", nil)
		if err != nil {
			return err
		}
		resp, err := httpfence.Do(client, req)
		if err != nil {
			return err
		}
		return resp.Body.Close()
	}
	fmt.Println(closeUnder(11))
	fmt.Println(closeUnder(10))
	// Output:
	// <nil>
	// fencepost: stale fencing token: token 10 for "acme"
}

// A new holder raises the marks of all places before it reads, those of other services too.
func ExampleRaiseAt() {
	fence := guard.Must(httpfence.New(guard.NewMemory(), acme, nil))
	ledger := httptest.NewServer(http.HandlerFunc(fence.Raise))
	defer ledger.Close()

	client := &http.Client{Transport: guard.Must(httpfence.NewTransport(nil, []string{ledger.URL}, nil))}
	for _, token := range []guard.Token{11, 10} {
		claim := guard.Claim{Resource: "acme", Token: token, LeaseID: "lease-" + token.String()}
		err := guard.RaiseAll(context.Background(), claim, guard.Place{Name: "ledger", Raise: httpfence.RaiseAt(client, ledger.URL)})
		fmt.Println(errors.Is(err, guard.ErrStale))
	}
	// Output:
	// false
	// true
}

// A 412 for an application's own If-Match is not a refusal by token.
func ExampleErrorFrom() {
	fence := guard.Must(httpfence.New(guard.NewMemory(), acme, nil))
	h := fence.Admit(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "the ETag has changed", http.StatusPreconditionFailed)
	}))
	fmt.Println(errors.Is(httpfence.ErrorFrom(send(h, "POST", "/", "")), guard.ErrMissing))
	fmt.Println(httpfence.ErrorFrom(send(h, "POST", "/", "7")))
	// Output:
	// true
	// <nil>
}

// The handler writes through the transaction in its context, and its response is
// sent when that is committed. One database is both the store and the
// transactor.
func ExampleTxMiddleware_InTx() {
	var pool *pgxpool.Pool // of the service
	db, err := sqlfence.Pgx(pool, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	fence, err := httpfence.NewTx(db.Transactor(), httpfence.ChiParam("id"), nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	router := chi.NewRouter()
	router.Post("/accounts/{id}/raise", fence.Raise)
	router.With(fence.InTx).Post("/accounts/{id}/close", func(w http.ResponseWriter, r *http.Request) {
		tx, _ := db.TxFrom(r.Context())
		if _, err := tx.Exec(r.Context(), "UPDATE accounts SET closed = true WHERE id = $1", chi.URLParam(r, "id")); err != nil {
			http.Error(w, "not closed", http.StatusInternalServerError) // rolls back
			return
		}
		w.WriteHeader(http.StatusNoContent) // sent after COMMIT
	})
	// The same with an error instead of a status.
	router.Method("POST", "/accounts/{id}/open", fence.InTxFunc(func(w http.ResponseWriter, r *http.Request) error {
		tx, _ := db.TxFrom(r.Context())
		_, err := tx.Exec(r.Context(), "UPDATE accounts SET closed = false WHERE id = $1", chi.URLParam(r, "id"))
		return err
	}))
	// Output: fencepost: invalid pool "nil": must not be nil
}
