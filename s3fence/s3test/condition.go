package s3test

import (
	"net/http"
	"strings"
	"time"
)

// checkWriteSyntax refuses conditions that writes do not support.
func checkWriteSyntax(c *call) *answer {
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

// checkWrite decides the conditions of PutObject and CompleteMultipartUpload.
func checkWrite(c *call, current *Object) *answer {
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

// checkDelete decides the conditions of DeleteObject.
func checkDelete(match string, current *Object) *answer {
	switch {
	case match == "":
		return nil
	case current == nil && match != "*":
		return fail("NoSuchKey")
	case current == nil, match != "*" && !sameETag(match, current.ETag):
		return fail("PreconditionFailed", "Condition", "If-Match")
	}
	return nil
}

// checkRead decides the conditions of GetObject and HeadObject: the header with
// a date counts only where its sibling with an ETag is absent.
func checkRead(c *call, o *Object) *answer {
	modified := o.Modified.Truncate(time.Second)
	if match := c.header.Get("If-Match"); match != "" {
		if !listsETag(match, o.ETag) {
			return fail("PreconditionFailed", "Condition", "If-Match")
		}
	} else if since, err := http.ParseTime(c.header.Get("If-Unmodified-Since")); err == nil && modified.After(since) {
		return fail("PreconditionFailed", "Condition", "If-Unmodified-Since")
	}
	unmodified := false
	if none := c.header.Get("If-None-Match"); none != "" {
		unmodified = listsETag(none, o.ETag)
	} else if since, err := http.ParseTime(c.header.Get("If-Modified-Since")); err == nil {
		unmodified = !modified.After(since)
	}
	if unmodified {
		return &answer{status: http.StatusNotModified, header: http.Header{
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
