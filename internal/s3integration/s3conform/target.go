package s3conform

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/xml"
	"io"
	"net/http"
	"net/url"
	"time"
)

// Target is a store to be tested.
type Target struct {
	// Endpoint is the URL under which buckets are addressed by path.
	Endpoint string
	// Region is the region that requests are signed for. The zero value is
	// us-east-1.
	Region          string
	AccessKeyID     string
	SecretAccessKey string
	// Client sends the requests. Nil is a client that keeps enough connections.
	Client *http.Client

	// Rounds is the number of rounds of each race, and Writers the number of
	// writers in each. The zero values are 500 and 16.
	Rounds  int
	Writers int

	// PartSize is the least size of a part that the store accepts, but for the
	// last. The zero value is 5 MiB.
	PartSize int

	// Differs names the cases in which the store is known to differ, with the
	// reason. They must fail: a reason that no longer holds is an error, too.
	Differs map[string]string
	// Sometimes are cases that the store is known to fail now and then.
	Sometimes map[string]string
}

func (t *Target) defaults() {
	if t.Region == "" {
		t.Region = "us-east-1"
	}
	if t.Rounds == 0 {
		t.Rounds = 500
	}
	if t.Writers == 0 {
		t.Writers = 16
	}
	if t.PartSize == 0 {
		t.PartSize = 5 << 20
	}
	if t.Client == nil {
		transport := http.DefaultTransport.(*http.Transport).Clone()
		transport.MaxIdleConnsPerHost = 2 * t.Writers
		t.Client = &http.Client{Transport: transport}
	}
}

// ask is one request of the suite.
type ask struct {
	method string
	bucket string
	key    string
	query  url.Values
	header http.Header
	body   []byte
	// payload, if not empty, is sent as the body's hash.
	payload string
}

// reply is what came back.
type reply struct {
	status int
	header http.Header
	body   []byte
	// code is that of the error document, if it is one.
	code      string
	requestID string
}

func (r *reply) etag() string { return r.header.Get("Etag") }

// do sends a request. An error means that there was no answer.
func (t *Target) do(ctx context.Context, a ask) (*reply, error) {
	path := "/" + a.bucket
	if a.key != "" {
		path += "/" + a.key
	}
	u, err := url.Parse(t.Endpoint)
	if err != nil {
		return nil, err
	}
	u.Path, u.RawPath, u.RawQuery = path, escape(path, true), query(a.query)
	r, err := http.NewRequestWithContext(ctx, a.method, u.String(), bytes.NewReader(a.body))
	if err != nil {
		return nil, err
	}
	// NewRequest may have chosen another encoding, and a URL without a path.
	r.URL = u
	for name, values := range a.header {
		r.Header[http.CanonicalHeaderKey(name)] = values
	}
	payload := a.payload
	if payload == "" {
		sum := sha256.Sum256(a.body)
		payload = hex.EncodeToString(sum[:])
	}
	t.sign(r, payload, time.Now())
	answer, err := t.Client.Do(r)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		return nil, err
	}
	out := &reply{status: answer.StatusCode, header: answer.Header, body: body}
	var document struct {
		XMLName   xml.Name `xml:"Error"`
		Code      string
		RequestID string `xml:"RequestId"`
	}
	if bytes.HasPrefix(body, []byte("<")) && xml.Unmarshal(body, &document) == nil {
		out.code, out.requestID = document.Code, document.RequestID
	}
	return out, nil
}
