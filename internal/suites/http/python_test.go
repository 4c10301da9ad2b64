package httpsuite

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/httpfence"
	"github.com/fencepost-go/fencepost/internal/testkit"
)

const httpData = "../../../httpfence/testdata/"

// python starts the server of httpfence/testdata, which was written from httpfence/FORMAT.md,
// and returns its URL.
func python(t *testing.T) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "python3", httpData+"server.py")
	cmd.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	testkit.Must(t, err)
	out, err := cmd.StdoutPipe()
	testkit.Must(t, err)
	if err := cmd.Start(); err != nil {
		t.Fatalf("this test needs Python, which .ci/setup tests installs: %v", err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	var port int
	if _, err := fmt.Fscanln(out, &port); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("http://127.0.0.1:%d", port)
}

// golang is a server in Go that guards the same paths.
func golang(t *testing.T) string {
	t.Helper()
	fence := guard.Must(httpfence.New(downStore{guard.NewMemory()}, func(r *http.Request) (string, error) {
		_, name, _ := strings.Cut(r.URL.EscapedPath()[1:], "/")
		if strings.HasPrefix(name, "absent:") {
			return "", guard.ErrNotFound
		}
		return url.PathUnescape(name)
	}, &httpfence.Options{Logger: testkit.Logger(t)}))
	mux := http.NewServeMux()
	mux.Handle("/r/", fence.Admit(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })))
	mux.HandleFunc("/raise/", fence.Raise)
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server.URL
}

// downStore cannot be reached for the resources that begin with "down:".
type downStore struct{ guard.Store }

func (s downStore) Admit(ctx context.Context, c guard.Claim) (guard.Mark, error) {
	if strings.HasPrefix(c.Resource, "down:") {
		return guard.Mark{}, guard.Unavailable("admit", c, nil)
	}
	return s.Store.Admit(ctx, c)
}

// TestVectorsOverTheNetwork: both servers decide each request of httpfence's vectors alike,
// byte by byte as it was sent.
func TestVectorsOverTheNetwork(t *testing.T) {
	var vectors []struct {
		Case, Resource string
		Requests       []struct {
			Method, Path                    string
			Fields                          [][2]string
			Status                          int
			Reason, Field, Claimed, Guarded string
		}
	}
	if err := json.Unmarshal(guard.Must(os.ReadFile(httpData+"vectors.json")), &vectors); err != nil || len(vectors) < 70 {
		t.Fatal(len(vectors), err)
	}
	for language, server := range map[string]string{"Go": golang(t), "Python": python(t)} {
		for _, v := range vectors {
			for i, step := range v.Requests {
				if step.Method == "" {
					step.Method = http.MethodPut
				}
				if step.Path == "" {
					step.Path = "/r/"
				}
				var request []byte
				for _, c := range fmt.Sprintf("%s %s%s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 0\r\n", step.Method, step.Path, httpfence.Encode(v.Resource)) {
					request = append(request, byte(c))
				}
				for _, field := range step.Fields {
					for _, c := range field[0] + ": " + field[1] + "\r\n" { // a character is a byte
						request = append(request, byte(c))
					}
				}
				resp, err := send(server, step.Method, append(request, "\r\n"...))
				if err != nil {
					t.Fatalf("%s: %s, request %d: %v", language, v.Case, i, err)
				}
				problem := struct {
					Type, Field, Claimed, Guarded string
					Status                        int
				}{}
				_ = json.NewDecoder(resp.Body).Decode(&problem)
				reason, h := strings.TrimPrefix(problem.Type, "tag:fencepost-go.github.io,2026:problem/"), resp.Header
				if resp.StatusCode != step.Status || h.Get("X-Fencing-Reason") != step.Reason || reason != step.Reason ||
					problem.Field != step.Field || problem.Claimed != step.Claimed || problem.Guarded != step.Guarded {
					t.Errorf("%s: %s, request %d: %d %+v, want %+v", language, v.Case, i, resp.StatusCode, problem, step)
				}
				if step.Reason != "" && (h.Get("Content-Type") != "application/problem+json" || problem.Status != step.Status || h.Get("Cache-Control") != "no-store") ||
					(h.Get("Retry-After") != "") != (step.Status == 503) || (h.Get("Allow") == "POST") != (step.Status == 405) {
					t.Errorf("%s: %s, request %d: %d %v %+v", language, v.Case, i, resp.StatusCode, h, problem)
				}
			}
		}
	}
}

// send sends the bytes of a request and reads the response.
func send(server, method string, request []byte) (*http.Response, error) {
	conn, err := net.Dial("tcp", strings.TrimPrefix(server, "http://"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	if _, err := conn.Write(request); err != nil {
		return nil, err
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: method})
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(resp.Body)
	resp.Body = io.NopCloser(bytes.NewReader(body))
	return resp, err
}

// TestGoClientOfPython: Go's client presents its claims to a server that is not written in Go,
// and reads its refusals. P1: after a takeover the old holder is refused. The control is a
// client without the Transport, which presents nothing.
func TestGoClientOfPython(t *testing.T) {
	for language, server := range map[string]string{"Go": golang(t), "Python": python(t)} {
		t.Run(language, func(t *testing.T) {
			client := &http.Client{Transport: guard.Must(httpfence.NewTransport(nil, []string{server}, nil))}
			name := guard.Must(guard.Must(guard.NewTemplate("{tenant}:billing-close:{period}")).Name("a:\u00e4, \"b\"%", "2026-04"))
			write := func(client *http.Client, resource string, claim guard.Claim) error {
				r, err := http.NewRequestWithContext(guard.WithClaim(t.Context(), claim), http.MethodPut, server+"/r/"+httpfence.Encode(resource), nil)
				testkit.Must(t, err)
				resp, err := httpfence.Do(client, r)
				if err == nil {
					_ = resp.Body.Close()
				}
				return err
			}
			old := guard.Claim{Resource: name, Token: 33, LeaseID: "b 1,\u00e4"}
			young := guard.Claim{Resource: name, Token: 34, LeaseID: "c"}
			testkit.Must(t, write(client, name, old))
			testkit.Must(t, httpfence.RaiseAt(client, server+"/raise/"+httpfence.Encode(name))(t.Context(), young))
			if err := write(client, name, old); !errors.Is(err, guard.ErrStale) {
				t.Errorf("the old holder: %v", err)
			}
			if err := write(client, name, guard.Claim{Resource: name, Token: 34, LeaseID: "d"}); !errors.Is(err, guard.ErrConflict) {
				t.Errorf("another lease: %v", err)
			}
			var misdirected *guard.MisdirectedError
			if err := write(client, "other", young); !errors.As(err, &misdirected) || misdirected.Claimed != name || misdirected.Guarded != "other" {
				t.Errorf("another resource: %v", err)
			}
			if err := write(http.DefaultClient, name, young); !errors.Is(err, guard.ErrMissing) {
				t.Errorf("control: a client that presents nothing: %v", err)
			}
			testkit.Check(t, write(client, name, young))
		})
	}
}
