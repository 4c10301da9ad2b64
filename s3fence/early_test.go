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

// early loses the response to the first sending of data, and refuses the second before
// it reads the body, as a store does to a client that waits for 100 Continue.
type early struct {
	*http.Client
	sent  int
	reads bool   // it reads the body first
	lost  func() // called when the response is lost
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
			e.lost()
		}
		return nil, errors.Join(errors.New("the answer was lost"), err)
	}
	if e.reads {
		io.Copy(io.Discard, r.Body)
	}
	r.Body.Close()
	return &http.Response{StatusCode: http.StatusPreconditionFailed, Request: r, Header: http.Header{},
		Body: io.NopCloser(strings.NewReader("<Error><Code>PreconditionFailed</Code></Error>"))}, nil
}

// changing is a body that another program changes.
type changing struct {
	*bytes.Reader
	changed bool
}

func (c *changing) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	if c.changed {
		clear(p[:n])
	}
	return n, err
}

// TestLostAnswerOfLongData: data whose response was lost is found to be stored although
// the store did not read it again. If the body has changed by then nothing tells which
// of the two is stored, and no pointer says either.
func TestLostAnswerOfLongData(t *testing.T) {
	t.Parallel()
	for _, changes := range []bool{false, true} {
		server := newServer(t, nil)
		body := &changing{Reader: bytes.NewReader(bytesOf(4 << 20))}
		client := &early{Client: server.HTTPClient(), reads: changes, lost: func() { body.changed = changes }}
		b := open(t, server, nil).On(newClient(server, func(o *s3.Options) { o.HTTPClient = client }), bucketName)
		o := objects(t, b, s3fence.Pointer, nil)
		err := o.Pointers().Put(t.Context(), claim(5, "a"), key, body, nil)
		if client.sent != 2 {
			t.Fatalf("%d sendings", client.sent)
		}
		if changes {
			if invalid(t, err, "body"); len(server.Objects(bucketName)) != 0 {
				t.Errorf("%q are left", dataKeys(server))
			}
			continue
		}
		must(t, err)
		if got, _ := content(t, o, key); got != string(bytesOf(4<<20)) {
			t.Errorf("read %d bytes", len(got))
		}
	}
}
