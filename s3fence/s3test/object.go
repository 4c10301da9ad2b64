package s3test

import (
	"crypto/md5"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
)

// Object is an object as it is, or was, stored. It must not be changed.
type Object struct {
	Key string
	// Body is nil if it was discarded; Size and SHA256 are those of the whole.
	// A multipart upload whose parts were discarded has no SHA256.
	Body   []byte
	Size   int64
	SHA256 [sha256.Size]byte
	// ETag has its quotes.
	ETag string
	// Header holds Content-Type, Cache-Control and the like, and the encryption.
	Header http.Header
	// Metadata is the user's, names in lower case and without x-amz-meta-.
	Metadata map[string]string
	Modified time.Time

	sums http.Header // checksums by header
}

// storedHeaders are kept with an object and answered to GET and HEAD.
var storedHeaders = []string{
	"Content-Type", "Cache-Control", "Content-Disposition", "Content-Encoding", "Content-Language", "Expires",
	"X-Amz-Storage-Class", "X-Amz-Website-Redirect-Location",
}

// encryptionHeaders are kept as well, and also answered to what writes.
var encryptionHeaders = []string{
	"X-Amz-Server-Side-Encryption",
	"X-Amz-Server-Side-Encryption-Aws-Kms-Key-Id",
	"X-Amz-Server-Side-Encryption-Bucket-Key-Enabled",
	"X-Amz-Server-Side-Encryption-Customer-Algorithm",
	customerKey,
}

const (
	customerKey = "X-Amz-Server-Side-Encryption-Customer-Key-Md5"
	metaPrefix  = "X-Amz-Meta-"
)

// describe makes an object without a body from the headers of a request.
func (c *call) describe() (*Object, *answer) {
	o := &Object{Key: c.Key, Header: http.Header{}, Metadata: map[string]string{}, sums: http.Header{}}
	size := 0
	for name, values := range c.header {
		if meta, ok := strings.CutPrefix(name, metaPrefix); ok && meta != "" {
			value := strings.Join(values, ",")
			o.Metadata[strings.ToLower(meta)] = value
			size += len(meta) + len(value)
		}
		if slices.Contains(storedHeaders, name) || slices.Contains(encryptionHeaders, name) {
			o.Header[name] = slices.Clone(values)
		}
	}
	if size > maxMetadataSize {
		return nil, fail("MetadataTooLarge", "Size", fmt.Sprint(size), "MaxSizeAllowed", fmt.Sprint(maxMetadataSize))
	}
	if o.Header.Get("Content-Type") == "" {
		o.Header.Set("Content-Type", "binary/octet-stream")
	}
	// aws-chunked is how the body travelled, not what the object is.
	var encodings []string
	for encoding := range strings.SplitSeq(o.Header.Get("Content-Encoding"), ",") {
		if encoding = strings.TrimSpace(encoding); encoding != "" && encoding != "aws-chunked" {
			encodings = append(encodings, encoding)
		}
	}
	delete(o.Header, "Content-Encoding")
	if len(encodings) > 0 {
		o.Header.Set("Content-Encoding", strings.Join(encodings, ","))
	}
	return o, nil
}

// etag makes the ETag of a body whose MD5 is given; suffix is "-N" for N parts.
// s.mu is held.
func (s *Server) etag(o *Object, sum []byte, suffix string) string {
	if s.etags == ETagOpaque {
		sum = []byte(s.randomHex())[:md5.Size]
	} else if encryption := o.Header.Get("X-Amz-Server-Side-Encryption"); o.Header.Get(customerKey) != "" || strings.HasPrefix(encryption, "aws:") {
		encrypted := md5.Sum(append([]byte(encryption+"/"), sum...))
		sum = encrypted[:]
	}
	return `"` + hex.EncodeToString(sum) + suffix + `"`
}

// randomHex returns 32 random digits. s.mu is held.
func (s *Server) randomHex() string {
	return fmt.Sprintf("%016x%016x", s.rng.Uint64(), s.rng.Uint64())
}

// checkCustomerKey refuses to read an object without the key it was written with.
func checkCustomerKey(c *call, o *Object) *answer {
	stored, given := o.Header.Get(customerKey), c.header.Get(customerKey)
	switch {
	case stored == given:
		return nil
	case stored != "" && given != "":
		return fail("AccessDenied")
	default:
		return fail("InvalidRequest", "Message", "The object was stored using a form of Server Side Encryption. The correct parameters must be provided to retrieve the object.")
	}
}
