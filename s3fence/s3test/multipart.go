package s3test

import (
	"cmp"
	"crypto/md5"
	"crypto/sha256"
	"encoding/xml"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"
)

// upload is a multipart upload in progress. Server.mu guards it.
type upload struct {
	id      string
	started time.Time
	object  *Object // without its body
	parts   map[int]*part
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
	// The object's description determines the encryption.
	p := &part{body: c.body, etag: s.etag(u.object, c.body.md5[:], ""), modified: s.opts.Now()}
	u.parts[number] = p
	h := http.Header{"Etag": {p.etag}}
	for name, values := range c.body.sums {
		h[name] = values
	}
	return &answer{status: http.StatusOK, header: h}
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

// completePart is what a client says about a part when it completes an upload.
type completePart struct {
	PartNumber int
	ETag       string
}

func (s *Server) completeUpload(c *call) *answer {
	if a := checkWriteSyntax(c); a != nil {
		return a
	}
	var ask struct {
		XMLName xml.Name `xml:"CompleteMultipartUpload"`
		Part    []completePart
	}
	if xml.Unmarshal(c.Body, &ask) != nil || len(ask.Part) == 0 || len(ask.Part) > 10000 {
		return fail("MalformedXML")
	}
	s.mu.Lock()
	_, u, a := s.upload(c)
	var o *Object
	if a == nil {
		o, a = s.assemble(c, u, ask.Part)
	}
	s.mu.Unlock()
	if a != nil {
		return a
	}
	// Parts that arrive from here on are not part of the object.
	check := func(current *Object) *answer {
		if _, _, a := s.upload(c); a != nil {
			return a
		}
		return checkWrite(c, current)
	}
	if _, a := s.commit(c, CompleteMultipartUpload, c.Key, check, o, func(b *bucket) { delete(b.uploads, u.id) }); a != nil {
		return a
	}
	answered := document(struct {
		XMLName                     xml.Name `xml:"http://s3.amazonaws.com/doc/2006-03-01/ CompleteMultipartUploadResult"`
		Location, Bucket, Key, ETag string
	}{Location: s.URL() + "/" + c.Bucket + "/" + c.Key, Bucket: c.Bucket, Key: c.Key, ETag: o.ETag})
	for name, values := range o.written() {
		if name != "Etag" {
			answered.header[name] = values
		}
	}
	return answered
}

// assemble makes the object of an upload's parts. s.mu is held.
func (s *Server) assemble(c *call, u *upload, parts []completePart) (*Object, *answer) {
	o := *u.object
	var numbers []int
	if !slices.IsSortedFunc(parts, func(a, b completePart) int { return cmp.Compare(a.PartNumber, b.PartNumber) }) {
		return nil, fail("InvalidPartOrder", "UploadId", u.id)
	}
	for i, p := range parts {
		have := u.parts[p.PartNumber]
		if i > 0 && p.PartNumber == parts[i-1].PartNumber {
			return nil, fail("InvalidPartOrder", "UploadId", u.id)
		}
		if have == nil || !sameETag(p.ETag, have.etag) {
			return nil, fail("InvalidPart", "UploadId", u.id, "PartNumber", strconv.Itoa(p.PartNumber), "ETag", p.ETag)
		}
		if i < len(parts)-1 && have.body.size < s.opts.MinPartSize {
			return nil, fail("EntityTooSmall", "ProposedSize", fmt.Sprint(have.body.size), "MinSizeAllowed", fmt.Sprint(s.opts.MinPartSize),
				"PartNumber", strconv.Itoa(p.PartNumber), "ETag", p.ETag)
		}
		numbers = append(numbers, p.PartNumber)
		o.Size += have.body.size
	}
	o.Body = make([]byte, 0, o.Size)
	for _, n := range numbers {
		o.Body = append(o.Body, u.parts[n].body.data...)
	}
	o.SHA256 = sha256.Sum256(o.Body)
	o.ETag = s.multipartETag(u, numbers)
	o.sums = http.Header{}
	return &o, nil
}
