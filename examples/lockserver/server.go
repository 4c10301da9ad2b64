package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/go-chi/chi/v5"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/guard/proof"
	"github.com/fencepost-go/fencepost/httpfence"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin/pgadmin"
	"github.com/fencepost-go/fencepost/lockclient/lockhttp"
	"github.com/fencepost-go/fencepost/lockclient/pglock"
	"github.com/fencepost-go/fencepost/sqlfence"
)

// server is the lock server, plus a service that compares the tokens it issues.
// In real use that is another program, with the marks in its own database.
type server struct {
	issuer driver.Issuer
	locks  *lockhttp.Server
	keys   http.Handler // verify the proofs that the lock server signs
	closes http.Handler
}

// keysPath is where services fetch the public keys: proof.JWKS(url+keysPath, nil).
const keysPath = "/.well-known/jwks.json"

// audience is the audience of the proofs for a tenant's claims: a service that
// acts for another tenant refuses them.
func audience(tenant string) string { return "billing/" + tenant }

// newServer returns a server that signs its grants with key. Only the lock server
// has the key.
func newServer(ctx context.Context, pool *pgxpool.Pool, who lockhttp.Authenticate, key proof.PrivateKey) (*server, error) {
	if err := pgadmin.Migrate(ctx, pool); err != nil {
		return nil, err
	}
	operator, err := pgadmin.New(pool, nil)
	if err != nil {
		return nil, err
	}
	marks, err := sqlfence.Pgx(pool, nil)
	if err != nil {
		return nil, err
	}
	// Within the leeway a holder is refused as stale; later, because its proof
	// has expired.
	signer, err := proof.NewSigner(key, &proof.SignerOptions{Leeway: 5 * time.Minute})
	if err != nil {
		return nil, err
	}
	keys, err := proof.NewKeys(ctx, proof.Static(key.Public()), nil)
	if err != nil {
		return nil, err
	}
	closes, err := newCloses(ctx, pool, marks, who, keys)
	if err != nil {
		return nil, err
	}
	issuer, err := pglock.New(pool, nil)
	if err != nil {
		return nil, err
	}
	locks, err := lockhttp.New(issuer, who, &lockhttp.Options{
		ShowHolders: true, // workers of one tenant may know each other's names
		Admin:       operator,
		Signer:      signer,
		// A force unlock takes effect at the resource: from then on the writes of
		// the holder that was cut off are refused.
		Raise: func(ctx context.Context, invalidated guard.Claim) error {
			_, err := marks.Admit(ctx, invalidated)
			return err
		},
	})
	if err != nil {
		return nil, errors.Join(err, issuer.Close())
	}
	return &server{issuer, locks, keys, closes}, nil
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.URL.Path == keysPath:
		s.keys.ServeHTTP(w, r)
	case strings.HasPrefix(r.URL.Path, "/demo/"):
		s.closes.ServeHTTP(w, r)
	default:
		s.locks.ServeHTTP(w, r)
	}
}

// serve serves until ctx ends; then waiters are notified, and requests in
// progress have ten seconds.
func (s *server) serve(ctx context.Context, listener net.Listener) error {
	// There is no WriteTimeout, because events are streams; each write to a
	// stream has its own limit, and so has the reading of each body.
	web := &http.Server{Handler: s, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 32 << 10}
	served := make(chan error, 1)
	go func() { served <- web.Serve(listener) }()
	var err error
	select {
	case err = <-served:
	case <-ctx.Done():
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	closed := make(chan error, 1)
	go func() { closed <- s.locks.Close(end) }()
	shut := web.Shutdown(end)
	return errors.Join(err, shut, <-closed, s.issuer.Close())
}

// close closes a server that never served.
func (s *server) close(ctx context.Context) error {
	return errors.Join(s.locks.Close(ctx), s.issuer.Close())
}

// newCloses is the service whose writes the tokens fence: PUT
// /demo/closes/{period} writes a text for the caller's tenant. It believes only
// claims that the lock server has signed for this tenant: without that a token is
// just a number, and a caller that sends a high one locks out all others.
func newCloses(ctx context.Context, pool *pgxpool.Pool, db *sqlfence.DB[pgx.Tx], who lockhttp.Authenticate, keys *proof.Keys) (http.Handler, error) {
	_, err := pool.Exec(ctx, `CREATE TABLE IF NOT EXISTS closes (tenant text, period text, note text NOT NULL, PRIMARY KEY (tenant, period))`)
	if err != nil {
		return nil, err
	}
	tenant := func(r *http.Request) (string, error) {
		id, err := who(r)
		if err != nil {
			return "", guard.ErrNotFound // without revealing whose it is
		}
		return id.Tenant, nil
	}
	period := httpfence.ChiParam("period")
	resource, err := httpfence.Named(templates[0], httpfence.Bindings{"tenant": tenant, "period": period})
	if err != nil {
		return nil, err
	}
	verify := proof.NewVerifier(keys).Hook(func(r *http.Request) (string, error) {
		owner, err := tenant(r)
		return audience(owner), err
	})
	fence, err := httpfence.NewTx(db.Transactor(), resource, &httpfence.Options{Verify: verify, MaxBody: 1000})
	if err != nil {
		return nil, err
	}
	r := chi.NewRouter()
	r.Method(http.MethodPut, "/demo/closes/{period}", fence.InTxFunc(func(w http.ResponseWriter, r *http.Request) error {
		note, err := io.ReadAll(r.Body)                                       // read before the transaction began
		if err != nil || !utf8.Valid(note) || bytes.IndexByte(note, 0) >= 0 { // PostgreSQL stores no other text
			http.Error(w, "a note is UTF-8 without NUL", http.StatusBadRequest)
			return nil
		}
		owner, err1 := tenant(r)
		key, err2 := period(r)
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		tx, _ := db.TxFrom(r.Context())
		w.WriteHeader(http.StatusNoContent)
		_, err = tx.Exec(r.Context(), `INSERT INTO closes VALUES ($1, $2, $3) ON CONFLICT (tenant, period) DO UPDATE SET note = excluded.note`, owner, key, string(note))
		return err
	}))
	return r, nil
}
