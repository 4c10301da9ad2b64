package httpfence_test

import (
	"fmt"
	"net/http"

	"github.com/go-chi/chi/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost-go/fencepost/httpfence"
	"github.com/fencepost-go/fencepost/sqlfence"
)

// The handler writes by the transaction in its context, and its answer is sent
// when that is committed. One database is the store and the transaction.
func ExampleMiddleware_InTx() {
	var pool *pgxpool.Pool // of the service
	db, err := sqlfence.Pgx(pool, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	fence, err := httpfence.New(db, httpfence.ChiParam("id"), &httpfence.Options{Transactor: db.Transactor()})
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
	// The same with an error in place of a status.
	router.Method("POST", "/accounts/{id}/open", fence.InTxFunc(func(w http.ResponseWriter, r *http.Request) error {
		tx, _ := db.TxFrom(r.Context())
		_, err := tx.Exec(r.Context(), "UPDATE accounts SET closed = false WHERE id = $1", chi.URLParam(r, "id"))
		return err
	}))
	// Output: fencepost: invalid pool "nil": must not be nil
}
