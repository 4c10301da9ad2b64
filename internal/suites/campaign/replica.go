package main

import (
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/httpfence"
	"github.com/fencepost-go/fencepost/sqlfence"

	"github.com/fencepost-go/fencepost/internal/suites/campaign/oracle"
)

// replica is one of two processes of an HTTP service on one PostgreSQL.
type replica struct {
	role
	*control
	*recorder // of each write that was admitted
	pool      *pgxpool.Pool
	db        *sqlfence.DB[pgx.Tx]
}

func runReplica(ctx context.Context, s *replica) (err error) {
	if s.db, err = newDB(s.pool); err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := &http.Server{Handler: s.handler(), ReadHeaderTimeout: 5 * time.Second}
	go server.Serve(listener)
	s.tell(report{Phase: phaseReady, Address: listener.Addr().String()})
	<-s.stop
	ctx, cancel := context.WithTimeout(ctx, hangLimit/2)
	defer cancel()
	return server.Shutdown(ctx)
}

// handler builds the routes for the mode of the guards. With guards on, the
// door, the transaction and the raise share the marks of the database.
func (s *replica) handler() http.Handler {
	opts := &httpfence.Options{Logger: slog.New(slog.DiscardHandler)}
	tx := guard.Must(httpfence.NewTx(s.db.Transactor(), httpfence.PathValue("resource"), opts))
	fence := tx.Middleware
	if s.Guards != guardsOn { // the naive door: every replica has its own marks
		fence = guard.Must(httpfence.New(guard.NewMemory(), httpfence.PathValue("resource"), opts))
	}
	mux := http.NewServeMux()
	for _, kind := range []string{"http-admit", "http-intx"} {
		mux.HandleFunc("GET /"+kind+"/{resource}", s.read)
		mux.HandleFunc("POST /"+kind+"/{resource}/raise", fence.Raise)
	}
	admit := http.Handler(fence.Admit(s.writer(fence, s.admitted)))
	var intx http.Handler
	switch s.Guards {
	case guardsOn:
		intx = tx.InTx(s.writer(fence, s.inside))
	case guardsNaive:
		admit = fence.Admit(s.writer(fence, s.bare))
		intx = admit
	case guardsOff:
		admit = s.writer(fence, s.bare)
		intx = admit
	}
	mux.Handle("POST /http-admit/{resource}", admit)
	mux.Handle("POST /http-intx/{resource}", intx)
	return mux
}

func (s *replica) read(w http.ResponseWriter, r *http.Request) {
	d, err := readDoc(r.Context(), s.pool, r.PathValue("resource"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	json.NewEncoder(w).Encode(d)
}

// writer is the handler, with the gate between admission and the write.
func (s *replica) writer(fence *httpfence.Middleware, write func(context.Context, guard.Claim, doc) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var d doc
		if err := json.NewDecoder(r.Body).Decode(&d); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		claim, err := claimOf(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		s.begin(oracle.Op{Kind: oracle.Handled, Resource: claim.Resource, Token: int64(claim.Token), Write: d.Write})
		s.gate(phaseAdmitted, claim.Resource, int64(claim.Token))
		if err := write(r.Context(), claim, d); err != nil {
			fence.Reject(w, r, err)
			return
		}
		w.WriteHeader(http.StatusCreated)
	})
}

// claimOf returns the admitted claim or, if none was admitted, the claim as
// sent: without guards it is only for the log.
func claimOf(r *http.Request) (guard.Claim, error) {
	if claim, ok := guard.ClaimFrom(r.Context()); ok {
		return claim, nil
	}
	token, err := guard.ParseToken(r.Header.Get(httpfence.TokenHeader))
	return guard.Claim{Resource: r.PathValue("resource"), Token: token, LeaseID: r.Header.Get(httpfence.LeaseHeader)}, err
}

// admitted presents the admitted claim to a fenced write.
func (s *replica) admitted(ctx context.Context, claim guard.Claim, d doc) error {
	return s.db.InTx(ctx, claim, func(ctx context.Context, tx pgx.Tx) error {
		return failed(claim, writeDoc(ctx, tx, s.Guards, claim, d))
	})
}

// inside writes through the transaction that the middleware opened.
func (s *replica) inside(ctx context.Context, claim guard.Claim, d doc) error {
	tx, ok := s.db.TxFrom(ctx)
	if !ok {
		return guard.Unavailable("write", claim, context.Canceled)
	}
	err := failed(claim, writeDoc(ctx, tx, s.Guards, claim, d))
	if err == nil {
		s.gate(phaseCommit, claim.Resource, int64(claim.Token))
	}
	return err
}

// bare writes without a fence.
func (s *replica) bare(ctx context.Context, claim guard.Claim, d doc) error {
	return writeDoc(ctx, s.pool, guardsOff, claim, d)
}
