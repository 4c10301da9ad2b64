package s3test

import (
	"bytes"
	"encoding/xml"
	"net/http"
	"strconv"
	"time"
)

// answer is what a request will be told. With a code it is an error.
type answer struct {
	status  int
	header  http.Header
	body    []byte
	code    string
	message string
	fields  [][2]string // more elements of the error document
}

// failures are the errors that handlers answer with.
var failures = map[string]struct {
	status  int
	message string
}{
	"AccessDenied":                 {403, "Access Denied"},
	"AuthorizationHeaderMalformed": {400, "The authorization header is malformed."},
	"BadDigest":                    {400, "The Content-MD5 or checksum value that you specified did not match what the server received."},
	"BucketAlreadyOwnedByYou":      {409, "Your previous request to create the named bucket succeeded and you already own it."},
	"BucketNotEmpty":               {409, "The bucket you tried to delete is not empty."},
	"ConditionalRequestConflict":   {409, "A conflicting operation occurred during processing of the conditional request."},
	"EntityTooLarge":               {400, "Your proposed upload exceeds the maximum allowed object size."},
	"EntityTooSmall":               {400, "Your proposed upload is smaller than the minimum allowed size."},
	"ExpiredToken":                 {400, "The provided token has expired."},
	"IncompleteBody":               {400, "You did not provide the number of bytes specified by the Content-Length HTTP header."},
	"InternalError":                {500, "We encountered an internal error. Please try again."},
	"InvalidAccessKeyId":           {403, "The AWS Access Key Id you provided does not exist in our records."},
	"InvalidArgument":              {400, "Invalid Argument"},
	"InvalidBucketName":            {400, "The specified bucket is not valid."},
	"InvalidDigest":                {400, "The Content-MD5 you specified is not valid."},
	"InvalidPart":                  {400, "One or more of the specified parts could not be found. The part may not have been uploaded, or the specified entity tag may not match the part's entity tag."},
	"InvalidPartOrder":             {400, "The list of parts was not in ascending order. Parts must be ordered by part number."},
	"InvalidRange":                 {416, "The requested range is not satisfiable"},
	"InvalidRequest":               {400, "Invalid Request"},
	"InvalidURI":                   {400, "Couldn't parse the specified URI."},
	"KeyTooLongError":              {400, "Your key is too long"},
	"MalformedXML":                 {400, "The XML you provided was not well-formed or did not validate against our published schema"},
	"MetadataTooLarge":             {400, "Your metadata headers exceed the maximum allowed metadata size"},
	"MissingContentLength":         {411, "You must provide the Content-Length HTTP header."},
	"NoSuchBucket":                 {404, "The specified bucket does not exist"},
	"NoSuchKey":                    {404, "The specified key does not exist."},
	"NoSuchUpload":                 {404, "The specified multipart upload does not exist. The upload ID may be invalid, or the upload may have been aborted or completed."},
	"NotImplemented":               {501, "A header or parameter you provided implies functionality that is not implemented"},
	"PreconditionFailed":           {412, "At least one of the pre-conditions you specified did not hold"},
	"RequestTimeout":               {400, "Your socket connection to the server was not read from or written to within the timeout period."},
	"SlowDown":                     {503, "Please reduce your request rate."},
	"XAmzContentSHA256Mismatch":    {400, "The provided 'x-amz-content-sha256' header does not match what was computed."},
}

// fail makes an error; name and value pairs become elements of its document.
func fail(code string, pairs ...string) *answer {
	f, ok := failures[code]
	if !ok {
		f.status = http.StatusInternalServerError
	}
	a := &answer{status: f.status, code: code, message: f.message}
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i] == "Message" {
			a.message = pairs[i+1]
			continue
		}
		a.fields = append(a.fields, [2]string{pairs[i], pairs[i+1]})
	}
	return a
}

// document makes an answer with an XML body.
func document(v any) *answer {
	body, err := xml.Marshal(v)
	if err != nil {
		return fail("InternalError", "Message", err.Error())
	}
	return &answer{
		status: http.StatusOK,
		header: http.Header{"Content-Type": {"application/xml"}},
		body:   append([]byte(xml.Header), body...),
	}
}

func (a *answer) write(w http.ResponseWriter, req *Request, method string) {
	h := w.Header()
	for name, values := range a.header {
		h[name] = values
	}
	h.Set("X-Amz-Request-Id", req.ID)
	h.Set("X-Amz-Id-2", req.ID+"/s3test")
	h.Set("Server", "s3test")
	body := a.body
	if a.code != "" {
		h.Set("Content-Type", "application/xml")
		body = a.errorDocument(req)
	}
	if method != http.MethodHead && a.status != http.StatusNoContent && a.status != http.StatusNotModified {
		h.Set("Content-Length", strconv.Itoa(len(body)))
	} else {
		body = nil
	}
	w.WriteHeader(a.status)
	w.Write(body) // a client that has gone does not matter
}

// cut answers with half of the body and ends the connection.
func (a *answer) cut(w http.ResponseWriter, req *Request) {
	h := w.Header()
	for name, values := range a.header {
		h[name] = values
	}
	h.Set("X-Amz-Request-Id", req.ID)
	h.Set("Content-Length", strconv.Itoa(len(a.body)))
	w.WriteHeader(a.status)
	w.Write(a.body[:len(a.body)/2])
	http.NewResponseController(w).Flush()
	panic(http.ErrAbortHandler)
}

func (a *answer) errorDocument(req *Request) []byte {
	var b bytes.Buffer
	b.WriteString(xml.Header + "<Error>")
	element := func(name, value string) {
		b.WriteString("<" + name + ">")
		xml.EscapeText(&b, []byte(value))
		b.WriteString("</" + name + ">")
	}
	element("Code", a.code)
	element("Message", a.message)
	if req.Key != "" {
		element("Key", req.Key)
	}
	if req.Bucket != "" {
		element("BucketName", req.Bucket)
	}
	for _, f := range a.fields {
		element(f[0], f[1])
	}
	element("RequestId", req.ID)
	element("HostId", req.ID+"/s3test")
	b.WriteString("</Error>")
	return b.Bytes()
}

// stamp is a time as S3's documents have it.
func stamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }
