package s3test

import (
	"bufio"
	"bytes"
	"crypto/md5"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"hash"
	"hash/crc32"
	"hash/crc64"
	"io"
	"net/http"
	"strconv"
	"strings"
)

// body is a request's body, decoded.
type body struct {
	data   []byte
	size   int64
	md5    [md5.Size]byte
	sha256 [sha256.Size]byte
	// sums are the checksums that the client declared, by header, in base64.
	sums http.Header
}

// readBody reads and verifies a body. A refusal is for the client; an error
// says that the connection broke before the body's end. The body is never nil.
func (s *Server) readBody(r *http.Request, op Op) (*body, *answer, error) {
	b := &body{sums: http.Header{}}
	if r.ContentLength < 0 && (r.Method == http.MethodPut || r.Method == http.MethodPost) {
		_, err := io.Copy(io.Discard, r.Body)
		return b, fail("MissingContentLength"), err
	}
	payload := r.Header.Get("X-Amz-Content-Sha256")
	var chunks *chunkReader
	source := io.Reader(r.Body)
	if strings.HasPrefix(payload, "STREAMING-") {
		chunks = newChunkReader(r.Body)
		source = chunks
	}
	declared := declaredSums(r.Header)
	if op == CompleteMultipartUpload {
		declared = nil // they belong to the object, not to this body
	}
	var kept bytes.Buffer
	md5sum, sha := md5.New(), sha256.New()
	sinks := []io.Writer{&kept, md5sum, sha}
	hashes := map[string]hash.Hash{}
	for _, name := range declared {
		hashes[name] = newSum(name)
		sinks = append(sinks, hashes[name])
	}
	n, err := io.Copy(io.MultiWriter(sinks...), source)
	if errors.Is(err, errMalformedChunk) {
		_, err := io.Copy(io.Discard, r.Body)
		return b, fail("IncompleteBody", "Message", "The aws-chunked body is malformed."), err
	}
	if err != nil {
		return b, nil, err
	}
	b.data, b.size = bytes.Clone(kept.Bytes()), n // a buffer over-allocates, and the history keeps every body
	md5sum.Sum(b.md5[:0])
	sha.Sum(b.sha256[:0])
	if chunks != nil {
		if want := r.Header.Get("X-Amz-Decoded-Content-Length"); want != strconv.FormatInt(n, 10) {
			return b, fail("IncompleteBody"), nil
		}
	} else if len(payload) == hex.EncodedLen(sha256.Size) && payload != hex.EncodeToString(b.sha256[:]) {
		return b, fail("XAmzContentSHA256Mismatch"), nil
	}
	if want := r.Header.Get("Content-Md5"); want != "" {
		if raw, err := base64.StdEncoding.DecodeString(want); err != nil || len(raw) != md5.Size {
			return b, fail("InvalidDigest"), nil
		} else if !bytes.Equal(raw, b.md5[:]) {
			return b, fail("BadDigest"), nil
		}
	}
	for name, h := range hashes {
		want := r.Header.Get(name)
		if chunks != nil && want == "" {
			want = chunks.trailer.Get(name)
		}
		if a := b.verifySum(name, want, h); a != nil {
			return b, a, nil
		}
	}
	return b, nil, nil
}

// verifySum compares a declared checksum and keeps it.
func (b *body) verifySum(name, want string, h hash.Hash) *answer {
	raw, err := base64.StdEncoding.DecodeString(want)
	if err != nil || len(raw) != h.Size() {
		return fail("InvalidRequest", "Message", "Value for "+strings.ToLower(name)+" header is invalid.")
	}
	if !bytes.Equal(raw, h.Sum(nil)) {
		algorithm := strings.ToUpper(strings.TrimPrefix(name, sumPrefix))
		return fail("BadDigest", "Message", "The "+algorithm+" you specified did not match the calculated checksum.")
	}
	b.sums.Set(name, want)
	return nil
}

const sumPrefix = "X-Amz-Checksum-"

// nvme is the polynomial of CRC64NVME, bits reversed as hash/crc64 wants it.
var nvme = crc64.MakeTable(0x9a6c9329ac4bc9b5)

// sums are the checksums that are verified, by header.
var sums = map[string]func() hash.Hash{
	"X-Amz-Checksum-Crc32":     func() hash.Hash { return crc32.NewIEEE() },
	"X-Amz-Checksum-Crc32c":    func() hash.Hash { return crc32.New(crc32.MakeTable(crc32.Castagnoli)) },
	"X-Amz-Checksum-Crc64nvme": func() hash.Hash { return crc64.New(nvme) },
	"X-Amz-Checksum-Sha1":      sha1.New,
	"X-Amz-Checksum-Sha256":    sha256.New,
}

func newSum(header string) hash.Hash { return sums[header]() }

// declaredSums returns the headers of the checksums that a request carries,
// before its body or after it.
func declaredSums(h http.Header) []string {
	var names []string
	for name := range sums {
		if h.Get(name) != "" {
			names = append(names, name)
			continue
		}
		for trailer := range strings.SplitSeq(strings.Join(h.Values("X-Amz-Trailer"), ","), ",") {
			if http.CanonicalHeaderKey(strings.TrimSpace(trailer)) == name {
				names = append(names, name)
			}
		}
	}
	return names
}

// errMalformedChunk says that a body is not valid aws-chunked, as opposed to a
// broken connection.
var errMalformedChunk = errors.New("malformed chunk")

// chunkReader decodes an aws-chunked body: chunks of
//
//	<length in hex>[;chunk-signature=...]\r\n<bytes>\r\n
//
// the last one empty, then trailing headers. Signatures are not verified.
type chunkReader struct {
	r       *bufio.Reader
	left    int64 // of the current chunk
	inside  bool  // a chunk's bytes were read, but not its line end
	done    bool
	trailer http.Header
}

func newChunkReader(r io.Reader) *chunkReader {
	return &chunkReader{r: bufio.NewReaderSize(r, 64<<10), trailer: http.Header{}}
}

func (c *chunkReader) Read(p []byte) (int, error) {
	for c.left == 0 {
		if c.done {
			return 0, io.EOF
		}
		if err := c.next(); err != nil {
			return 0, err
		}
	}
	n, err := c.r.Read(p[:min(int64(len(p)), c.left)])
	c.left -= int64(n)
	if err == io.EOF {
		err = errMalformedChunk // the HTTP body is whole, the last chunk is missing
	}
	return n, err
}

// next reads the head of the next chunk, and all that follows the last one.
func (c *chunkReader) next() error {
	if c.inside {
		if line, err := c.line(); err != nil || line != "" {
			return errors.Join(errMalformedChunk, err)
		}
	}
	line, err := c.line()
	if err != nil {
		return err
	}
	size, _, _ := strings.Cut(line, ";")
	c.left, err = strconv.ParseInt(size, 16, 63)
	if err != nil || c.left < 0 {
		return errMalformedChunk
	}
	c.inside = true
	if c.left > 0 {
		return nil
	}
	c.done = true
	for {
		line, err := c.line()
		if err == errMalformedChunk || line == "" {
			// Some clients leave the last empty line out.
			_, err := io.Copy(io.Discard, c.r)
			return err
		}
		if err != nil {
			return err
		}
		name, value, ok := strings.Cut(line, ":")
		if !ok {
			return errMalformedChunk
		}
		c.trailer.Set(strings.TrimSpace(name), strings.TrimSpace(value))
	}
}

func (c *chunkReader) line() (string, error) {
	line, err := c.r.ReadString('\n')
	if err == io.EOF {
		return "", errMalformedChunk
	}
	return strings.TrimRight(line, "\r\n"), err
}
