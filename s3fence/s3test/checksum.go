package s3test

import (
	"crypto/sha1"
	"crypto/sha256"
	"hash"
	"hash/crc32"
	"hash/crc64"
	"net/http"
	"strings"
)

const sumPrefix = "X-Amz-Checksum-"

// nvme is the polynomial of CRC64NVME, bits reversed as hash/crc64 wants it.
var nvme = crc64.MakeTable(0x9a6c9329ac4bc9b5)

// sums are the checksums that are verified, by header.
var sums = map[string]func() hash.Hash{
	"X-Amz-Checksum-Crc32":     func() hash.Hash { return crc32.NewIEEE() },
	"X-Amz-Checksum-Crc32c":    func() hash.Hash { return crc32.New(crc32.MakeTable(crc32.Castagnoli)) },
	"X-Amz-Checksum-Crc64nvme": func() hash.Hash { return crc64.New(nvme) },
	"X-Amz-Checksum-Sha1":      sha1.New,
	"X-Amz-Checksum-Sha256":    sha256.New,
}

func newSum(header string) hash.Hash { return sums[header]() }

// declaredSums returns the headers of the checksums that a request carries,
// before its body or after it.
func declaredSums(h http.Header) []string {
	var names []string
	for name := range sums {
		if h.Get(name) != "" {
			names = append(names, name)
			continue
		}
		for trailer := range strings.SplitSeq(strings.Join(h.Values("X-Amz-Trailer"), ","), ",") {
			if http.CanonicalHeaderKey(strings.TrimSpace(trailer)) == name {
				names = append(names, name)
			}
		}
	}
	return names
}
