package lockserver

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/guard/proof"
	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin/pgadmin"
	"github.com/fencepost-go/fencepost/lockclient/lockhttp"
	"github.com/fencepost-go/fencepost/lockclient/pglock"
	"github.com/fencepost-go/fencepost/sqlfence"
)

var closes = guard.Must(guard.NewTemplate("{tenant}:billing-close:{period}"))

// signingKey is the lock server's.
var signingKey = proof.NewPrivateKey()

// people knows the identities: "demo-ops" is an operator of tenant demo, "root-ops" of everything.
func people(r *http.Request) (*lockhttp.Identity, error) {
	token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	tenant, role, _ := strings.Cut(token, "-")
	if role == "" {
		return nil, guard.Invalid("token", token, "is unknown")
	}
	return &lockhttp.Identity{Subject: token, Tenant: tenant, Operator: role == "ops", AllResources: tenant == "root", Templates: []*guard.Template{closes}, Audience: tenant}, nil
}

// serve runs a lock server on a database of its own. Its force unlocks call
// raise.
func serve(t *testing.T) (url string, handler *lockhttp.Server, pool *pgxpool.Pool, raise func(context.Context, guard.Claim) error) {
	t.Helper()
	pool = pgtest.Pool(t)
	testkit.Must(t, pgadmin.Migrate(t.Context(), pool))
	issuer, err := pglock.New(pool, nil)
	testkit.Must(t, err)
	operator, err := pgadmin.New(pool, nil)
	testkit.Must(t, err)
	marks, err := sqlfence.Pgx(pool, nil)
	testkit.Must(t, err)
	signer, err := proof.NewSigner(signingKey, &proof.SignerOptions{Leeway: time.Hour})
	testkit.Must(t, err)
	raise = func(ctx context.Context, claim guard.Claim) error {
		_, err := marks.Admit(ctx, claim)
		return err
	}
	handler, err = lockhttp.New(issuer, people, &lockhttp.Options{ShowHolders: true, Admin: operator, Signer: signer, Raise: raise, Timeout: testkit.Patience, ReadyWithin: testkit.Patience, Logger: testkit.Logger(t)})
	testkit.Must(t, err)
	server := httptest.NewServer(handler)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
		defer cancel()
		testkit.Check(t, handler.Close(ctx))
		server.Close()
		issuer.Close()
	})
	return server.URL, handler, pool, raise
}
