package s3test

import (
	"cmp"
	"encoding/xml"
	"maps"
	"slices"
	"strconv"
	"strings"
)

func (s *Server) listParts(c *call) *answer {
	limit, ok := pageSize(c.Query, "max-parts")
	marker := 0
	if m := c.Query.Get("part-number-marker"); m != "" {
		var err error
		marker, err = strconv.Atoi(m)
		ok = ok && err == nil && marker >= 0
	}
	if !ok {
		return fail("InvalidArgument")
	}
	type entry struct {
		PartNumber   int
		LastModified string
		ETag         string
		Size         int64
	}
	var result struct {
		XMLName               xml.Name `xml:"http://s3.amazonaws.com/doc/2006-03-01/ ListPartsResult"`
		Bucket, Key, UploadId string
		PartNumberMarker      int
		NextPartNumberMarker  int
		MaxParts              int
		IsTruncated           bool
		Part                  []entry
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	_, u, a := s.upload(c)
	if a != nil {
		return a
	}
	result.Bucket, result.Key, result.UploadId = c.Bucket, c.Key, u.id
	result.PartNumberMarker, result.MaxParts = marker, limit
	for _, n := range slices.Sorted(maps.Keys(u.parts)) {
		if n <= marker {
			continue
		}
		if len(result.Part) == limit {
			result.IsTruncated = limit > 0
			break
		}
		p := u.parts[n]
		result.Part = append(result.Part, entry{n, stamp(p.modified), p.etag, p.body.size})
		result.NextPartNumberMarker = n
	}
	return document(result)
}

func (s *Server) listUploads(c *call) *answer {
	limit, ok := pageSize(c.Query, "max-uploads")
	if !ok || !validEncoding(c.Query) {
		return fail("InvalidArgument")
	}
	type entry struct{ Key, UploadId, Initiated string }
	var result struct {
		XMLName            xml.Name `xml:"http://s3.amazonaws.com/doc/2006-03-01/ ListMultipartUploadsResult"`
		Bucket             string
		Prefix             string
		KeyMarker          string
		UploadIdMarker     string
		NextKeyMarker      string `xml:",omitempty"`
		NextUploadIdMarker string `xml:",omitempty"`
		EncodingType       string `xml:",omitempty"`
		MaxUploads         int
		IsTruncated        bool
		Upload             []entry
	}
	keyMarker, idMarker := c.Query.Get("key-marker"), c.Query.Get("upload-id-marker")
	encode := encoding(c.Query)
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.buckets[c.Bucket]
	if b == nil {
		return fail("NoSuchBucket")
	}
	result.Bucket, result.Prefix, result.MaxUploads = c.Bucket, encode(c.Query.Get("prefix")), limit
	result.KeyMarker, result.UploadIdMarker, result.EncodingType = encode(keyMarker), idMarker, c.Query.Get("encoding-type")
	uploads := slices.SortedFunc(maps.Values(b.uploads), func(x, y *upload) int {
		return cmp.Or(cmp.Compare(x.object.Key, y.object.Key), cmp.Compare(x.id, y.id))
	})
	for _, u := range uploads {
		key := u.object.Key
		// Without an upload ID the marker stands for all uploads of its key.
		if !strings.HasPrefix(key, c.Query.Get("prefix")) || key < keyMarker ||
			keyMarker != "" && key == keyMarker && (idMarker == "" || u.id <= idMarker) {
			continue
		}
		if len(result.Upload) == limit {
			result.IsTruncated = limit > 0
			break
		}
		result.Upload = append(result.Upload, entry{encode(key), u.id, stamp(u.started)})
		result.NextKeyMarker, result.NextUploadIdMarker = encode(key), u.id
	}
	if !result.IsTruncated {
		result.NextKeyMarker, result.NextUploadIdMarker = "", ""
	}
	return document(result)
}
