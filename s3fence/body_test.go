package s3fence_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/s3fence"
	"github.com/fencepost-go/fencepost/s3fence/s3test"
)

// bodiesOf returns readers of text, and whether a second try may use them.
func bodiesOf(t *testing.T, text string) map[string]struct {
	io.Reader
	again bool
} {
	t.Helper()
	path := filepath.Join(t.TempDir(), "body")
	if err := os.WriteFile(path, []byte("before"+text), 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close() })
	section := strings.NewReader("before" + text)
	for _, s := range []io.Seeker{file, section} { // the body begins where the reader stands
		if _, err := s.Seek(6, io.SeekStart); err != nil {
			t.Fatal(err)
		}
	}
	return map[string]struct {
		io.Reader
		again bool
	}{
		"Bytes": {s3fence.Bytes([]byte(text)), true}, "strings.Reader": {strings.NewReader(text), true}, "bytes.Buffer": {bytes.NewBufferString(text), true},
		"file": {file, true}, "from the middle": {section, true}, "stream": {streamed{strings.NewReader(text)}, false},
		"slow stream": {iotest.OneByteReader(strings.NewReader(text)), false}, "pipe": {pipe{strings.NewReader(text)}, false},
	}
}

// A body is written whole or not at all: after a Put that failed, whenever it did, the
// same call with the same reader writes all of it, or is refused. It never writes
// what is left.
func TestRetriedBodyIsWhole(t *testing.T) {
	eachMode(t, func(t *testing.T, mode s3fence.Mode) {
		for name, c := range map[string]struct {
			rule    s3test.Rule
			claim   guard.Claim
			ended   bool
			reading bool // fails after the body was read
		}{
			"denied":        {s3test.Rule{Fault: s3test.Answer(403)}, claim(5, "a"), false, mode != s3fence.Pointer},
			"write denied":  {s3test.Rule{Ops: []s3test.Op{s3test.PutObject, s3test.UploadPart}, Fault: s3test.Answer(403)}, claim(5, "a"), false, true},
			"stale":         {s3test.Rule{Times: 1}, claim(3, "a"), false, mode != s3fence.Pointer},
			"context ended": {s3test.Rule{Times: 1}, claim(5, "a"), true, mode != s3fence.Pointer},
		} {
			text := "a body"
			if mode == s3fence.Pointer && name == "write denied" {
				text = string(bytesOf(6 * miB)) // two parts, so that a part fails, too
			}
			server := newServer(t, &s3test.Options{ETags: s3test.ETagOpaque})
			for what, body := range bodiesOf(t, text) {
				if mode == s3fence.Pointer && what == "slow stream" {
					continue // takes long
				}
				o := objects(t, open(t, server, &s3fence.Options{PartSize: 5 * miB}), mode, nil)
				k := "k/" + what
				if err := o.Put(t.Context(), claim(4, "z"), k, s3fence.Bytes([]byte("before")), nil); err != nil {
					t.Fatal(err)
				}
				o.Bucket().Forget()
				ctx, cancel := context.WithCancel(t.Context())
				if c.ended {
					cancel()
				}
				in := server.Inject(c.rule)
				if err := o.Put(ctx, c.claim, k, body.Reader, nil); err == nil {
					t.Fatalf("%s, %s: the first try did not fail", name, what)
				}
				in.Remove()
				cancel()
				err := o.Put(t.Context(), claim(6, "b"), k, body.Reader, nil)
				switch got, _ := content(t, o, k); {
				case err == nil && got != text:
					t.Errorf("%s, %s: a retry stored %d of %d bytes", name, what, len(got), len(text))
				case err != nil && got != "before":
					t.Errorf("%s, %s: a refused retry stored %d bytes", name, what, len(got))
				case err != nil && (body.again || !c.reading):
					t.Errorf("%s, %s: a retry was refused: %v", name, what, err)
				case err != nil:
					invalid(t, err, "body")
				}
			}
		}
	})
}

// A reader that has nothing left is refused, unless it was empty from the start.
func TestUsedUpBodies(t *testing.T) {
	eachMode(t, func(t *testing.T, mode s3fence.Mode) {
		server, _, o := setup(t, mode, 0)
		read := func(r io.Reader) io.Reader {
			if _, err := io.Copy(io.Discard, r); err != nil {
				t.Fatal(err)
			}
			return r
		}
		for name, body := range map[string]io.Reader{
			"strings.Reader": read(strings.NewReader("x")), "bytes.Buffer": read(bytes.NewBufferString("x")), "Bytes": read(s3fence.Bytes([]byte("x"))),
			"stream": read(streamed{strings.NewReader("x")}), "an empty buffer": &bytes.Buffer{}, "an empty stream": streamed{strings.NewReader("")},
		} {
			err := o.Put(t.Context(), claim(5, "a"), key, body, nil)
			if invalid(t, err, "body"); len(server.Objects(bucketName)) != 0 {
				t.Errorf("%s: something was stored", name)
			}
		}
		for i, body := range []io.Reader{nil, s3fence.Bytes(nil), s3fence.Bytes([]byte{}), strings.NewReader(""), bytes.NewReader(nil)} {
			if err := o.Put(t.Context(), claim(5, "a"), fmt.Sprint("empty/", i), body, nil); err != nil {
				t.Errorf("%d: %v", i, err)
			}
		}
		// Bytes are not used up by a call; other readers are.
		lent, once := s3fence.Bytes([]byte("x")), strings.NewReader("x")
		for try := range 2 {
			if err := o.Put(t.Context(), claim(5, "a"), key, lent, nil); err != nil {
				t.Error(err)
			}
			if err := o.Put(t.Context(), claim(5, "a"), key, once, nil); (err == nil) != (try == 0) {
				t.Errorf("try %d: %v", try, err)
			}
		}
	})
}

// A reader that breaks and would go on is not continued by a second try.
func TestBrokenBodyIsNotContinued(t *testing.T) {
	eachMode(t, func(t *testing.T, mode s3fence.Mode) {
		server, _, o := setup(t, mode, 0)
		flaky := iotest.TimeoutReader(iotest.OneByteReader(strings.NewReader("body"))) // fails once, at the second read
		if err := o.Put(t.Context(), claim(5, "a"), key, flaky, nil); !errors.Is(err, iotest.ErrTimeout) {
			t.Errorf("the reader's own error is lost: %v", err)
		}
		invalid(t, o.Put(t.Context(), claim(5, "a"), key, flaky, nil), "body")
		if n := len(server.Objects(bucketName)); n != 0 {
			t.Errorf("%d objects are stored", n)
		}
	})
}
