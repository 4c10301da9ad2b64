package main

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
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

// TestIdentities: a token gives exactly what the file says; a header that names a tenant gives nothing.
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
