package s3conform

import (
	"encoding/base64"
	"encoding/binary"
	"hash/crc32"
	"net/http"
)

// sumHeader is the checksum that Amazon's SDK sends.
const sumHeader = "x-amz-checksum-crc32"

func sum(body string) string {
	return base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint32(nil, crc32.ChecksumIEEE([]byte(body))))
}

var checksumCases = []testCase{
	{"checksum is kept", func(k *trial) {
		k.put("a", "body", sumHeader, sum("body")).want(http.StatusOK, "")
		described(k.get("a", "x-amz-checksum-mode", "ENABLED"), http.CanonicalHeaderKey(sumHeader), sum("body"))
		k.holds("a", "body", "")
	}},
}
