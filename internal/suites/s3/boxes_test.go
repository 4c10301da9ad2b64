//go:build unix

package s3suite

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/process"
	"github.com/fencepost-go/fencepost/internal/suites/s3/gateway"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/s3fence"
)

// box is a program between a client and the store.
type box struct {
	program string
	// config is its configuration, with the box's address, the store's, and a
	// directory of its own.
	config  func(own, store, dir string) string
	args    func(own, config, dir string) []string
	forward bool // it is a forward proxy, which the client knows
	says    string
}

const squidConfig = `http_port %[1]s
http_access allow all
cache_mem 16 MB
maximum_object_size_in_memory 8 MB
access_log none
cache_log %[2]s/cache.log
pid_filename %[2]s/pid
coredump_dir %[2]s
shutdown_lifetime 0 seconds
memory_cache_shared off
`

// A service of its own shares no memory with other Squids.
func squidArgs(own, config, _ string) []string {
	return []string{"-N", "-n", "box" + own[strings.LastIndexByte(own, ':')+1:], "-f", config}
}

func nginxArgs(_, config, dir string) []string {
	return []string{"-p", dir, "-e", filepath.Join(dir, "error.log"), "-c", config}
}

// nginx returns a configuration with more in front of the store.
func nginx(http, more string) func(own, store, dir string) string {
	return func(own, store, dir string) string {
		return fmt.Sprintf(`daemon off; pid %[3]s/pid; events {}
http {
	access_log off; client_body_temp_path %[3]s/body; proxy_temp_path %[3]s/proxy; fastcgi_temp_path %[3]s/f; uwsgi_temp_path %[3]s/u; scgi_temp_path %[3]s/s;
	client_max_body_size 0; `+http+`
	server { listen %[1]s; location / {
		proxy_pass http://%[2]s; proxy_set_header Host $http_host; proxy_http_version 1.1; proxy_set_header Range $http_range; proxy_set_header If-Match $http_if_match; `+more+`
	} }
}`, own, store, dir)
	}
}

// haproxy returns a configuration with what it does with a request.
func haproxy(does string) func(own, store, dir string) string {
	return func(own, store, _ string) string {
		return fmt.Sprintf("defaults\n\tmode http\n\ttimeout connect 1m\n\ttimeout client 5m\n\ttimeout server 5m\n"+
			"frontend own\n\tbind %s\n\t%s\nbackend store\n\tserver store %s\n", own, does, store)
	}
}

func haproxyArgs(_, config, _ string) []string { return []string{"-db", "-f", config} }

var boxes = map[string]box{
	"nginx":                {"nginx", nginx("", ""), nginxArgs, false, ""},
	"squid":                {"squid", func(own, _, dir string) string { return fmt.Sprintf(squidConfig, own, dir) }, squidArgs, true, ""},
	"haproxy":              {"haproxy", haproxy("default_backend store"), haproxyArgs, false, ""},
	"haproxy for a moment": {"haproxy", haproxy("http-request return status 404 content-type text/html string \"<html><body>no such route</body></html>\""), haproxyArgs, false, "404"},
	"nginx that caches": {"nginx", nginx(`proxy_cache_path %[3]s/cache keys_zone=z:1m;`,
		`proxy_cache z; proxy_cache_valid any 10m; proxy_cache_key $request_uri$http_range; proxy_ignore_headers Cache-Control Expires Set-Cookie Vary;`), nginxArgs, false, "a cache serves it"},
	"nginx that unpacks": {"nginx", nginx("", "gunzip on;"), nginxArgs, false, "transformed"},
	"varnish": {"varnishd", func(_, store, _ string) string {
		host, port, _ := net.SplitHostPort(store)
		return fmt.Sprintf("vcl 4.1;\nbackend default { .host = %q; .port = %q; }\n", host, port)
	}, func(own, config, dir string) []string {
		return []string{"-F", "-a", own, "-f", config, "-n", filepath.Join(dir, "work"), "-s", "malloc,16m"}
	}, false, "transformed"},
}

// start runs the box until the test ends and returns a client through it.
func (b box) start(t *testing.T, store string) func(o *s3.Options) {
	t.Helper()
	program, err := exec.LookPath(b.program)
	if err != nil {
		program = filepath.Join("/usr/sbin", b.program)
	}
	own := process.FreeAddr(t)
	dir, err := os.MkdirTemp("/tmp", "box")
	testkit.Must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o777); err != nil { // some drop their rights
		t.Fatal(err)
	}
	config := filepath.Join(dir, "config")
	testkit.Must(t, os.WriteFile(config, []byte(b.config(own, strings.TrimPrefix(store, "http://"), dir)), 0o644))
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, program, b.args(own, config, dir)...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	testkit.Must(t, cmd.Start())
	t.Cleanup(func() {
		cancel()
		_ = cmd.Wait()
		if t.Failed() {
			t.Log(out.String())
		}
	})
	testkit.Eventually(t, b.program+" to listen", func() bool {
		conn, err := net.Dial("tcp", own)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
	return func(o *s3.Options) {
		via := &http.Transport{MaxIdleConnsPerHost: 16}
		if b.forward {
			via.Proxy = http.ProxyURL(&url.URL{Scheme: "http", Host: own})
		} else {
			o.BaseEndpoint = new("http://" + own)
		}
		o.HTTPClient = &http.Client{Transport: via}
	}
}

// What is between a program and its store: a box that caches or transforms is refused
// by Open, by name. Through one that is accepted, reads show what was written around
// it, whatever the objects' Cache-Control allows.
func TestBoxesInBetween(t *testing.T) {
	g := startGateway(t)
	direct := gatewayClient(g, g.URL)
	report, err := s3fence.Probe(t.Context(), direct, bucket, nil)
	testkit.Must(t, err)
	for name, c := range boxes {
		t.Run(name, func(t *testing.T) {
			client := gatewayClient(g, g.URL, c.start(t, g.URL))
			b, err := s3fence.Open(t.Context(), client, bucket, nil)
			if c.says != "" {
				if errors.Is(err, guard.ErrNotFound) || err == nil || !strings.Contains(err.Error(), c.says) {
					t.Errorf("Open = %v, want it to say %q", err, c.says)
				}
				return
			}
			testkit.Must(t, err)
			around, err := s3fence.Open(t.Context(), direct, bucket, &s3fence.Options{Report: report})
			testkit.Must(t, err)
			h := &s3fence.Headers{ContentType: "text/csv", CacheControl: "public, max-age=3600"}
			for _, mode := range []s3fence.Mode{s3fence.Sealed, s3fence.SealedGzip, pointers} {
				name := fmt.Sprint(name, "/", nameOf(mode))
				through, err := in(b, mode)
				testkit.Must(t, err)
				other, err := in(around, mode)
				testkit.Must(t, err)
				if _, err := through.Get(t.Context(), name); !errors.Is(err, guard.ErrNotFound) {
					t.Errorf("before the first write: %v", err)
				}
				for token := guard.Token(1); token < 6; token++ {
					by := []handle{through, other}[token%2]
					testkit.Must(t, by.Put(t.Context(), claim(token), name, []byte(token.String()), h))
					object, err := through.Get(t.Context(), name)
					testkit.Must(t, err)
					body, err := io.ReadAll(object.Body)
					object.Body.Close()
					if err != nil || string(body) != token.String() || object.Mark.Token != token {
						t.Errorf("read %q at %d, %v, want %d", body, object.Mark.Token, err, token)
					}
				}
			}
		})
	}
}

// accepted is a PUT of the object that the store applied, as seen by the proxy:
// it took effect at some time between sent and answered.
type accepted struct {
	token          guard.Token
	attempt        string
	ifMatch, etag  string
	sent, answered time.Time
}

// proxy stands in front of a store. It pauses writes, loses them, loses their
// answers, and records what the store accepted, lost responses included.
type proxy struct {
	*httptest.Server
	store string
	via   *http.Transport

	mu   sync.Mutex
	rng  *rand.Rand
	seen []accepted
}

func newProxy(t *testing.T, g *gateway.Gateway) *proxy {
	p := &proxy{
		store: strings.TrimPrefix(g.URL, "http://"), rng: rand.New(rand.NewPCG(3, 4)),
		via: &http.Transport{MaxIdleConnsPerHost: 64, DisableCompression: true},
	}
	p.Server = httptest.NewServer(p)
	t.Cleanup(p.Close)
	return p
}

// draw decides about a write.
func (p *proxy) draw() (pause time.Duration, loseRequest, loseAnswer bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.rng.IntN(8) == 0 {
		pause = time.Duration(p.rng.IntN(15_000)) * time.Microsecond
	}
	n := p.rng.IntN(100)
	return pause, n < 3, n >= 3 && n < 9
}

func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	write := r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, "/"+key)
	loseAnswer := false
	if write {
		var pause time.Duration
		var loseRequest bool
		pause, loseRequest, loseAnswer = p.draw()
		time.Sleep(pause)
		if loseRequest {
			panic(http.ErrAbortHandler)
		}
	}
	sent := time.Now()
	answer, content, err := p.forward(r, body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	if write && answer.StatusCode == http.StatusOK {
		token, _ := guard.ParseToken(r.Header.Get("X-Amz-Meta-Fencing-Token"))
		p.mu.Lock()
		p.seen = append(p.seen, accepted{
			token: token, attempt: r.Header.Get("X-Amz-Meta-Attempt"),
			ifMatch: r.Header.Get("If-Match"), etag: answer.Header.Get("Etag"), sent: sent, answered: time.Now(),
		})
		p.mu.Unlock()
	}
	if loseAnswer {
		panic(http.ErrAbortHandler)
	}
	maps.Copy(w.Header(), answer.Header)
	w.WriteHeader(answer.StatusCode)
	w.Write(content)
}

// forward sends on the request unchanged, whatever happens to its sender. The
// signature covers the host, so that stays.
func (p *proxy) forward(r *http.Request, body []byte) (*http.Response, []byte, error) {
	out := r.Clone(context.WithoutCancel(r.Context()))
	out.RequestURI, out.URL.Scheme, out.URL.Host = "", "http", p.store
	out.Body, out.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	answer, err := p.via.RoundTrip(out)
	if err != nil {
		return nil, nil, err
	}
	defer answer.Body.Close()
	content, err := io.ReadAll(answer.Body)
	return answer, content, err
}
