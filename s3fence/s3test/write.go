package s3test

import (
	"encoding/xml"
	"fmt"
	"maps"
	"net/http"
)

// commit decides a write and applies it. With next nil, it deletes. complete
// finishes next under the lock, and is where ETags are made. The object that
// was replaced is returned.
func (s *Server) commit(c *call, op Op, key string, check func(*Object) *answer, next *Object, complete func(*bucket)) (*Object, *answer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.buckets[c.Bucket]
	if b == nil {
		return nil, fail("NoSuchBucket")
	}
	if a := check(b.objects[key]); a != nil {
		return nil, a
	}
	if gap, ok := c.plan.gap(s, c.Request); ok {
		// Here a store that compares and writes in two steps loses the race.
		s.mu.Unlock()
		gap()
		s.mu.Lock()
		if s.buckets[c.Bucket] != b {
			return nil, fail("NoSuchBucket")
		}
	}
	previous := b.objects[key]
	now := s.opts.Now()
	if next != nil {
		complete(b)
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
		s.record(c, op, key, previous, next, now)
	}
	return previous, nil
}

func (s *Server) putObject(c *call) *answer {
	if a := checkWriteSyntax(c); a != nil {
		return a
	}
	if c.Size > maxPutSize {
		return fail("EntityTooLarge", "ProposedSize", fmt.Sprint(c.Size), "MaxSizeAllowed", fmt.Sprint(int64(maxPutSize)))
	}
	o, a := c.describe()
	if a != nil {
		return a
	}
	o.Body, o.Size, o.SHA256, o.sums = c.body.data, c.body.size, c.body.sha256, c.body.sums
	if len(o.sums) > 0 {
		o.sums.Set("X-Amz-Checksum-Type", "FULL_OBJECT")
	}
	_, a = s.commit(c, PutObject, c.Key, func(current *Object) *answer { return checkWrite(c, current) }, o, func(*bucket) {
		o.ETag = s.etag(o, c.body.md5[:], "")
	})
	if a != nil {
		return a
	}
	return &answer{status: http.StatusOK, header: o.written()}
}

// written are the headers that tell a writer what was stored.
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

func (s *Server) deleteObject(c *call) *answer {
	if c.header.Get("If-None-Match") != "" {
		return fail("NotImplemented", "Header", "If-None-Match")
	}
	check := func(current *Object) *answer { return checkDelete(c.header.Get("If-Match"), current) }
	if _, a := s.commit(c, DeleteObject, c.Key, check, nil, nil); a != nil {
		return a
	}
	return &answer{status: http.StatusNoContent}
}

func (s *Server) deleteObjects(c *call) *answer {
	var ask struct {
		XMLName xml.Name `xml:"Delete"`
		Quiet   bool
		Object  []struct{ Key, ETag string }
	}
	if xml.Unmarshal(c.Body, &ask) != nil || len(ask.Object) == 0 || len(ask.Object) > 1000 {
		return fail("MalformedXML")
	}
	type deleted struct{ Key string }
	type refused struct{ Key, Code, Message string }
	var result struct {
		XMLName xml.Name `xml:"http://s3.amazonaws.com/doc/2006-03-01/ DeleteResult"`
		Deleted []deleted
		Error   []refused
	}
	for _, o := range ask.Object {
		check := func(current *Object) *answer {
			if c.header.Get("If-Match") == "" && o.ETag != "" {
				return checkDelete(o.ETag, current)
			}
			return nil
		}
		if _, a := s.commit(c, DeleteObjects, o.Key, check, nil, nil); a != nil {
			if a.code == "NoSuchBucket" {
				return a
			}
			result.Error = append(result.Error, refused{o.Key, a.code, a.message})
		} else if !ask.Quiet {
			result.Deleted = append(result.Deleted, deleted{o.Key})
		}
	}
	return document(result)
}
