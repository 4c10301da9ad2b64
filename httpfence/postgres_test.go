package httpfence_test

import (
	"net/http"
	"testing"

	"github.com/go-chi/chi/v5"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/httpfence"
	"github.com/fencepost-go/fencepost/internal/pgtest"
)

// TestP2RaiseEndpoint: a new holder that raises before it reads loses no
// update of an older one that was still writing, because the raise waits for
// it. The control raises a mark that is unrelated to the transaction.
func TestP2RaiseEndpoint(t *testing.T) {
	for _, c := range []struct {
		name string
		lost bool
	}{
		{"the transaction's own mark", false},
		{"control: another mark", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := newReplica(t, ledger(t))
			fence := p.fence()
			raising := fence.Middleware
			if c.lost {
				raising = guard.Must(httpfence.New(guard.NewMemory(), httpfence.ChiParam("id"), nil))
			}
			inside, proceed := make(chan struct{}), make(chan struct{})
			router := chi.NewRouter()
			router.With(fence.InTx).Post("/accounts/{id}/close", func(w http.ResponseWriter, r *http.Request) {
				close(inside)
				<-proceed
				tx, _ := p.db.TxFrom(r.Context())
				if _, err := tx.Exec(r.Context(), writeSQL, 10); err != nil {
					fence.Reject(w, r, err)
					return
				}
				w.WriteHeader(http.StatusOK)
			})
			router.Post("/accounts/{id}/raise", raising.Raise)

			old := make(chan int)
			go func() { old <- send(router, "POST", "/accounts/acme/close", "10").StatusCode }()
			<-inside
			raised := make(chan int)
			go func() { raised <- send(router, "POST", "/accounts/acme/raise", "11").StatusCode }()
			if c.lost { // the raise does not wait: the new holder would read now
				if status := <-raised; status != http.StatusNoContent {
					t.Errorf("raise: %d", status)
				}
			}
			if !c.lost {
				pgtest.Blocked(t, p.pool, "fencepost.raise(", 1)
				select {
				case status := <-raised:
					t.Errorf("the raise did not wait: %d", status)
				default:
				}
			}
			var before, after int64
			read := func(n *int64) {
				if err := p.pool.QueryRow(t.Context(), "SELECT seq FROM accounts").Scan(n); err != nil {
					t.Error(err)
				}
			}
			if c.lost {
				read(&before)
			}
			close(proceed)
			if status := <-old; status != http.StatusOK {
				t.Errorf("the old holder, which was first: %d", status)
			}
			if !c.lost {
				if status := <-raised; status != http.StatusNoContent {
					t.Errorf("raise: %d", status)
				}
				read(&before)
			}
			if read(&after); (before != after) != c.lost {
				t.Errorf("the new holder read %d, and the account is at %d", before, after)
			}
		})
	}
}
