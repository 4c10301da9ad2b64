package s3test

import (
	"bufio"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
)

// errMalformedChunk says that a body is not what aws-chunked should be, as
// opposed to a connection that broke.
var errMalformedChunk = errors.New("malformed chunk")

// chunkReader decodes an aws-chunked body: chunks of
//
//	<length in hex>[;chunk-signature=...]\r\n<bytes>\r\n
//
// the last one empty, then trailing headers. Signatures are not verified.
type chunkReader struct {
	r       *bufio.Reader
	left    int64 // of the current chunk
	inside  bool  // a chunk's bytes were read, its line end was not
	done    bool
	trailer http.Header
}

func newChunkReader(r io.Reader) *chunkReader {
	return &chunkReader{r: bufio.NewReaderSize(r, 64<<10), trailer: http.Header{}}
}

func (c *chunkReader) Read(p []byte) (int, error) {
	for c.left == 0 {
		if c.done {
			return 0, io.EOF
		}
		if err := c.next(); err != nil {
			return 0, err
		}
	}
	n, err := c.r.Read(p[:min(int64(len(p)), c.left)])
	c.left -= int64(n)
	if err == io.EOF {
		err = errMalformedChunk // the HTTP body is whole, the last chunk is missing
	}
	return n, err
}

// next reads the head of the next chunk, and all that follows the last one.
func (c *chunkReader) next() error {
	if c.inside {
		if line, err := c.line(); err != nil || line != "" {
			return errors.Join(errMalformedChunk, err)
		}
	}
	line, err := c.line()
	if err != nil {
		return err
	}
	size, _, _ := strings.Cut(line, ";")
	c.left, err = strconv.ParseInt(size, 16, 63)
	if err != nil || c.left < 0 {
		return errMalformedChunk
	}
	c.inside = true
	if c.left > 0 {
		return nil
	}
	c.done = true
	for {
		line, err := c.line()
		if err == errMalformedChunk || line == "" {
			// Some clients leave the last empty line out.
			_, err := io.Copy(io.Discard, c.r)
			return err
		}
		if err != nil {
			return err
		}
		name, value, ok := strings.Cut(line, ":")
		if !ok {
			return errMalformedChunk
		}
		c.trailer.Set(strings.TrimSpace(name), strings.TrimSpace(value))
	}
}

func (c *chunkReader) line() (string, error) {
	line, err := c.r.ReadString('\n')
	if err == io.EOF {
		return "", errMalformedChunk
	}
	return strings.TrimRight(line, "\r\n"), err
}
