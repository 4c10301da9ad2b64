package httpfence

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/fencepost-go/fencepost/guard"
)

// TestTransportRedirectedByOthers: a server that may not see a token must not
// choose what it is used for. 307 repeats method and body at the new place.
func TestTransportRedirectedByOthers(t *testing.T) {
	var got string
	reached := false
	redirect := func(to *string) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, *to, http.StatusTemporaryRedirect)
		})
	}
	var ours, other *httptest.Server
	var toDelete, toOther, onward string
	mux := http.NewServeMux()
	mux.HandleFunc("/delete", func(_ http.ResponseWriter, r *http.Request) { reached, got = true, r.Header.Get(TokenHeader) })
	mux.Handle("/out", redirect(&toOther))
	mux.Handle("/hop", redirect(&onward))
	ours = httptest.NewServer(mux)
	defer ours.Close()
	other = httptest.NewServer(redirect(&toDelete))
	defer other.Close()
	toDelete, toOther, onward = ours.URL+"/delete", other.URL+"/x", ours.URL+"/delete"

	for name, c := range map[string]struct {
		start   string
		origins []string
		want    string
	}{
		"from another origin":                   {other.URL + "/x", []string{ours.URL}, ""},
		"out to another origin and back":        {ours.URL + "/out", []string{ours.URL}, ""},
		"control: that origin is configured":    {ours.URL + "/out", []string{ours.URL, other.URL}, "11"},
		"control: twice within the same origin": {ours.URL + "/hop", []string{ours.URL}, "11"},
	} {
		t.Run(name, func(t *testing.T) {
			reached, got = false, ""
			client := &http.Client{Transport: NewTransport(nil, c.origins, nil)}
			r, err := http.NewRequestWithContext(guard.WithClaim(t.Context(), held), "POST", c.start, strings.NewReader("x"))
			if err != nil {
				t.Fatal(err)
			}
			resp, err := client.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			_ = resp.Body.Close()
			if !reached || got != c.want {
				t.Errorf("reached %v with the token %q, want %q", reached, got, c.want)
			}
		})
	}
}

// A redirect whose answer does not say who gave it is not trusted.
func TestTransportRedirectedByNobodyKnown(t *testing.T) {
	var got http.Header
	transport := NewTransport(roundTrip(func(r *http.Request) (*http.Response, error) {
		got = r.Header
		return &http.Response{StatusCode: 200, Body: http.NoBody}, nil
	}), []string{"https://ledger.test"}, nil)
	for _, answer := range []*http.Response{nil, {}} {
		r := httptest.NewRequestWithContext(guard.WithClaim(t.Context(), held), "POST", "https://ledger.test/x", nil)
		r.Response = answer
		resp, err := transport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if sent := got.Get(TokenHeader) != ""; sent != (answer == nil) {
			t.Errorf("redirected by %v: token sent %v", answer, sent)
		}
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
