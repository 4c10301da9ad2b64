// Command lockserver is a whole lock server on PostgreSQL: bearer tokens, tenants,
// signed claims, the operators' page, a graceful shutdown. TLS is for a proxy in
// front.
//
//	go run ./examples/lockserver -demo
//	go run ./examples/lockserver -database-url postgres://... -signing-key signing.jwk -identities identities.json -listen :8080
//
// With -demo it starts a private PostgreSQL and makes a token. The first line of
// its output is {"url": ..., "ui": ..., "token": ...}; the curl lines to try
// come after. It serves until it is interrupted.
//
// The code to copy is in server.go and identity.go. The demo's tokens are random
// and looked up by their hash, so it needs no other module. Authentication by JWTs, which
// does, and a lock server on etcd are in examples/thirdparty/issuers. Directory workers has a
// worker in Python and one in Node.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost-go/fencepost/examples/internal/demo"
	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/guard/proof"
	"github.com/fencepost-go/fencepost/lockclient/lockhttp"
)

// templates name the resources, once for the lock server and for the services
// that compare the tokens.
var templates = []*guard.Template{guard.Must(guard.NewTemplate("{tenant}:billing-close:{period}"))}

type flags struct {
	demo                                        bool
	databaseURL, identities, listen, signingKey string
}

func main() {
	var f flags
	flag.BoolVar(&f.demo, "demo", false, "serve a private PostgreSQL, with a token that is printed")
	flag.StringVar(&f.databaseURL, "database-url", "", "the PostgreSQL database of the leases")
	flag.StringVar(&f.identities, "identities", "", "a file of identities, see identity.go")
	flag.StringVar(&f.signingKey, "signing-key", "", "the file of the private key that signs the claims, a JWK; made if it is not there")
	flag.StringVar(&f.listen, "listen", "127.0.0.1:0", "the address to listen on")
	flag.Parse()
	demo.Main(0, func(ctx context.Context, out io.Writer) error { return run(ctx, f, out) })
}

func run(ctx context.Context, f flags, out io.Writer) (err error) {
	var pool *pgxpool.Pool
	var who identities
	switch {
	case f.demo:
		var cleanup func()
		if pool, cleanup, err = demo.Pool(ctx); err != nil {
			return err
		}
		defer cleanup()
	case f.databaseURL == "" || f.signingKey == "" || f.identities == "":
		return errors.New("either -demo, or -database-url, -signing-key and -identities")
	default:
		if pool, err = pgxpool.New(ctx, f.databaseURL); err != nil {
			return err
		}
		defer pool.Close()
		if who, err = readIdentities(f.identities); err != nil {
			return err
		}
	}
	var token string
	if f.demo {
		token = who.add(lockhttp.Identity{Subject: "demo", Tenant: "demo", Templates: templates, Audience: audience("demo"), Operator: true})
	}
	key, err := f.signer()
	if err != nil {
		return err
	}
	s, err := newServer(ctx, pool, who.authenticate, key)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", f.listen)
	if err != nil {
		return errors.Join(err, s.close(ctx))
	}
	url := "http://" + listener.Addr().String()
	if f.demo {
		fmt.Fprintf(out, "{\"url\":%q,\"ui\":%q,\"token\":%q}\n%s", url, url+"/ui", token, tryThis(url, token))
	} else {
		fmt.Fprintln(out, "listening on", url)
	}
	return s.serve(ctx, listener)
}

// signer reads the key of -signing-key, or makes one. Replicas need the same
// key.
func (f flags) signer() (proof.PrivateKey, error) {
	if f.signingKey == "" { // the demo's
		return proof.NewPrivateKey(), nil
	}
	text, err := os.ReadFile(f.signingKey)
	if err == nil {
		return proof.ParsePrivateKey(text)
	}
	if !errors.Is(err, os.ErrNotExist) {
		return proof.PrivateKey{}, err
	}
	key := proof.NewPrivateKey()
	file, err := os.OpenFile(f.signingKey, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return proof.PrivateKey{}, err
	}
	_, err = file.Write(key.JWK())
	return key, errors.Join(err, file.Close())
}

func tryThis(url, token string) string {
	return fmt.Sprintf(`
# The page asks for the token. flow.sh has an acquire, a fenced write and a takeover, by curl.
export URL=%s TOKEN=%s
curl -s -H "Authorization: Bearer $TOKEN" -H 'Content-Type: application/json' $URL/v1/locks/acquire \
  -d '{"resource":"demo:billing-close:2026-04","ownerId":"worker-a","ttlSeconds":60}'
sh examples/lockserver/flow.sh
`, url, token)
}
