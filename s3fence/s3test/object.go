package s3test

import (
	"crypto/md5"
	"encoding/base64"
	"encoding/binary"
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
	// Header holds Content-Type, Cache-Control and the like.
	Header http.Header
	// Metadata is the user's, names in lower case and without x-amz-meta-.
	Metadata map[string]string
	Modified time.Time

	sums http.Header // checksums as declared, by header; not verified
}

// storedHeaders are kept with an object and returned by GET and HEAD.
var storedHeaders = []string{
	"Content-Type", "Cache-Control", "Content-Disposition", "Content-Encoding", "Content-Language", "Expires", "X-Amz-Storage-Class",
}

const (
	metaPrefix = "X-Amz-Meta-"
	sumPrefix  = "X-Amz-Checksum-"
)

// describe makes an object from a request.
func (c *call) describe() (*Object, *response) {
	sum := md5.Sum(c.Body)
	o := &Object{
		Key: c.Key, Body: c.Body, ETag: quoted(sum[:]),
		Header: http.Header{"Content-Type": {"binary/octet-stream"}}, Metadata: map[string]string{}, sums: http.Header{},
	}
	size := 0
	for name, values := range c.header {
		if meta, ok := strings.CutPrefix(name, metaPrefix); ok && meta != "" {
			value := strings.Join(values, ",")
			o.Metadata[strings.ToLower(meta)] = value
			size += len(meta) + len(value)
		}
		if slices.Contains(storedHeaders, name) {
			o.Header[name] = slices.Clone(values)
		}
		if strings.HasPrefix(name, sumPrefix) {
			o.sums[name] = slices.Clone(values)
		}
	}
	if size > maxMetadataSize {
		return nil, fail("MetadataTooLarge")
	}
	return o, nil
}

// quoted makes an ETag.
func quoted(sum []byte) string { return `"` + hex.EncodeToString(sum) + `"` }

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
	if wait, ok := c.plan.gap(c.Request); ok && o != nil && c.plan.tearing() {
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
	first, end, partial := c.plan.span(c.header.Get("Range"), int64(len(o.Body)))
	switch {
	case partial && first >= end:
		return fail("InvalidRange")
	case partial:
		a.status = http.StatusPartialContent
		h.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", first, end-1, len(o.Body)))
		a.body = o.Body[first:end]
	case strings.EqualFold(c.header.Get("X-Amz-Checksum-Mode"), "ENABLED"):
		maps.Copy(h, o.sums)
	}
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

var byteRange = regexp.MustCompile(`^bytes=(\d*)-(\d*)$`)

// span returns which bytes a Range header asks for. It reports false for all of them:
// S3 ignores a header that is not one single range.
func (p plan) span(header string, size int64) (first, end int64, partial bool) {
	m := byteRange.FindStringSubmatch(header)
	if m == nil {
		return 0, size, false
	}
	from, noFrom := strconv.ParseInt(m[1], 10, 64)
	to, noTo := strconv.ParseInt(m[2], 10, 64)
	switch {
	case m[1] == "" && noTo == nil && to > size && p.has(func(f *Fault) bool { return f.ShortRanges }):
		return size, size, true
	case m[1] == "" && noTo == nil:
		return max(0, size-to), size, true
	case noFrom == nil && m[2] == "":
		return from, size, true
	case noFrom == nil && noTo == nil && from <= to:
		return from, min(to+1, size), true
	}
	return 0, size, false
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
	if gap, ok := c.plan.gap(c.Request); ok {
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
		if s.etags == ETagOpaque {
			next.ETag = quoted(binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, s.rng.Uint64()), s.rng.Uint64()))
		}
		next.Modified = now
		if previous != nil && c.plan.has(func(f *Fault) bool { return f.MergeMetadata }) {
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
	if a := s.commit(c, o); a != nil {
		return a
	}
	h := http.Header{"Etag": {o.ETag}}
	maps.Copy(h, o.sums)
	return &response{status: http.StatusOK, header: h}
}

func (s *Server) deleteObject(c *call) *response {
	if c.header.Get("If-Match")+c.header.Get("If-None-Match") != "" { // stores disagree about it
		return fail("NotImplemented")
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
	NextContinuationToken string `xml:",omitempty"`
	EncodingType          string `xml:",omitempty"`
	KeyCount              int
	MaxKeys               int
	IsTruncated           bool
	Contents              []listEntry
}

// maxPage is how many keys S3 lists at once.
const maxPage = 1000

func (s *Server) listObjects(c *call) *response {
	q := c.Query
	result := listResult{Name: c.Bucket, EncodingType: q.Get("encoding-type"), MaxKeys: maxPage}
	encode := func(s string) string { return s }
	if result.EncodingType == "url" { // as the SDK for Python asks for
		encode = func(s string) string { return strings.ReplaceAll(url.QueryEscape(s), "%2F", "/") }
	}
	prefix := q.Get("prefix")
	result.Prefix = encode(prefix)
	if q.Has("max-keys") {
		n, err := strconv.Atoi(q.Get("max-keys"))
		if err != nil || n < 1 {
			return fail("InvalidArgument")
		}
		result.MaxKeys = min(n, maxPage)
	}
	after := q.Get("start-after")
	if q.Has("continuation-token") {
		last, err := base64.RawURLEncoding.DecodeString(q.Get("continuation-token"))
		if err != nil || len(last) == 0 {
			return fail("InvalidArgument")
		}
		after = string(last)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.buckets[c.Bucket]
	if b == nil {
		return fail("NoSuchBucket")
	}
	last := ""
	first, _ := slices.BinarySearch(b.keys, max(prefix, after+"\x00")) // the least key that is greater
	for _, key := range b.keys[first:] {
		if !strings.HasPrefix(key, prefix) {
			break
		}
		if result.KeyCount == result.MaxKeys {
			result.IsTruncated = true
			result.NextContinuationToken = base64.RawURLEncoding.EncodeToString([]byte(last))
			break
		}
		o := b.objects[key]
		result.Contents = append(result.Contents, listEntry{encode(key), stamp(o.Modified), o.ETag, int64(len(o.Body)), "STANDARD"})
		result.KeyCount++
		last = key
	}
	return document(result)
}

// stamp formats a time as in S3's documents.
func stamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }
