package s3test

import (
	"encoding/xml"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"time"
)

// bucket is guarded by Server.mu. Objects in it never change; they are replaced.
type bucket struct {
	created time.Time
	objects map[string]*Object
	keys    []string // of objects, sorted
	uploads map[string]*upload
}

func newBucket(now time.Time) *bucket {
	return &bucket{created: now, objects: map[string]*Object{}, uploads: map[string]*upload{}}
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

func (s *Server) createBucket(c *call) *answer {
	if !validBucketName(c.Bucket) {
		return fail("InvalidBucketName")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.buckets[c.Bucket] != nil {
		return fail("BucketAlreadyOwnedByYou")
	}
	s.buckets[c.Bucket] = newBucket(s.opts.Now())
	return &answer{status: http.StatusOK, header: http.Header{"Location": {"/" + c.Bucket}}}
}

func (s *Server) headBucket(c *call) *answer {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.buckets[c.Bucket] == nil {
		return fail("NoSuchBucket")
	}
	return &answer{status: http.StatusOK, header: http.Header{"X-Amz-Bucket-Region": {s.region()}}}
}

func (s *Server) deleteBucket(c *call) *answer {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.buckets[c.Bucket]
	switch {
	case b == nil:
		return fail("NoSuchBucket")
	case len(b.objects) > 0 || len(b.uploads) > 0:
		return fail("BucketNotEmpty")
	}
	delete(s.buckets, c.Bucket)
	return &answer{status: http.StatusNoContent}
}

func (s *Server) getBucketLocation(c *call) *answer {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.buckets[c.Bucket] == nil {
		return fail("NoSuchBucket")
	}
	location := s.region()
	if location == "us-east-1" {
		location = "" // the first region had no name
	}
	return document(struct {
		XMLName xml.Name `xml:"http://s3.amazonaws.com/doc/2006-03-01/ LocationConstraint"`
		Name    string   `xml:",chardata"`
	}{Name: location})
}

func (s *Server) region() string {
	if s.opts.Region == "" {
		return "us-east-1"
	}
	return s.opts.Region
}

func (s *Server) listBuckets(*call) *answer {
	type entry struct {
		Name         string
		CreationDate string
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var entries []entry
	for _, name := range slices.Sorted(maps.Keys(s.buckets)) {
		entries = append(entries, entry{name, stamp(s.buckets[name].created)})
	}
	return document(struct {
		XMLName xml.Name `xml:"http://s3.amazonaws.com/doc/2006-03-01/ ListAllMyBucketsResult"`
		Owner   struct{ ID string }
		Buckets []entry `xml:"Buckets>Bucket"`
	}{Owner: struct{ ID string }{"s3test"}, Buckets: entries})
}
