package s3fence_test

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/fencepost-go/fencepost/s3fence"
)

// early loses the answer to the first sending of data, and refuses the second before
// it reads the body, as a store does to a client that waits for 100 Continue.
type early struct {
	*http.Client
	sent int
}

func (e *early) Do(r *http.Request) (*http.Response, error) {
	if r.Method != http.MethodPut || !strings.Contains(r.URL.Path, ".fencepost/data/") {
		return e.Client.Do(r)
	}
	if e.sent++; e.sent == 1 {
		resp, err := e.Client.Do(r)
		if err == nil {
			resp.Body.Close()
			err = io.ErrUnexpectedEOF
		}
		return nil, errors.Join(errors.New("the answer was lost"), err)
	}
	r.Body.Close()
	return &http.Response{StatusCode: http.StatusPreconditionFailed, Request: r, Header: http.Header{},
		Body: io.NopCloser(strings.NewReader("<Error><Code>PreconditionFailed</Code></Error>"))}, nil
}

// TestLostAnswerOfLongData: data whose answer was lost is found to be stored although
// the store did not read it again.
func TestLostAnswerOfLongData(t *testing.T) {
	t.Parallel()
	server := newServer(t, nil)
	client := &early{Client: server.HTTPClient()}
	b := open(t, server, nil).On(newClient(server, func(o *s3.Options) { o.HTTPClient = client }), bucketName)
	o := objects(t, b, s3fence.Pointer, nil)
	body := bytesOf(4 << 20)
	if err := o.Pointers().Put(t.Context(), claim(5, "a"), key, bytes.NewReader(body), nil); err != nil || client.sent != 2 {
		t.Fatalf("after %d sendings: %v", client.sent, err)
	}
	if got, _ := content(t, o, key); got != string(body) {
		t.Errorf("read %d bytes of %d", len(got), len(body))
	}
}
