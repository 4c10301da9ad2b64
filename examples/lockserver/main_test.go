package main

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/lockclient/driver/memory"
	"github.com/fencepost-go/fencepost/lockclient/lockhttp"
)

// start runs the demo until the test ends, and returns what its first line says.
func start(t *testing.T) (first struct{ URL, UI, Token string }) {
	t.Helper()
	t.Setenv("FENCEPOST_DATABASE_URL", pgtest.Database(t)) // else run starts a server of its own
	ctx, cancel := context.WithCancel(context.Background())
	out, in := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		err := run(ctx, flags{demo: true, listen: "127.0.0.1:0"}, in)
		in.CloseWithError(err)
		ended <- err
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	lines := bufio.NewReader(out)
	line, err := lines.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	go io.Copy(io.Discard, lines)
	if err := json.Unmarshal([]byte(line), &first); err != nil || first.UI != first.URL+"/ui" || first.Token == "" {
		t.Fatalf("%v: %s", err, line)
	}
	return first
}

// TestFlow runs flow.sh against the demo, twice at once. Its control has no token.
func TestFlow(t *testing.T) {
	demo := start(t)
	flow := func(token, period string) (string, error) {
		c := exec.CommandContext(t.Context(), "sh", "flow.sh")
		c.Env = append(os.Environ(), "URL="+demo.URL, "TOKEN="+token, "PERIOD="+period)
		out, err := c.CombinedOutput()
		return string(out), err
	}
	var both sync.WaitGroup
	for _, period := range []string{"2026-04", "2026-05"} {
		both.Go(func() {
			out, err := flow(demo.Token, period)
			if err != nil || !strings.Contains(out, "\nok: tokens 1, 2, 4\n") {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
	both.Wait()
	if out, err := flow("x", "2026-06"); err == nil {
		t.Errorf("without a token:\n%s", out)
	}
}

// TestShutdown: a waiting request is answered when the server ends.
func TestShutdown(t *testing.T) {
	issuer := memory.NewServer().Issuer()
	var who identities
	token := who.add(lockhttp.Identity{Subject: "a", Tenant: "a", Templates: templates})
	locks, err := lockhttp.New(issuer, who.authenticate, nil)
	if err != nil {
		t.Fatal(err)
	}
	s := &server{issuer: issuer, locks: locks}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.serve(ctx, listener) }()
	acquire := func(more string) (int, error) {
		r, _ := http.NewRequest("POST", "http://"+listener.Addr().String()+"/v1/locks/acquire",
			strings.NewReader(`{"resource":"a:billing-close:1","ttlSeconds":600`+more+`}`))
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Authorization", "Bearer "+token)
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			return 0, err
		}
		return resp.StatusCode, resp.Body.Close()
	}
	if status, err := acquire(""); status != 200 || err != nil {
		t.Fatal(status, err)
	}
	waited := make(chan int, 1)
	go func() {
		status, err := acquire(`,"waitSeconds":60`)
		if err != nil {
			t.Error(err)
		}
		waited <- status
	}()
	time.Sleep(50 * time.Millisecond) // so that it waits; if it arrives later, it is refused or not served
	cancel()
	if status := <-waited; status != 503 && status != 0 {
		t.Errorf("the request that waited: %d", status)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestIdentities: the file's tokens, and certificates, give exactly what they
// say; a header that names a tenant gives nothing.
func TestIdentities(t *testing.T) {
	dir := t.TempDir()
	hash := sha256.Sum256([]byte("secret"))
	file := filepath.Join(dir, "identities.json")
	write := func(name, text string) {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(file, `[{"sha256":"`+hex.EncodeToString(hash[:])+`","subject":"ada","tenant":"acme","operator":true}]`)
	who, err := readIdentities(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		headers []string
		subject string
	}{
		{[]string{"Bearer secret"}, "ada"}, {[]string{"bearer secret"}, "ada"}, {nil, ""}, {[]string{"Bearer Secret"}, ""}, {[]string{"Basic secret"}, ""},
		{[]string{"Bearer secret", "Bearer secret"}, ""}, {[]string{"Bearer " + hex.EncodeToString(hash[:])}, ""},
	} {
		r, _ := http.NewRequest("GET", "/", nil)
		r.Header["Authorization"] = c.headers
		r.Header.Set("X-Tenant", "umbrella")
		id, err := who.authenticate(r)
		if c.subject == "" {
			if err == nil {
				t.Errorf("%q: %+v", c.headers, id)
			}
		} else if err != nil || id.Subject != c.subject || id.Tenant != "acme" || !id.Operator {
			t.Errorf("%q: %+v, %v", c.headers, id, err)
		}
	}
	digits := hex.EncodeToString(hash[:])
	entry := `{"sha256":"` + digits + `","subject":"a","tenant":"b"}`
	for _, bad := range []string{
		`{}`, `[{"sha256":"00","subject":"a","tenant":"b"}]`, `[{"token":"x"}]`, `[{"sha256":"` + digits + `","subject":"a"}]`,
		`[` + entry + `,` + entry + `]`, `[` + entry + `,` + strings.Replace(entry, digits, strings.ToUpper(digits), 1) + `]`,
		`[` + entry + `]]`, `[` + entry + `] more`, `[` + entry + `] [` + entry + `]`,
	} {
		write(file, bad)
		if _, err := readIdentities(file); err == nil {
			t.Errorf("taken: %s", bad)
		}
	}
}

// TestMTLS: over TLS the certificate is the identity; one that another authority
// signed is refused in the handshake.
func TestMTLS(t *testing.T) {
	dir := t.TempDir()
	ours, theirs := newAuthority(t), newAuthority(t)
	cert, key := ours.issue(t, pkix.Name{CommonName: "server"})
	f := flags{certificate: filepath.Join(dir, "cert"), key: filepath.Join(dir, "key"), clientCertificate: filepath.Join(dir, "ca")}
	for name, text := range map[string][]byte{f.certificate: cert, f.key: key, f.clientCertificate: ours.pem} {
		if err := os.WriteFile(name, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	config, err := f.tls()
	if err != nil {
		t.Fatal(err)
	}
	var who identities
	issuer := memory.NewServer().Issuer()
	locks, err := lockhttp.New(issuer, who.authenticate, nil)
	if err != nil {
		t.Fatal(err)
	}
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- (&server{issuer: issuer, locks: locks}).serve(ctx, tls.NewListener(plain, config)) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	acquire := func(by *authority, name *pkix.Name, resource string) (int, string, error) {
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(ours.pem)
		client := &tls.Config{RootCAs: roots}
		if name != nil {
			cert, key := by.issue(t, *name)
			pair, err := tls.X509KeyPair(cert, key)
			if err != nil {
				t.Fatal(err)
			}
			client.Certificates = []tls.Certificate{pair}
		}
		transport := &http.Transport{TLSClientConfig: client}
		defer transport.CloseIdleConnections()
		resp, err := (&http.Client{Transport: transport}).Post("https://"+plain.Addr().String()+"/v1/locks/acquire", "application/json",
			strings.NewReader(`{"resource":"`+resource+`","ttlSeconds":60}`))
		if err != nil {
			return 0, "", err
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		return resp.StatusCode, string(text), err
	}
	acme := &pkix.Name{CommonName: "worker-7", Organization: []string{"acme"}}
	if status, text, err := acquire(ours, acme, "acme:billing-close:1"); status != 200 || err != nil {
		t.Errorf("%d %s %v", status, text, err)
	}
	if status, text, err := acquire(ours, &pkix.Name{CommonName: "worker-8", Organization: []string{"acme"}}, "acme:billing-close:1"); !strings.Contains(text, `"ownerId":"worker-7"`) {
		t.Errorf("%d %s %v", status, text, err)
	}
	for name, c := range map[string]struct {
		by       *authority
		name     *pkix.Name
		resource string
		status   int
	}{
		"another tenant's":    {ours, acme, "umbrella:billing-close:1", 403},
		"no certificate":      {ours, nil, "acme:billing-close:1", 401},
		"no organization":     {ours, &pkix.Name{CommonName: "x"}, "acme:billing-close:1", 401},
		"two organizations":   {ours, &pkix.Name{CommonName: "x", Organization: []string{"acme", "umbrella"}}, "acme:billing-close:1", 401},
		"another authority's": {theirs, acme, "acme:billing-close:1", 0},
	} {
		if status, text, err := acquire(c.by, c.name, c.resource); status != c.status || (c.status == 0) != (err != nil) {
			t.Errorf("%s: %d %s %v", name, status, text, err)
		}
	}
}

type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{cert, key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
}

func (a *authority) issue(t *testing.T, name pkix.Name) (cert, key []byte) {
	t.Helper()
	own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: name, NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &own.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(own)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})
}
