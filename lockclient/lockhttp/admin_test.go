package lockhttp_test

import (
	"errors"
	"io/fs"
	"net/http"
	"strings"
	"testing"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient/driver/memory"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin/admintest"
	"github.com/fencepost-go/fencepost/lockclient/lockhttp"
)

// as is a client with a token.
type as string

func (token as) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+string(token))
	return http.DefaultTransport.RoundTrip(r)
}

// TestAdmin runs the suite of the operators' calls on a lock server of PostgreSQL, as an
// operator of all resources. A tenant's operator is refused what is another's, and a server
// without operators' calls says so.
func TestAdmin(t *testing.T) {
	t.Parallel()
	issuer, operator, _ := postgres(t, 4)
	server, _ := serve(t, issuer, people, &lockhttp.Options{Admin: operator, Timeout: testkit.Patience})
	to := func(url, token string) *lockhttp.Admin {
		return guard.Must(lockhttp.NewAdmin(url, &http.Client{Transport: as(token)}))
	}
	client := guard.Must(lockhttp.NewIssuer(server.URL, &http.Client{Transport: as("root")}))
	t.Cleanup(func() { client.Close() })
	admintest.Run(t, admintest.Engine{Admin: to(server.URL, "root"), Issuer: client, Cannot: []string{"advance", "advance floor", "epoch", "raise epoch", "purge"}})

	for token, resource := range map[string]string{"umbrella-ops": "acme:billing-close:2026-04", "acme-1": "acme:billing-close:2026-04", "nobody": "acme:billing-close:2026-04"} {
		_, err := to(server.URL, token).ForceUnlock(t.Context(), resource, "ada", "mischief", nil)
		if !errors.Is(err, fs.ErrPermission) || !errors.Is(err, guard.ErrSetup) {
			t.Errorf("%s cuts %s: %v", token, resource, err)
		}
	}
	bare, _ := serve(t, memory.NewServer().Issuer(), people, nil)
	var says *lockadmin.UnsupportedError
	if _, err := to(bare.URL, "root").ForceUnlock(t.Context(), "r", "ada", "it hangs", nil); !errors.As(err, &says) {
		t.Errorf("a server without operators' calls: %v", err)
	}
}

// TestEmptyPages: a page without rows is an empty list and not null, which no reader goes through.
func TestEmptyPages(t *testing.T) {
	t.Parallel()
	issuer, operator, _ := postgres(t, 4)
	server, _ := serve(t, issuer, people, &lockhttp.Options{Admin: operator})
	for path, empty := range map[string]string{"/v1/locks": `"locks":[]`, "/v1/audit": `"records":[]`} {
		if got := ask(t, server.URL, "acme-ops", "GET", path, ""); !strings.Contains(got.text, empty) {
			t.Errorf("%s: %s", path, got.text)
		}
	}
}
