package httpfence_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/jackc/pgx/v5"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/httpfence"
	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/sqlfence/sqladmin"
)

// BenchmarkInTx compares a handler behind InTx with the same handler that
// opens its own transaction, and with one that calls sqlfence's InTx itself,
// request by request in turn: one UPDATE on PostgreSQL, with COMMIT. It reports
// the medians and their ratios. "durable" waits for the disk at each COMMIT, as
// a server in production does; "memory" shows the statements alone.
func BenchmarkInTx(b *testing.B) {
	b.Run("memory", func(b *testing.B) { benchmarkInTx(b, ledger(b)) })
	b.Run("durable", func(b *testing.B) {
		server, err := pgtest.Start(b.Context(), &pgtest.Options{Durable: true})
		if err != nil {
			b.Fatal(err)
		}
		defer func() { _ = server.Stop() }()
		url, _, err := server.NewDatabase(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		benchmarkInTx(b, url)
	})
}

func benchmarkInTx(b *testing.B, url string) {
	p := newReplica(b, url)
	if err := sqladmin.Pgx(p.pool).Migrate(b.Context()); err != nil {
		b.Fatal(err)
	}
	if _, err := p.pool.Exec(b.Context(), "CREATE TABLE counters (id text PRIMARY KEY, n bigint NOT NULL); INSERT INTO counters VALUES ('acme', 0)"); err != nil {
		b.Fatal(err)
	}
	const update = "UPDATE counters SET n = n + 1 WHERE id = $1"
	fence := p.fence()
	router := chi.NewRouter()
	router.Post("/own/{id}", func(w http.ResponseWriter, r *http.Request) {
		err := pgx.BeginTxFunc(r.Context(), p.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
			_, err := tx.Exec(r.Context(), update, chi.URLParam(r, "id"))
			return err
		})
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		_, _ = w.Write([]byte("done"))
	})
	router.Post("/direct/{id}", func(w http.ResponseWriter, r *http.Request) {
		err := p.db.InTx(r.Context(), guard.Claim{Resource: chi.URLParam(r, "id"), Token: 7}, func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, update, chi.URLParam(r, "id"))
			return err
		})
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		_, _ = w.Write([]byte("done"))
	})
	router.With(fence.InTx).Post("/fenced/{id}", func(w http.ResponseWriter, r *http.Request) {
		tx, _ := p.db.TxFrom(r.Context())
		if _, err := tx.Exec(r.Context(), update, chi.URLParam(r, "id")); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		_, _ = w.Write([]byte("done"))
	})
	if _, err := p.db.Admit(b.Context(), guard.Claim{Resource: "acme", Token: 7}); err != nil {
		b.Fatal(err)
	}
	took := map[string][]float64{}
	send := func(path string) {
		r := httptest.NewRequest("POST", path+"acme", nil)
		r.Header.Set(httpfence.TokenHeader, "7")
		w := httptest.NewRecorder()
		start := time.Now()
		router.ServeHTTP(w, r)
		took[path] = append(took[path], float64(time.Since(start).Nanoseconds()))
		if w.Code != http.StatusOK {
			b.Fatalf("%s: %d %s", path, w.Code, w.Body)
		}
	}
	paths := []string{"/own/", "/direct/", "/fenced/"}
	for i := 0; b.Loop(); i++ { // none always follows the same other
		for j := range paths {
			send(paths[(i+j)%len(paths)])
		}
		if i%2 == 1 {
			paths[0], paths[1] = paths[1], paths[0]
		}
	}
	median := func(path string) float64 {
		slices.Sort(took[path])
		return took[path][len(took[path])/2]
	}
	own, direct, fenced := median("/own/"), median("/direct/"), median("/fenced/")
	b.ReportMetric(0, "ns/op") // of three requests: means nothing
	b.ReportMetric(own/1e3, "us/own")
	b.ReportMetric(fenced/1e3, "us/fenced")
	b.ReportMetric(fenced/own, "fenced/own")
	b.ReportMetric(fenced/direct, "fenced/direct")
}
