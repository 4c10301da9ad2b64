package main

import (
	"bytes"
	"compress/gzip"
	"encoding/csv"
	"io"
	"maps"
	"slices"
	"strconv"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/fencepost-go/fencepost/s3fence/s3test"
)

// The month's export is one object, which readers fetch at any time.
const (
	exportBucket = "invoices"
	exportKey    = tenant + "/" + period + ".csv"
	// exportedBy is metadata: who wrote the object.
	exportedBy = "exported-by"
)

// newS3 returns a client of the story's S3 server, which accepts any
// credentials. An application makes its own from its AWS configuration.
func newS3(endpoint string) *s3.Client {
	return s3.New(s3.Options{
		BaseEndpoint: aws.String(endpoint), UsePathStyle: true, Region: "eu-central-1", Credentials: aws.AnonymousCredentials{},
	})
}

// exportOf returns the content of the export.
func exportOf(amounts map[string]int64) []byte {
	var out bytes.Buffer
	w := csv.NewWriter(&out)
	for _, customer := range slices.Sorted(maps.Keys(amounts)) {
		w.Write([]string{customer, strconv.FormatInt(amounts[customer], 10)}) // to memory: it cannot fail
	}
	w.Flush()
	return out.Bytes()
}

// export is the object as its readers find it.
type export struct {
	Content    string
	ExportedBy string
}

// readExport reads the object as a reader that knows nothing of fences does: it
// is gzip, and the token is in a header field that such readers skip. It
// returns the zero value if there is no object.
func readExport(server *s3test.Server, fenced bool) (export, error) {
	o, ok := server.Object(exportBucket, exportKey)
	if !ok {
		return export{}, nil
	}
	body := o.Body
	if fenced {
		r, err := gzip.NewReader(bytes.NewReader(body))
		if err != nil {
			return export{}, err
		}
		if body, err = io.ReadAll(r); err != nil {
			return export{}, err
		}
	}
	return export{Content: string(body), ExportedBy: o.Metadata[exportedBy]}, nil
}
