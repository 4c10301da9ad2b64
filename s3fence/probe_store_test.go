package s3fence

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
)

// memory is a store of one object that enforces conditions. Tests replace the
// calls that should behave differently.
type memory struct {
	S3
	mu     sync.Mutex
	there  bool
	body   []byte
	etag   string
	fields map[string]string
	writes int

	onPut    func(in *s3.PutObjectInput) (etag string, err error, done bool)
	onGet    func(out *s3.GetObjectOutput) error
	onHead   func(out *s3.HeadObjectOutput) error
	onDelete func(in *s3.DeleteObjectInput) (err error, done bool)
	closed   int // bodies
	opened   int
}

func (m *memory) matches(ifMatch, ifNoneMatch *string) error {
	switch {
	case ifNoneMatch != nil && m.there, ifMatch != nil && m.there && *ifMatch != m.etag:
		return answered{412, "PreconditionFailed"}
	case ifMatch != nil && !m.there:
		return answered{404, "NoSuchKey"}
	}
	return nil
}

func (m *memory) PutObject(_ context.Context, in *s3.PutObjectInput, _ ...func(*s3.Options)) (*s3.PutObjectOutput, error) {
	body, err := io.ReadAll(in.Body)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.writes++
	if m.onPut != nil {
		if etag, err, done := m.onPut(in); done {
			return &s3.PutObjectOutput{ETag: &etag}, err
		}
	}
	if strings.HasSuffix(*in.Key, "-absent") {
		return nil, answered{404, "NoSuchKey"}
	}
	if err := m.matches(in.IfMatch, in.IfNoneMatch); err != nil {
		return nil, err
	}
	m.there, m.body, m.fields, m.etag = true, body, in.Metadata, fmt.Sprintf("%q", fmt.Sprint("e", m.writes))
	return &s3.PutObjectOutput{ETag: aws.String(m.etag)}, nil
}

func (m *memory) GetObject(_ context.Context, in *s3.GetObjectInput, _ ...func(*s3.Options)) (*s3.GetObjectOutput, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.there {
		return nil, answered{404, "NoSuchKey"}
	}
	part := m.body
	out := &s3.GetObjectOutput{ETag: aws.String(m.etag), Metadata: m.fields}
	if in.Range != nil {
		if len(part) == 0 {
			return nil, answered{416, "InvalidRange"}
		}
		from := max(0, len(part)-tailSize)
		out.ContentRange = aws.String(fmt.Sprintf("bytes %d-%d/%d", from, len(part)-1, len(part)))
		part = part[from:]
	}
	out.ContentLength = aws.Int64(int64(len(part)))
	m.opened++
	out.Body = &closing{bytes.NewReader(part), m}
	if m.onGet != nil {
		if err := m.onGet(out); err != nil {
			m.opened--
			return nil, err
		}
	}
	return out, nil
}

type closing struct {
	io.Reader
	m *memory
}

func (c *closing) Close() error {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	c.m.closed++
	return nil
}

func (m *memory) HeadObject(context.Context, *s3.HeadObjectInput, ...func(*s3.Options)) (*s3.HeadObjectOutput, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.there {
		return nil, answered{404, "NotFound"}
	}
	out := &s3.HeadObjectOutput{ETag: aws.String(m.etag), Metadata: m.fields}
	if m.onHead != nil {
		if err := m.onHead(out); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (m *memory) DeleteObject(_ context.Context, in *s3.DeleteObjectInput, _ ...func(*s3.Options)) (*s3.DeleteObjectOutput, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.onDelete != nil {
		if err, done := m.onDelete(in); done {
			return &s3.DeleteObjectOutput{}, err
		}
	}
	if err := m.matches(in.IfMatch, nil); err != nil {
		return nil, err
	}
	m.there = false
	return &s3.DeleteObjectOutput{}, nil
}

// on returns a prober of the store.
func (m *memory) prober() *prober {
	opts, _ := Options{}.resolve()
	b := &Bucket{client: checked{m}, name: "b", opts: opts, clock: time.Now, delay: time.Nanosecond, cache: map[string]state{}}
	return &prober{b: b, key: b.probeKey("x")}
}
