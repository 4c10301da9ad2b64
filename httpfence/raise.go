package httpfence

import (
	"net/http"
	"slices"

	"github.com/fencepost-go/fencepost/guard"
)

// Raise makes the request's claim the resource's mark and calls no handler:
// what is read after its 204 cannot be changed by an older holder any more, if
// the store waits for older writes as sqlfence's DB does (promise P2). It is
// the endpoint that a new holder calls before it reads:
//
//	router.Post("/accounts/{id}/raise", fence.Raise)
//
// It stops only writes that are compared with the mark it raises: those of
// [Middleware.InTx] and of sqlfence's InTx on the same database. A handler that
// writes by a fenced single statement compares with the mark of the row
// instead; take over there by raising the row's. A store that does not know of
// the writes, such as [guard.Memory], stops only requests that are not yet
// admitted: one that was may still be writing.
//
// It is idempotent. A refusal is answered as by [Middleware.Admit], also with
// [Options.InsecureReportOnly]: who calls it wants to know. GET, HEAD, OPTIONS
// and TRACE, which must not change anything, are answered with 405.
func (m *Middleware) Raise(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	if slices.Contains(defaultUnguarded, r.Method) {
		w.Header().Set("Allow", http.MethodPost)
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	claim, err := m.admit(r, guard.OpRaise)
	if err != nil {
		m.reject(w, r, claim, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}
