package s3test

import (
	"bytes"
	"crypto/md5"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"hash"
	"hash/crc32"
	"hash/crc64"
	"io"
	"net/http"
	"strings"
)

// body is a request's body, decoded.
type body struct {
	data []byte
	md5  [md5.Size]byte
	// sums are the checksums that the client declared, by header, in base64.
	sums http.Header
}

// readBody reads and verifies a body. A refusal is for the client; an error
// says that the connection broke before the body's end. The body is never nil.
func readBody(r *http.Request) (*body, *response, error) {
	b := &body{sums: http.Header{}}
	payload := r.Header.Get("X-Amz-Content-Sha256")
	if strings.HasPrefix(payload, "STREAMING-") { // aws-chunked, which clients use over HTTPS
		_, err := io.Copy(io.Discard, r.Body)
		return b, fail("NotImplemented", "Header", "X-Amz-Content-Sha256"), err
	}
	if r.ContentLength < 0 && r.Method == http.MethodPut {
		_, err := io.Copy(io.Discard, r.Body)
		return b, fail("MissingContentLength"), err
	}
	var kept bytes.Buffer
	md5sum, sha := md5.New(), sha256.New()
	sinks := []io.Writer{&kept, md5sum, sha}
	hashes := map[string]hash.Hash{}
	for name, newHash := range sums {
		if r.Header.Get(name) != "" {
			hashes[name] = newHash()
			sinks = append(sinks, hashes[name])
		}
	}
	if _, err := io.Copy(io.MultiWriter(sinks...), r.Body); err != nil {
		return b, nil, err
	}
	b.data = bytes.Clone(kept.Bytes()) // a buffer over-allocates, and the history keeps every body
	md5sum.Sum(b.md5[:0])
	if len(payload) == hex.EncodedLen(sha256.Size) && payload != hex.EncodeToString(sha.Sum(nil)) {
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
		if a := b.verifySum(name, r.Header.Get(name), h); a != nil {
			return b, a, nil
		}
	}
	return b, nil, nil
}

// verifySum compares a declared checksum and keeps it.
func (b *body) verifySum(name, want string, h hash.Hash) *response {
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
