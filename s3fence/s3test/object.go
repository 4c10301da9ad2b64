package s3test

import (
	"crypto/md5"
	"encoding/base64"
	"encoding/hex"
	"encoding/xml"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Object is an object as it is or was stored. It must not be changed.
type Object struct {
	Key  string
	Body []byte
	// ETag includes its quotes.
	ETag string
	// Header holds Content-Type, Cache-Control and the like, and the encryption.
	Header http.Header
	// Metadata is the user's, names in lower case and without x-amz-meta-.
	Metadata map[string]string
	Modified time.Time

	sums http.Header // checksums by header
}

// storedHeaders are kept with an object and returned by GET and HEAD.
var storedHeaders = []string{
	"Content-Type", "Cache-Control", "Content-Disposition", "Content-Encoding", "Content-Language", "Expires",
	"X-Amz-Storage-Class", "X-Amz-Website-Redirect-Location",
}

// encryptionHeaders are kept as well, and also returned by writes.
var encryptionHeaders = []string{
	"X-Amz-Server-Side-Encryption",
	"X-Amz-Server-Side-Encryption-Aws-Kms-Key-Id",
	"X-Amz-Server-Side-Encryption-Bucket-Key-Enabled",
}

const metaPrefix = "X-Amz-Meta-"

// describe makes an object without a body from the headers of a request.
func (c *call) describe() (*Object, *response) {
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
	return o, nil
}

// etag makes the ETag of a body whose MD5 is given. s.mu is held.
func (s *Server) etag(o *Object, sum []byte) string {
	if s.etags == ETagOpaque {
		sum = []byte(s.randomHex())[:md5.Size]
	} else if encryption := o.Header.Get("X-Amz-Server-Side-Encryption"); strings.HasPrefix(encryption, "aws:") {
		encrypted := md5.Sum(append([]byte(encryption+"/"), sum...))
		sum = encrypted[:]
	}
	return `"` + hex.EncodeToString(sum) + `"`
}

// randomHex returns 32 random digits. s.mu is held.
func (s *Server) randomHex() string {
	return fmt.Sprintf("%016x%016x", s.rng.Uint64(), s.rng.Uint64())
}

// bucket is guarded by Server.mu. Objects in it never change; they are replaced.
type bucket struct {
	created time.Time
	objects map[string]*Object
	keys    []string // of objects, sorted
}

func newBucket(now time.Time) *bucket {
	return &bucket{created: now, objects: map[string]*Object{}}
}

func (b *bucket) put(o *Object) {
	if b.objects[o.Key] == nil {
		i, _ := slices.BinarySearch(b.keys, o.Key)
		b.keys = slices.Insert(b.keys, i, o.Key)
	}
	b.objects[o.Key] = o
}

func (b *bucket) remove(key string) {
	delete(b.objects, key)
	if i, ok := slices.BinarySearch(b.keys, key); ok {
		b.keys = slices.Delete(b.keys, i, i+1)
	}
}

var bucketName = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$`)

func validBucketName(name string) bool { return bucketName.MatchString(name) }

func (s *Server) createBucket(c *call) *response {
	if !validBucketName(c.Bucket) {
		return fail("InvalidBucketName")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.buckets[c.Bucket] != nil {
		return fail("BucketAlreadyOwnedByYou")
	}
	s.buckets[c.Bucket] = newBucket(s.opts.Now())
	return &response{status: http.StatusOK, header: http.Header{"Location": {"/" + c.Bucket}}}
}

func (s *Server) headBucket(c *call) *response {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.buckets[c.Bucket] == nil {
		return fail("NoSuchBucket")
	}
	return &response{status: http.StatusOK, header: http.Header{"X-Amz-Bucket-Region": {region}}}
}

func (s *Server) getObject(c *call) *response {
	s.mu.Lock()
	b := s.buckets[c.Bucket]
	if b == nil {
		s.mu.Unlock()
		return fail("NoSuchBucket")
	}
	o := b.objects[c.Key]
	s.mu.Unlock()
	before := o
	if wait, ok := c.plan.gap(s, c.Request); ok && o != nil && c.plan.tearing() {
		wait()
		s.mu.Lock()
		o = b.objects[c.Key]
		s.mu.Unlock()
	}
	if o == nil {
		return fail("NoSuchKey")
	}
	if a := checkRead(c, o); a != nil {
		return a
	}
	h := o.described()
	c.plan.tear(h, before)
	a := &response{status: http.StatusOK, header: h, body: o.Body}
	size := int64(len(o.Body))
	first, length := int64(0), size
	if r := c.header.Get("Range"); r != "" {
		from, n, verdict := parseRange(r, size)
		if length, ok := strings.CutPrefix(r, "bytes=-"); ok && c.plan.has(func(f *Fault) bool { return f.ShortRanges }) {
			if n, err := strconv.ParseInt(length, 10, 64); err == nil && n > size {
				verdict = rangeBeyond
			}
		}
		switch verdict {
		case rangeBeyond:
			return fail("InvalidRange", "RangeRequested", r, "ActualObjectSize", fmt.Sprint(size))
		case rangeGood:
			first, length = from, n
			a.status = http.StatusPartialContent
			h.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", first, first+length-1, size))
		}
	}
	h.Set("Content-Length", strconv.FormatInt(length, 10))
	if a.status == http.StatusOK && strings.EqualFold(c.header.Get("X-Amz-Checksum-Mode"), "ENABLED") {
		for name, values := range o.sums {
			h[name] = values
		}
	}
	if c.Op == HeadObject {
		return a
	}
	a.body = o.Body[first : first+length]
	return a
}

// described returns the headers that tell a reader what is stored.
func (o *Object) described() http.Header {
	h := o.Header.Clone()
	h.Set("Etag", o.ETag)
	h.Set("Last-Modified", o.Modified.UTC().Format(http.TimeFormat))
	h.Set("Accept-Ranges", "bytes")
	for name, value := range o.Metadata {
		h.Set(metaPrefix+name, value)
	}
	return h
}

type rangeVerdict int

const (
	rangeIgnored rangeVerdict = iota
	rangeGood
	rangeBeyond
)

// parseRange reads a range of bytes. S3 ignores a header that is not one single
// range.
func parseRange(header string, size int64) (first, length int64, verdict rangeVerdict) {
	spec, ok := strings.CutPrefix(header, "bytes=")
	if !ok || strings.Contains(spec, ",") {
		return 0, 0, rangeIgnored
	}
	from, to, ok := strings.Cut(spec, "-")
	if !ok {
		return 0, 0, rangeIgnored
	}
	if from == "" {
		n, err := strconv.ParseInt(to, 10, 64)
		if err != nil || n < 0 {
			return 0, 0, rangeIgnored
		}
		if n == 0 || size == 0 {
			return 0, 0, rangeBeyond
		}
		n = min(n, size)
		return size - n, n, rangeGood
	}
	first, err := strconv.ParseInt(from, 10, 64)
	if err != nil || first < 0 {
		return 0, 0, rangeIgnored
	}
	last := size - 1
	if to != "" {
		n, err := strconv.ParseInt(to, 10, 64)
		if err != nil || n < first {
			return 0, 0, rangeIgnored
		}
		last = min(last, n)
	}
	if first >= size {
		return 0, 0, rangeBeyond
	}
	return first, last - first + 1, rangeGood
}

// commit decides a write and applies it. If next is nil, it deletes.
func (s *Server) commit(c *call, next *Object) *response {
	key := c.Key
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.buckets[c.Bucket]
	if b == nil {
		return fail("NoSuchBucket")
	}
	if a := checkWrite(c, b.objects[key]); a != nil {
		return a
	}
	if gap, ok := c.plan.gap(s, c.Request); ok {
		// Here a store that compares and writes in two steps loses the race.
		s.mu.Unlock()
		gap()
		s.mu.Lock()
		if s.buckets[c.Bucket] != b {
			return fail("NoSuchBucket")
		}
	}
	previous := b.objects[key]
	now := s.opts.Now()
	if next != nil {
		next.ETag = s.etag(next, c.body.md5[:])
		next.Modified = now
		if previous != nil && c.plan.mergeMetadata() {
			merged := maps.Clone(previous.Metadata)
			maps.Copy(merged, next.Metadata)
			next.Metadata = merged
		}
		b.put(next)
	} else {
		b.remove(key)
	}
	if next != nil || previous != nil {
		s.record(c, previous, next, now)
	}
	return nil
}

func (s *Server) putObject(c *call) *response {
	if a := checkWriteSyntax(c); a != nil {
		return a
	}
	o, a := c.describe()
	if a != nil {
		return a
	}
	o.Body, o.sums = c.body.data, c.body.sums
	if len(o.sums) > 0 {
		o.sums.Set("X-Amz-Checksum-Type", "FULL_OBJECT")
	}
	if a := s.commit(c, o); a != nil {
		return a
	}
	return &response{status: http.StatusOK, header: o.written()}
}

// written returns the headers that tell a writer what was stored.
func (o *Object) written() http.Header {
	h := http.Header{"Etag": {o.ETag}}
	for name, values := range o.sums {
		h[name] = values
	}
	for _, name := range encryptionHeaders {
		if values := o.Header.Values(name); len(values) > 0 {
			h[name] = values
		}
	}
	return h
}

func (s *Server) deleteObject(c *call) *response {
	if c.header.Get("If-Match")+c.header.Get("If-None-Match") != "" { // stores disagree about it
		return fail("NotImplemented", "Header", "If-Match")
	}
	if a := s.commit(c, nil); a != nil {
		return a
	}
	return &response{status: http.StatusNoContent}
}

type listEntry struct {
	Key          string
	LastModified string
	ETag         string
	Size         int64
	StorageClass string
}

type listResult struct {
	XMLName               xml.Name `xml:"http://s3.amazonaws.com/doc/2006-03-01/ ListBucketResult"`
	Name                  string
	Prefix                string
	StartAfter            string `xml:",omitempty"`
	ContinuationToken     string `xml:",omitempty"`
	NextContinuationToken string `xml:",omitempty"`
	EncodingType          string `xml:",omitempty"`
	KeyCount              int
	MaxKeys               int
	IsTruncated           bool
	Contents              []listEntry
}

func (s *Server) listObjects(c *call) *response {
	q := c.Query
	limit, ok := pageSize(q, "max-keys")
	if !ok || q.Get("list-type") != "2" || !validEncoding(q) {
		return fail("InvalidArgument")
	}
	after := q.Get("start-after")
	if token := q.Get("continuation-token"); q.Has("continuation-token") {
		last, err := base64.RawURLEncoding.DecodeString(token)
		if err != nil || token == "" {
			return fail("InvalidArgument", "Message", "The continuation token provided is incorrect")
		}
		after = string(last)
	}
	encode := encoding(q)
	result := listResult{
		Name: c.Bucket, Prefix: encode(q.Get("prefix")),
		StartAfter: encode(q.Get("start-after")), ContinuationToken: q.Get("continuation-token"),
		EncodingType: q.Get("encoding-type"), MaxKeys: limit,
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.buckets[c.Bucket]
	if b == nil {
		return fail("NoSuchBucket")
	}
	last := ""
	first, _ := slices.BinarySearch(b.keys, max(q.Get("prefix"), after+"\x00")) // the least key that is greater
	for _, key := range b.keys[first:] {
		if !strings.HasPrefix(key, q.Get("prefix")) {
			break
		}
		if result.KeyCount == limit {
			if result.IsTruncated = limit > 0; result.IsTruncated {
				result.NextContinuationToken = base64.RawURLEncoding.EncodeToString([]byte(last))
			}
			break
		}
		o := b.objects[key]
		result.Contents = append(result.Contents, listEntry{encode(key), stamp(o.Modified), o.ETag, int64(len(o.Body)), "STANDARD"})
		result.KeyCount++
		last = key
	}
	return document(result)
}

func pageSize(q url.Values, name string) (int, bool) {
	if !q.Has(name) {
		return 1000, true
	}
	n, err := strconv.Atoi(q.Get(name))
	return min(n, 1000), err == nil && n >= 0
}

func validEncoding(q url.Values) bool {
	return !q.Has("encoding-type") || q.Get("encoding-type") == "url"
}

// encoding returns the encoding of keys in a listing.
func encoding(q url.Values) func(string) string {
	if q.Get("encoding-type") != "url" {
		return func(s string) string { return s }
	}
	return func(s string) string { return strings.ReplaceAll(url.QueryEscape(s), "%2F", "/") }
}
