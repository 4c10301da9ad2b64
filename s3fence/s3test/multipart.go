package s3test

import (
	"crypto/md5"
	"encoding/xml"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// upload is a multipart upload in progress. Server.mu guards it.
type upload struct {
	id      string
	started time.Time
	object  *Object // without its body
	// algorithm is the header of the checksum that the parts must carry, if any,
	// and full says that the object's is computed over the whole.
	algorithm string
	full      bool
	parts     map[int]*part
	kept      int64 // bytes of bodies of parts
	discarded bool
}

type part struct {
	body     *body
	etag     string
	modified time.Time
}

func (s *Server) createUpload(c *call) *answer {
	o, a := c.describe()
	if a != nil {
		return a
	}
	u := &upload{object: o, parts: map[int]*part{}}
	if algorithm := c.header.Get("X-Amz-Checksum-Algorithm"); algorithm != "" {
		u.algorithm = http.CanonicalHeaderKey(sumPrefix + algorithm)
		if sums[u.algorithm] == nil {
			return fail("InvalidRequest", "Message", "Checksum algorithm provided is unsupported.")
		}
	}
	switch kind := c.header.Get("X-Amz-Checksum-Type"); {
	case kind == "FULL_OBJECT", kind == "" && u.algorithm == sumPrefix+"Crc64nvme":
		u.full = true
	case kind != "" && kind != "COMPOSITE":
		return fail("InvalidRequest", "Message", "Value for x-amz-checksum-type header is invalid.")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.buckets[c.Bucket]
	if b == nil {
		return fail("NoSuchBucket")
	}
	u.id, u.started = s.randomHex(), s.opts.Now()
	b.uploads[u.id] = u
	answered := document(struct {
		XMLName               xml.Name `xml:"http://s3.amazonaws.com/doc/2006-03-01/ InitiateMultipartUploadResult"`
		Bucket, Key, UploadId string
	}{Bucket: c.Bucket, Key: c.Key, UploadId: u.id})
	for _, name := range encryptionHeaders {
		if values := o.Header.Values(name); len(values) > 0 {
			answered.header[name] = values
		}
	}
	return answered
}

// upload finds the upload that a request names. s.mu is held.
func (s *Server) upload(c *call) (*bucket, *upload, *answer) {
	b := s.buckets[c.Bucket]
	if b == nil {
		return nil, nil, fail("NoSuchBucket")
	}
	u := b.uploads[c.Query.Get("uploadId")]
	if u == nil || u.object.Key != c.Key {
		return nil, nil, fail("NoSuchUpload", "UploadId", c.Query.Get("uploadId"))
	}
	return b, u, nil
}

func (s *Server) uploadPart(c *call) *answer {
	number, err := strconv.Atoi(c.Query.Get("partNumber"))
	if err != nil || number < 1 || number > 10000 {
		return fail("InvalidArgument", "Message", "Part number must be an integer between 1 and 10000, inclusive", "ArgumentName", "partNumber")
	}
	if c.Size > maxPutSize {
		return fail("EntityTooLarge", "ProposedSize", fmt.Sprint(c.Size), "MaxSizeAllowed", fmt.Sprint(int64(maxPutSize)))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	_, u, a := s.upload(c)
	if a != nil {
		return a
	}
	if u.algorithm != "" {
		for name := range c.body.sums {
			if name != u.algorithm {
				return fail("InvalidRequest", "Message", "Checksum Type mismatch occurred, expected checksum Type: "+
					algorithm(u.algorithm)+", actual checksum Type: "+algorithm(name))
			}
		}
	}
	// The description of the object decides about encryption.
	p := &part{body: c.body, etag: s.etag(u.object, c.body.md5[:], ""), modified: s.opts.Now()}
	if old := u.parts[number]; old != nil {
		u.kept -= int64(len(old.body.data))
	}
	u.parts[number] = p
	u.kept += int64(len(p.body.data))
	u.limit(s.opts.DiscardAbove)
	h := http.Header{"Etag": {p.etag}}
	for name, values := range c.body.sums {
		h[name] = values
	}
	return &answer{status: http.StatusOK, header: h}
}

// limit forgets the bodies of all parts once they are too much together, or one
// of them was too much by itself.
func (u *upload) limit(bytes int64) {
	for _, p := range u.parts {
		u.discarded = u.discarded || p.body.data == nil
	}
	if !u.discarded && (bytes == 0 || u.kept <= bytes) {
		return
	}
	u.discarded, u.kept = true, 0
	for _, p := range u.parts {
		p.body.data = nil
	}
}

func (s *Server) abortUpload(c *call) *answer {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, u, a := s.upload(c)
	if a != nil {
		return a
	}
	delete(b.uploads, u.id)
	return &answer{status: http.StatusNoContent}
}

// multipartETag makes the ETag of the whole from those of its parts. s.mu is held.
func (s *Server) multipartETag(u *upload, numbers []int) string {
	h := md5.New()
	for _, n := range numbers {
		h.Write(u.parts[n].body.md5[:])
	}
	return s.etag(u.object, h.Sum(nil), "-"+strconv.Itoa(len(numbers)))
}

// algorithm is the name of the algorithm whose header is given.
func algorithm(header string) string { return strings.ToLower(strings.TrimPrefix(header, sumPrefix)) }
