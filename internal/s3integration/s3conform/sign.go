package s3conform

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// sign adds a signature of version 4 to a request. payload is the hash of the
// body in hex, or one of the words that stand for it.
func (t *Target) sign(r *http.Request, payload string, now time.Time) {
	stamp := now.UTC().Format("20060102T150405Z")
	r.Header.Set("X-Amz-Date", stamp)
	r.Header.Set("X-Amz-Content-Sha256", payload)

	var names []string
	for name := range r.Header {
		names = append(names, strings.ToLower(name))
	}
	names = append(names, "host")
	slices.Sort(names)
	var headers strings.Builder
	for _, name := range names {
		value := r.URL.Host
		if name != "host" {
			value = strings.Join(r.Header.Values(name), ",")
		}
		headers.WriteString(name + ":" + strings.TrimSpace(value) + "\n")
	}
	signed := strings.Join(names, ";")
	canonical := strings.Join([]string{
		r.Method, r.URL.EscapedPath(), r.URL.RawQuery, headers.String(), signed, payload,
	}, "\n")

	scope := strings.Join([]string{stamp[:8], t.Region, "s3", "aws4_request"}, "/")
	digest := sha256.Sum256([]byte(canonical))
	text := strings.Join([]string{"AWS4-HMAC-SHA256", stamp, scope, hex.EncodeToString(digest[:])}, "\n")
	key := []byte("AWS4" + t.SecretAccessKey)
	for part := range strings.SplitSeq(scope, "/") {
		key = mac(key, part)
	}
	r.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential="+t.AccessKeyID+"/"+scope+
		", SignedHeaders="+signed+", Signature="+hex.EncodeToString(mac(key, text)))
}

func mac(key []byte, text string) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(text))
	return h.Sum(nil)
}

// escape writes a path or a query's part the one way in which it is signed.
func escape(s string, slash bool) string {
	var b strings.Builder
	for i := range len(s) {
		c := s[i]
		switch {
		case 'A' <= c && c <= 'Z', 'a' <= c && c <= 'z', '0' <= c && c <= '9', strings.IndexByte("-._~", c) >= 0, c == '/' && slash:
			b.WriteByte(c)
		default:
			b.WriteString("%" + strings.ToUpper(hex.EncodeToString([]byte{c})))
		}
	}
	return b.String()
}

// query encodes parameters, sorted, as signing wants it.
func query(values url.Values) string {
	var parts []string
	for name, list := range values {
		for _, value := range list {
			parts = append(parts, escape(name, false)+"="+escape(value, false))
		}
	}
	slices.Sort(parts)
	return strings.Join(parts, "&")
}
