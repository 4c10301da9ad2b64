// Package httpsuite tests package httpfence behind proxies.
package httpsuite

import (
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/guard/proof"
	"github.com/fencepost-go/fencepost/httpfence"
	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/internal/process"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/sqlfence"
	"github.com/fencepost-go/fencepost/sqlfence/sqladmin"
)

// service is two replicas on one PostgreSQL. The first to be asked carries out the
// request and loses its response: it closes the connection.
type service struct {
	pool   *pgxpool.Pool
	db     *sqlfence.DB[pgx.Tx]
	urls   [2]string // host:port
	asked  atomic.Int64
	before func() // between the first one's COMMIT and its closing
}

func newService(t *testing.T) *service {
	t.Helper()
	s := &service{pool: pgtest.Pool(t), before: func() {}}
	var err error
	if s.db, err = sqlfence.Pgx(s.pool, &sqlfence.Options{LockTimeout: testkit.Patience, IdleTimeout: testkit.Patience, CommitTimeout: testkit.Patience}); err != nil {
		t.Fatal(err)
	}
	testkit.Must(t, sqladmin.Pgx(s.pool).Migrate(t.Context()))
	if _, err := s.pool.Exec(t.Context(), `CREATE TABLE rows (id bigint GENERATED ALWAYS AS IDENTITY, key text UNIQUE)`); err != nil {
		t.Fatal(err)
	}
	resource := guard.Must(httpfence.Named(guard.Must(guard.NewTemplate("account:{id}")), httpfence.Bindings{"id": httpfence.PathValue("id")}))
	fence, err := httpfence.NewTx(s.db.Transactor(), resource, &httpfence.Options{Logger: testkit.Logger(t), MaxWait: testkit.Patience})
	testkit.Must(t, err)
	mux := http.NewServeMux()
	mux.Handle("/accounts/{id}", fence.InTxFunc(func(w http.ResponseWriter, r *http.Request) error {
		tx, ok := s.db.TxFrom(r.Context())
		if !ok {
			return errors.New("no transaction")
		}
		// The key is stored in the transaction of the work, so a retry finds it.
		var key any
		if k := r.Header.Get("Idempotency-Key"); k != "" {
			key = k
		}
		if _, err := tx.Exec(r.Context(), "INSERT INTO rows (key) VALUES ($1) ON CONFLICT DO NOTHING", key); err != nil {
			return err
		}
		w.WriteHeader(http.StatusCreated)
		return nil
	}))
	for i := range s.urls {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if s.asked.Add(1) > 1 {
				mux.ServeHTTP(w, r)
				return
			}
			mux.ServeHTTP(httptest.NewRecorder(), r)
			s.before()
			if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
				_ = conn.Close()
			}
		}))
		t.Cleanup(server.Close)
		s.urls[i] = server.Listener.Addr().String()
	}
	return s
}

// proxies start a proxy in front of the replicas and return its address; the
// setting is a line of its configuration.
var proxies = map[string]func(t *testing.T, replicas [2]string, setting string) string{
	"nginx": func(t *testing.T, replicas [2]string, setting string) string {
		dir, address := t.TempDir(), process.FreeAddr(t)
		config := fmt.Sprintf(`daemon off;
master_process off;
pid %[1]s/pid;
error_log %[1]s/error.log;
events {}
http {
  access_log off;
  client_body_temp_path %[1]s/body;
  proxy_temp_path %[1]s/proxy;
  fastcgi_temp_path %[1]s/fastcgi;
  uwsgi_temp_path %[1]s/uwsgi;
  scgi_temp_path %[1]s/scgi;
  upstream replicas { server %[3]s; server %[4]s; }
  server {
    listen %[2]s;
    proxy_connect_timeout 5m; proxy_read_timeout 5m; proxy_send_timeout 5m;
    location / { proxy_pass http://replicas; %[5]s }
  }
}
`, dir, address, replicas[0], replicas[1], setting)
		start(t, dir, address, config, "nginx", "-p", dir, "-e", filepath.Join(dir, "error.log"), "-c")
		return address
	},
	"haproxy": func(t *testing.T, replicas [2]string, setting string) string {
		dir, address := t.TempDir(), process.FreeAddr(t)
		config := fmt.Sprintf(`defaults
  mode http
  timeout connect 5m
  timeout client 5m
  timeout server 5m
  retries 1
  option redispatch 1
frontend in
  bind %s
  default_backend replicas
backend replicas
  balance roundrobin
  %s
  server a %s
  server b %s
`, address, setting, replicas[0], replicas[1])
		start(t, dir, address, config, "haproxy", "-db", "-f")
		return address
	},
	// Varnish that makes one line of several with a comma, as Apache does by itself and as
	// RFC 9110, section 5.3, allows everybody.
	"varnish": func(t *testing.T, replicas [2]string, setting string) string {
		dir, address := guard.Must(os.MkdirTemp("/tmp", "varnish")), process.FreeAddr(t)
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		if err := os.Chmod(dir, 0o777); err != nil { // it drops its rights
			t.Fatal(err)
		}
		host, port, _ := net.SplitHostPort(replicas[0])
		config := fmt.Sprintf(`vcl 4.1;
import std;
backend default { .host = %q; .port = %q; .connect_timeout = 5m; .first_byte_timeout = 5m; }
sub vcl_recv {
  std.collect(req.http.X-Fencing-Token);
  std.collect(req.http.X-Fencing-Lease);
  std.collect(req.http.X-Fencing-Resource);
  std.collect(req.http.X-Fencing-Proof);
  return (pass);
}
`, host, port)
		start(t, dir, address, config, "varnishd", "-F", "-a", address, "-n", filepath.Join(dir, "work"), "-s", "malloc,16m", "-f")
		return address
	},
}

// start runs a proxy until the test ends. It fails if there is none.
func start(t *testing.T, dir, address, config, name string, args ...string) {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		for _, path = range []string{"/usr/sbin/" + name, "/usr/local/sbin/" + name} {
			if _, err = os.Stat(path); err == nil {
				break
			}
		}
		if err != nil {
			t.Fatalf("%s is not installed; run .ci/setup servers", name)
		}
	}
	file := filepath.Join(dir, "config")
	testkit.Must(t, os.WriteFile(file, []byte(config), 0o644))
	var said strings.Builder
	cmd := exec.Command(path, append(args, file)...)
	cmd.Stdout, cmd.Stderr = &said, &said
	testkit.Must(t, cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		<-ended
	})
	testkit.Eventually(t, name+" to listen", func() bool {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			_ = conn.Close()
			return true
		}
		select {
		case err := <-ended:
			ended <- err
			t.Fatalf("%s: %v\n%s", name, err, said.String())
		default:
		}
		return false
	})
}

const (
	nginxDefault  = ""
	nginxAll      = "proxy_next_upstream error timeout non_idempotent;"
	nginxSafe     = "proxy_next_upstream off;"
	haproxyAll    = "retry-on all-retryable-errors"
	haproxySafe   = "retry-on conn-failure"
	haproxySafest = "retry-on none"
)

// TestReplays: the first replica has committed, and its response is lost. What
// the proxy does then is the table of PROXIES.md, row by row.
func TestReplays(t *testing.T) {
	for _, c := range []struct {
		proxy, setting, method string
		rows                   int // under a live token, without a key
		replayed               bool
	}{
		{"nginx", nginxDefault, "PUT", 2, true},
		{"nginx", nginxDefault, "POST", 1, false},
		{"nginx", nginxAll, "POST", 2, true},
		{"nginx", nginxSafe, "PUT", 1, false},
		{"nginx", nginxSafe, "POST", 1, false},
		{"haproxy", haproxyAll, "POST", 2, true},
		{"haproxy", haproxyAll, "PUT", 2, true},
		{"haproxy", haproxySafe, "POST", 1, false},
		{"haproxy", haproxySafest, "PUT", 1, false},
	} {
		for _, case_ := range []string{"live token", "live token and a key", "taken over"} {
			t.Run(strings.Join([]string{c.proxy, strings.TrimSuffix(c.setting, ";"), c.method, case_}, "/"), func(t *testing.T) {
				s := newService(t)
				if case_ == "taken over" {
					s.before = func() {
						testkit.Check(t, s.db.Raise(context.Background(), guard.Claim{Resource: "account:acme", Token: 11, LeaseID: "b"}))
					}
				}
				address := proxies[c.proxy](t, s.urls, c.setting)
				ctx := guard.WithClaim(t.Context(), guard.Claim{Resource: "account:acme", Token: 10, LeaseID: "a"})
				req, err := http.NewRequestWithContext(ctx, c.method, "http://"+address+"/accounts/acme", strings.NewReader("x"))
				testkit.Must(t, err)
				if case_ == "live token and a key" {
					req.Header.Set("Idempotency-Key", "k")
				}
				resp, err := guard.Must(httpfence.NewTransport(&http.Transport{DisableKeepAlives: true}, []string{"http://" + address}, nil)).RoundTrip(req)
				testkit.Must(t, err)
				_, _ = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
				rows, status := c.rows, 201
				if case_ != "live token" {
					rows = 1
				}
				switch {
				case !c.replayed:
					status = 502 // an unknown outcome to the client
				case case_ == "taken over":
					status = 412
				}
				var n int
				testkit.Must(t, s.pool.QueryRow(t.Context(), "SELECT count(*) FROM rows").Scan(&n))
				if n != rows || resp.StatusCode != status || (s.asked.Load() == 2) != c.replayed {
					t.Errorf("%d rows, %d, asked %d times; want %d rows, %d", n, resp.StatusCode, s.asked.Load(), rows, status)
				}
				if err := httpfence.ErrorFrom(resp); errors.Is(err, guard.ErrStale) != (status == 412) {
					t.Errorf("%v", err)
				}
			})
		}
	}
}

// TestFieldsThroughProxies: the claim arrives as it was sent, or is refused: fields that
// were doubled or joined, and fields that a proxy was told to drop.
func TestFieldsThroughProxies(t *testing.T) {
	for name, start := range proxies {
		t.Run(name, func(t *testing.T) {
			s := newService(t)
			s.asked.Store(1) // none of them loses its answer
			address := start(t, s.urls, "")
			for _, c := range []struct {
				header http.Header
				status int
			}{
				{http.Header{"X-Fencing-Token": {"10"}, "X-Fencing-Lease": {"a"}, "X-Fencing-Resource": {"account:acme"}}, 201},
				{http.Header{"X-Fencing-Token": {"10", "10"}, "X-Fencing-Lease": {"a"}, "X-Fencing-Resource": {"account:acme"}}, 400},
				{http.Header{"X-Fencing-Token": {"10"}, "X-Fencing-Lease": {"a", "b"}, "X-Fencing-Resource": {"account:acme"}}, 400},
				// Joined, the same lease twice must not become another one, which raises
				// the mark: then the holder would be a conflict.
				{http.Header{"X-Fencing-Token": {"11"}, "X-Fencing-Lease": {"a", "a"}, "X-Fencing-Resource": {"account:acme"}}, 400},
				{http.Header{"X-Fencing-Token": {"11"}, "X-Fencing-Lease": {"a"}, "X-Fencing-Resource": {"account:acme"}}, 201},
				{http.Header{"X-Fencing-Token": {"12"}, "X-Fencing-Lease": {"%C3%A4%2C%20b"}, "X-Fencing-Resource": {"account:acme"}}, 201},
				{http.Header{"X-Fencing-Token": {"10"}, "X-Fencing-Lease": {"a"}, "X-Fencing-Resource": {"account:acme", "account:other"}}, 400},
				{http.Header{"X-Fencing-Token": {"10"}, "X-Fencing-Lease": {"a"}, "X-Fencing-Resource": {"account:other"}}, 400},
				{http.Header{"X-Fencing-Token": {"10"}, "X-Fencing-Resource": {"account:acme"}}, 428},
				{http.Header{"X_Fencing_Token": {"10"}, "X-Fencing-Lease": {"a"}, "X-Fencing-Resource": {"account:acme"}}, 428},
				{http.Header{"X-Fencing-Token": {"9"}, "X-Fencing-Lease": {"a"}, "X-Fencing-Resource": {"account:acme"}}, 412},
			} {
				req, err := http.NewRequestWithContext(t.Context(), "POST", "http://"+address+"/accounts/acme", nil)
				testkit.Must(t, err)
				req.Header = c.header
				resp, err := http.DefaultTransport.RoundTrip(req)
				testkit.Must(t, err)
				_ = resp.Body.Close()
				if resp.StatusCode != c.status {
					t.Errorf("%v: %d, want %d", c.header, resp.StatusCode, c.status)
				}
			}
		})
	}
}

var proven = guard.Claim{Resource: "acme:billing-close:2026-04", Token: 34, LeaseID: "019f1b2c"}

// proofs has what both readers of proofs need.
type proofs struct {
	key      proof.PrivateKey
	secret   ed25519.PrivateKey
	good     string
	verifier *proof.Verifier
}

func newProofs(t testing.TB) *proofs {
	p := &proofs{key: proof.NewPrivateKey()}
	var jwk struct{ D string }
	testkit.Must(t, json.Unmarshal(p.key.JWK(), &jwk))
	p.secret = ed25519.NewKeyFromSeed(guard.Must(base64.RawURLEncoding.DecodeString(jwk.D)))
	p.good = guard.Must(guard.Must(proof.NewSigner(p.key, nil)).Sign(proven, "ledger", time.Unix(4102444800, 0)))
	keys := guard.Must(proof.NewKeys(context.Background(), proof.Static(p.key.Public()), nil))
	p.verifier = proof.NewVerifier(keys)
	return p
}

// sign signs any header and payload.
func (p *proofs) sign(header, payload string) string {
	signed := base64.RawURLEncoding.EncodeToString([]byte(header)) + "." + base64.RawURLEncoding.EncodeToString([]byte(payload))
	return signed + "." + base64.RawURLEncoding.EncodeToString(ed25519.Sign(p.secret, []byte(signed)))
}

// jose returns the payload that go-jose reads, and whether it accepts the proof.
func (p *proofs) jose(compact string) ([]byte, bool) {
	jws, err := jose.ParseSignedCompact(compact, []jose.SignatureAlgorithm{jose.EdDSA})
	if err != nil {
		return nil, false
	}
	payload, err := jws.Verify(p.secret.Public())
	return payload, err == nil
}

// parts returns the header and the payload of the good proof.
func (p *proofs) parts() (header, payload string) {
	parts := strings.Split(p.good, ".")
	return string(guard.Must(base64.RawURLEncoding.DecodeString(parts[0]))), string(guard.Must(base64.RawURLEncoding.DecodeString(parts[1])))
}

// FuzzProofs signs arbitrary headers and payloads, and changes the result: what
// package proof accepts is accepted by go-jose and says the same there.
func FuzzProofs(f *testing.F) {
	p := newProofs(f)
	header, payload := p.parts()
	f.Add(header, payload, 0, byte(0))
	f.Add(header, payload, 7, byte('A'))
	f.Add(strings.Replace(header, "{", `{"alg":"none",`, 1), payload, 0, byte(0))
	f.Add(header, strings.Replace(payload, "{", `{"fen":"35",`, 1), 0, byte(0))
	f.Fuzz(func(t *testing.T, header, payload string, at int, with byte) {
		compact := []byte(p.sign(header, payload))
		if with != 0 && at >= 0 && at < len(compact) {
			compact[at] = with
		}
		if p.verifier.Verify(t.Context(), string(compact), "ledger", proven) != nil || strings.Contains(header, `"Ed25519"`) { // a name that go-jose does not know
			return
		}
		read, ok := p.jose(string(compact))
		var said struct{ Iss, Aud, Res, Fen, Lid string }
		if !ok || json.Unmarshal(read, &said) != nil || said.Res != proven.Resource || said.Fen != "34" || said.Lid != proven.LeaseID || said.Aud != "ledger" || said.Iss != "fencepost" {
			t.Errorf("%s: go-jose %v: %s", compact, ok, read)
		}
	})
}

// TestProofsAndJOSE: the profile of proofs is narrower than that of a JOSE library, which
// accepts all of these. The control is a proof as it should be.
func TestProofsAndJOSE(t *testing.T) {
	p := newProofs(t)
	header, payload := p.parts()
	for name, c := range map[string]struct {
		compact string
		ours    bool
	}{
		"control":                     {p.good, true},
		"signed again":                {p.sign(header, payload), true},
		"another type":                {p.sign(strings.Replace(header, proof.Type, "JWT", 1), payload), false},
		"a key in the header":         {p.sign(strings.Replace(header, "{", `{"jku":"https://evil.example",`, 1), payload), false},
		"a member of the claim twice": {p.sign(header, strings.Replace(payload, "{", `{"fen":"35",`, 1)), false},
		"a member in capitals":        {p.sign(header, strings.Replace(payload, "fen", "FEN", 1)), false},
		"a payload that is no JSON":   {p.sign(header, payload+"}"), false},
		"a line break":                {strings.Replace(p.good, ".", "\n.", 1), false},
	} {
		_, theirs := p.jose(c.compact)
		if err := p.verifier.Verify(t.Context(), c.compact, "ledger", proven); (err == nil) != c.ours || !theirs {
			t.Errorf("%s: %v; go-jose accepts: %v", name, err, theirs)
		}
	}
}
