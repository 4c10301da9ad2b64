package s3test

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// Op is an operation of S3, by Amazon's name.
type Op string

// The operations. All others are counted as Unknown, and refused.
const (
	CreateBucket  Op = "CreateBucket"
	HeadBucket    Op = "HeadBucket"
	ListObjectsV2 Op = "ListObjectsV2"
	PutObject     Op = "PutObject"
	GetObject     Op = "GetObject"
	HeadObject    Op = "HeadObject"
	DeleteObject  Op = "DeleteObject"
	Unknown       Op = "Unknown"
)

// Request is one request, as rules and hooks see it. It must not be changed.
type Request struct {
	// ID is the request ID that the response carries.
	ID     string
	Op     Op
	Bucket string
	Key    string
	Header http.Header
	Query  url.Values
	Body   []byte
}

// signs identifies an operation by method, level and query.
type signs struct {
	op     Op
	method string
	object bool     // names a key
	need   []string // parameters that must be there
	may    []string // parameters that may be there
}

var operations = []signs{
	{CreateBucket, http.MethodPut, false, nil, nil},
	{HeadBucket, http.MethodHead, false, nil, nil},
	{ListObjectsV2, http.MethodGet, false, []string{"list-type"}, []string{"prefix", "start-after", "continuation-token", "max-keys", "encoding-type", "fetch-owner"}},
	{PutObject, http.MethodPut, true, nil, nil},
	{GetObject, http.MethodGet, true, nil, nil},
	{HeadObject, http.MethodHead, true, nil, nil},
	{DeleteObject, http.MethodDelete, true, nil, nil},
}

// parse returns what a request asks for. A parameter that the operation does
// not know makes it Unknown: a PUT of ?tagging must not become a PUT of the
// object.
func parse(r *http.Request) *Request {
	bucket, key, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	req := &Request{Op: Unknown, Bucket: bucket, Key: key, Header: r.Header, Query: r.URL.Query()}
	var given []string
	for name := range req.Query {
		// x-id is a hint of the SDK, X-Amz-* belongs to presigned requests.
		if name != "x-id" && !strings.HasPrefix(name, "X-Amz-") {
			given = append(given, name)
		}
	}
	for _, o := range operations {
		if o.method == r.Method && o.object == (key != "") && o.matches(given) && bucket != "" {
			req.Op = o.op
		}
	}
	if r.Header.Get("X-Amz-Copy-Source") != "" {
		req.Op = Unknown
	}
	return req
}

func (o signs) matches(given []string) bool {
	for _, name := range o.need {
		if !slices.Contains(given, name) {
			return false
		}
	}
	return !slices.ContainsFunc(given, func(name string) bool {
		return !slices.Contains(o.need, name) && !slices.Contains(o.may, name)
	})
}

// checkWriteSyntax refuses conditions that writes do not support.
func checkWriteSyntax(c *call) *response {
	match, none := c.header.Get("If-Match"), c.header.Get("If-None-Match")
	switch {
	case none != "" && none != "*":
		return fail("NotImplemented", "Header", "If-None-Match")
	case none != "" && match != "":
		return fail("NotImplemented", "Header", "If-Match,If-None-Match")
	case match == "*":
		// Stores disagree about it, so nobody should depend on it.
		return fail("NotImplemented", "Header", "If-Match")
	}
	return nil
}

// checkWrite decides the conditions of PutObject.
func checkWrite(c *call, current *Object) *response {
	if c.header.Get("If-None-Match") != "" && current != nil {
		return fail("PreconditionFailed", "Condition", "If-None-Match")
	}
	if match := c.header.Get("If-Match"); match != "" {
		if current == nil {
			return fail("NoSuchKey")
		}
		if !sameETag(match, current.ETag) {
			return fail("PreconditionFailed", "Condition", "If-Match")
		}
	}
	return nil
}

// checkRead decides the conditions of GetObject and HeadObject, except those by
// date, which it does not know.
func checkRead(c *call, o *Object) *response {
	if match := c.header.Get("If-Match"); match != "" {
		if !listsETag(match, o.ETag) {
			return fail("PreconditionFailed", "Condition", "If-Match")
		}
	}
	if none := c.header.Get("If-None-Match"); none != "" && listsETag(none, o.ETag) {
		return &response{status: http.StatusNotModified, header: http.Header{
			"Etag":          {o.ETag},
			"Last-Modified": {o.Modified.UTC().Format(http.TimeFormat)},
		}}
	}
	return nil
}

// sameETag compares ETags; clients may leave the quotes out.
func sameETag(a, b string) bool { return strings.Trim(a, `"`) == strings.Trim(b, `"`) }

func listsETag(list, etag string) bool {
	for item := range strings.SplitSeq(list, ",") {
		if item = strings.TrimSpace(item); item == "*" || sameETag(item, etag) {
			return true
		}
	}
	return false
}
