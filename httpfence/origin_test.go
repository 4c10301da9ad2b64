package httpfence

import "testing"

func TestOriginsAreValidated(t *testing.T) {
	for _, s := range []string{
		"", "ledger.internal", "ledger.internal:8443", "//ledger.internal", "ftp://a", "https://", "https:///x", "https://a/x", "https://a?",
		"https://a?x=y", "https://a#", "https://a#x", "https://u@a", "https://u:p@a", "https://*.internal", "https://*", "*",
		"https://a:0", "https://a:65536", "https://a:x", "https://a:-1", "https://\u00e4.test", "https://a b", "https://a:1:2", "https://[::1", "\x00",
	} {
		if o, err := parseOrigin(s); err == nil {
			t.Errorf("%q: accepted as %+v", s, o)
		}
	}
	for s, want := range map[string]origin{
		"https://A.test":       {"https", "a.test", 443},
		"http://a.test/":       {"http", "a.test", 80},
		"https://a.test:8443":  {"https", "a.test", 8443},
		"HTTP://[::1]:8080":    {"http", "::1", 8080},
		"https://127.0.0.1:1/": {"https", "127.0.0.1", 1},
		"https://a.test:":      {"https", "a.test", 443},
	} {
		if o, err := parseOrigin(s); err != nil || o != want {
			t.Errorf("%q: %+v, %v", s, o, err)
		}
	}
}
