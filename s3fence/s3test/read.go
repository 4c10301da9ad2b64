package s3test

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
)

func (s *Server) getObject(c *call) *answer {
	s.mu.Lock()
	b := s.buckets[c.Bucket]
	if b == nil {
		s.mu.Unlock()
		return fail("NoSuchBucket")
	}
	o := b.objects[c.Key]
	s.mu.Unlock()
	if o == nil {
		return fail("NoSuchKey")
	}
	if a := checkCustomerKey(c, o); a != nil {
		return a
	}
	if a := checkRead(c, o); a != nil {
		return a
	}
	h := o.described()
	a := &answer{status: http.StatusOK, header: h, body: o.Body}
	first, length := int64(0), o.Size
	if r := c.header.Get("Range"); r != "" {
		from, n, verdict := parseRange(r, o.Size)
		if length, ok := strings.CutPrefix(r, "bytes=-"); ok && c.plan.has(func(f *Fault) bool { return f.ShortRanges }) {
			if n, err := strconv.ParseInt(length, 10, 64); err == nil && n > o.Size {
				verdict = rangeBeyond
			}
		}
		switch verdict {
		case rangeBeyond:
			return fail("InvalidRange", "RangeRequested", r, "ActualObjectSize", fmt.Sprint(o.Size))
		case rangeGood:
			first, length = from, n
			a.status = http.StatusPartialContent
			h.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", first, first+length-1, o.Size))
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
	if o.Body == nil {
		return fail("NotImplemented", "Message", "The body of this object was too large to be kept.")
	}
	a.body = o.Body[first : first+length]
	return a
}

// described are the headers that tell a reader what is stored.
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

// parseRange reads a range of bytes. S3 ignores what is not one single range.
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
