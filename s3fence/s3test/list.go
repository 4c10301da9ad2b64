package s3test

import (
	"encoding/base64"
	"encoding/xml"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

type listEntry struct {
	Key          string
	LastModified string
	ETag         string
	Size         int64
	StorageClass string
}

type commonPrefix struct{ Prefix string }

type listResult struct {
	XMLName               xml.Name `xml:"http://s3.amazonaws.com/doc/2006-03-01/ ListBucketResult"`
	Name                  string
	Prefix                string
	Delimiter             string `xml:",omitempty"`
	StartAfter            string `xml:",omitempty"`
	ContinuationToken     string `xml:",omitempty"`
	NextContinuationToken string `xml:",omitempty"`
	EncodingType          string `xml:",omitempty"`
	KeyCount              int
	MaxKeys               int
	IsTruncated           bool
	Contents              []listEntry
	CommonPrefixes        []commonPrefix
}

func (s *Server) listObjects(c *call) *answer {
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
		Name: c.Bucket, Prefix: encode(q.Get("prefix")), Delimiter: encode(q.Get("delimiter")),
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
	for item := range page(b.keys, q.Get("prefix"), q.Get("delimiter"), after) {
		if result.KeyCount == limit {
			result.IsTruncated = limit > 0
			break
		}
		result.KeyCount++
		last = item
		if o := b.objects[item]; o != nil && !isCommonPrefix(item, q.Get("prefix"), q.Get("delimiter")) {
			result.Contents = append(result.Contents, listEntry{encode(item), stamp(o.Modified), o.ETag, o.Size, "STANDARD"})
		} else {
			result.CommonPrefixes = append(result.CommonPrefixes, commonPrefix{encode(item)})
		}
	}
	if result.IsTruncated {
		result.NextContinuationToken = base64.RawURLEncoding.EncodeToString([]byte(last))
	}
	return document(result)
}

// page yields the keys and common prefixes after a key or common prefix, in
// order. keys are sorted.
func page(keys []string, prefix, delimiter, after string) func(func(string) bool) {
	return func(yield func(string) bool) {
		i, found := slices.BinarySearch(keys, max(prefix, after))
		if found && keys[i] == after {
			i++
		}
		for i < len(keys) && strings.HasPrefix(keys[i], prefix) {
			item := keys[i]
			i++
			if delimiter != "" {
				if at := strings.Index(item[len(prefix):], delimiter); at >= 0 {
					item = item[:len(prefix)+at+len(delimiter)]
					for i < len(keys) && strings.HasPrefix(keys[i], item) {
						i++
					}
				}
			}
			// The earlier page may have ended with a common prefix.
			if item == after {
				continue
			}
			if !yield(item) {
				return
			}
		}
	}
}

func isCommonPrefix(item, prefix, delimiter string) bool {
	return delimiter != "" && strings.Contains(item[len(prefix):], delimiter)
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

// encoding returns how keys are written in a listing.
func encoding(q url.Values) func(string) string {
	if q.Get("encoding-type") != "url" {
		return func(s string) string { return s }
	}
	return func(s string) string { return strings.ReplaceAll(url.QueryEscape(s), "%2F", "/") }
}
