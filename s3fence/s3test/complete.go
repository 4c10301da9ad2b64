package s3test

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/xml"
	"fmt"
	"net/http"
	"slices"
	"strconv"
)

// completePart is what a client says about a part when it completes an upload.
type completePart struct {
	PartNumber        int
	ETag              string
	ChecksumCRC32     string
	ChecksumCRC32C    string
	ChecksumCRC64NVME string
	ChecksumSHA1      string
	ChecksumSHA256    string
}

// sums returns the checksums by header.
func (p *completePart) sums() map[string]string {
	return map[string]string{
		sumPrefix + "Crc32":     p.ChecksumCRC32,
		sumPrefix + "Crc32c":    p.ChecksumCRC32C,
		sumPrefix + "Crc64nvme": p.ChecksumCRC64NVME,
		sumPrefix + "Sha1":      p.ChecksumSHA1,
		sumPrefix + "Sha256":    p.ChecksumSHA256,
	}
}

func (s *Server) completeUpload(c *call) *answer {
	if a := checkWriteSyntax(c); a != nil {
		return a
	}
	var ask struct {
		XMLName xml.Name `xml:"CompleteMultipartUpload"`
		Part    []completePart
	}
	if xml.Unmarshal(c.Body, &ask) != nil || len(ask.Part) == 0 || len(ask.Part) > 10000 {
		return fail("MalformedXML")
	}
	s.mu.Lock()
	_, u, a := s.upload(c)
	var o *Object
	if a == nil {
		o, a = s.assemble(c, u, ask.Part)
	}
	s.mu.Unlock()
	if a != nil {
		return a
	}
	// Parts that arrive from here on are not part of the object.
	check := func(current *Object) *answer {
		if _, _, a := s.upload(c); a != nil {
			return a
		}
		return checkWrite(c, current)
	}
	if _, a := s.commit(c, CompleteMultipartUpload, c.Key, check, o, func(b *bucket) { delete(b.uploads, u.id) }); a != nil {
		return a
	}
	answered := document(struct {
		XMLName                     xml.Name `xml:"http://s3.amazonaws.com/doc/2006-03-01/ CompleteMultipartUploadResult"`
		Location, Bucket, Key, ETag string
	}{Location: s.URL() + "/" + c.Bucket + "/" + c.Key, Bucket: c.Bucket, Key: c.Key, ETag: o.ETag})
	for name, values := range o.written() {
		if name != "Etag" {
			answered.header[name] = values
		}
	}
	return answered
}

// assemble makes the object of an upload's parts. s.mu is held.
func (s *Server) assemble(c *call, u *upload, parts []completePart) (*Object, *answer) {
	o := *u.object
	var numbers []int
	if !slices.IsSortedFunc(parts, func(a, b completePart) int { return cmp.Compare(a.PartNumber, b.PartNumber) }) {
		return nil, fail("InvalidPartOrder", "UploadId", u.id)
	}
	for i, p := range parts {
		have := u.parts[p.PartNumber]
		if i > 0 && p.PartNumber == parts[i-1].PartNumber {
			return nil, fail("InvalidPartOrder", "UploadId", u.id)
		}
		if have == nil || !sameETag(p.ETag, have.etag) {
			return nil, fail("InvalidPart", "UploadId", u.id, "PartNumber", strconv.Itoa(p.PartNumber), "ETag", p.ETag)
		}
		if a := u.checkPartSums(p, have); a != nil {
			return nil, a
		}
		if i < len(parts)-1 && have.body.size < s.opts.MinPartSize {
			return nil, fail("EntityTooSmall", "ProposedSize", fmt.Sprint(have.body.size), "MinSizeAllowed", fmt.Sprint(s.opts.MinPartSize),
				"PartNumber", strconv.Itoa(p.PartNumber), "ETag", p.ETag)
		}
		numbers = append(numbers, p.PartNumber)
		o.Size += have.body.size
	}
	if want := c.header.Get("X-Amz-Mp-Object-Size"); want != "" && want != strconv.FormatInt(o.Size, 10) {
		return nil, fail("InvalidRequest", "Message", "The provided 'x-amz-mp-object-size' header does not match what was computed.")
	}
	if !u.discarded {
		o.Body = make([]byte, 0, o.Size)
		for _, n := range numbers {
			o.Body = append(o.Body, u.parts[n].body.data...)
		}
		o.SHA256 = sha256.Sum256(o.Body)
	}
	o.ETag = s.multipartETag(u, numbers)
	o.sums = http.Header{}
	if a := u.wholeSum(c, &o, numbers); a != nil {
		return nil, a
	}
	return &o, nil
}

// checkPartSums compares the checksums that the client repeats for a part. With
// a composite checksum Amazon insists on them.
func (u *upload) checkPartSums(p completePart, have *part) *answer {
	for name, sum := range p.sums() {
		if sum != "" && have.body.sums.Get(name) != sum {
			return fail("InvalidPart", "UploadId", u.id, "PartNumber", strconv.Itoa(p.PartNumber), "ETag", p.ETag)
		}
	}
	if u.algorithm != "" && !u.full && p.sums()[u.algorithm] == "" {
		return fail("InvalidRequest", "Message", "The upload was created using a "+algorithm(u.algorithm)+
			" checksum. The complete request must include the checksum for each part. It was missing for part "+
			strconv.Itoa(p.PartNumber)+" in the request.")
	}
	return nil
}

// wholeSum sets the object's checksum: that of the parts' checksums, or, where
// the bodies were kept, of the whole body. The client's, if any, must agree.
func (u *upload) wholeSum(c *call, o *Object, numbers []int) *answer {
	if u.algorithm == "" {
		return nil
	}
	h := newSum(u.algorithm)
	suffix := ""
	switch {
	case !u.full:
		suffix = "-" + strconv.Itoa(len(numbers))
		for _, n := range numbers {
			raw, _ := base64.StdEncoding.DecodeString(u.parts[n].body.sums.Get(u.algorithm))
			h.Write(raw)
		}
		o.sums.Set("X-Amz-Checksum-Type", "COMPOSITE")
	case u.discarded:
		return nil // it cannot be computed any more
	default:
		h.Write(o.Body)
		o.sums.Set("X-Amz-Checksum-Type", "FULL_OBJECT")
	}
	sum := h.Sum(nil)
	o.sums.Set(u.algorithm, base64.StdEncoding.EncodeToString(sum)+suffix)
	if want := c.header.Get(u.algorithm); want != "" {
		raw, err := base64.StdEncoding.DecodeString(want)
		if suffix == "" && (err != nil || !bytes.Equal(raw, sum)) {
			return fail("BadDigest", "Message", "The "+algorithm(u.algorithm)+" you specified did not match the calculated checksum.")
		}
	}
	return nil
}
