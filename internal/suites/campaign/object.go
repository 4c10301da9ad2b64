package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/s3fence"
)

const bucketName = "campaign"

// Bodies are few, so that they repeat, and with them the ETags of a store that
// derives them from the body; the metadata says what was written.
func bodyOf(d doc) []byte { return fmt.Appendf(nil, "state %d", d.N%2) }

// The metadata in which a document is kept.
const (
	metaDoc    = "campaign-doc"
	metaClient = "campaign-token" // only for rawObject: s3fence has its own
)

func metadataOf(d doc) map[string]string {
	encoded, err := json.Marshal(d)
	if err != nil {
		panic(err) // it has strings and a number
	}
	return map[string]string{metaDoc: string(encoded)}
}

func docOf(m map[string]string) (d doc, err error) {
	err = json.Unmarshal([]byte(m[metaDoc]), &d)
	return d, err
}

func newS3(url string) *s3.Client {
	return s3.New(s3.Options{
		BaseEndpoint: aws.String(url), UsePathStyle: true, Region: "eu-central-1",
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "AKIDEXAMPLE", SecretAccessKey: "secret"}, nil
		}),
		Retryer: retry.AddWithMaxBackoffDelay(retry.NewStandard(), 50*time.Millisecond),
	})
}

// object is an object of s3fence.
type object struct {
	objects interface {
		Put(context.Context, guard.Claim, string, []byte, *s3fence.Headers) error
		Get(context.Context, string) (*s3fence.Object, error)
		Raise(context.Context, guard.Claim, string) error
	}
}

// pointers are Pointers with bodies in memory.
type pointers struct{ *s3fence.Pointers }

func (p pointers) Put(ctx context.Context, claim guard.Claim, key string, body []byte, h *s3fence.Headers) error {
	return p.Pointers.Put(ctx, claim, key, bytes.NewReader(body), h)
}

func newObject(w *worker) (surface, error) {
	client := newS3(w.Objects)
	if w.Guards != guardsOn {
		return &rawObject{client: client, compares: w.Guards == guardsNaive, etags: map[string]string{}}, nil
	}
	// The store is known to enforce preconditions, and the injected faults
	// would fail a probe, which would blame the store.
	bucket, err := s3fence.Open(context.Background(), client, bucketName,
		&s3fence.Options{InsecureSkipProbe: true, RequestTimeout: 5 * time.Second})
	if err != nil {
		return nil, err
	}
	opts := &s3fence.ObjectsOptions{InsecureAnyResource: true} // a resource is its own key
	if w.Surface == "s3-pointer" {
		objects, err := bucket.Pointers(opts)
		return &object{pointers{objects}}, err
	}
	objects, err := bucket.Objects(s3fence.Sealed, opts)
	return &object{objects}, err
}

func (s *object) raise(ctx context.Context, claim guard.Claim) error {
	return s.objects.Raise(ctx, claim, claim.Resource)
}

func (s *object) read(ctx context.Context, claim guard.Claim) (doc, error) {
	o, err := s.objects.Get(ctx, claim.Resource)
	if errors.Is(err, guard.ErrNotFound) {
		return doc{}, nil
	}
	if err != nil {
		return doc{}, err
	}
	defer o.Body.Close()
	body, err := io.ReadAll(o.Body)
	if err != nil {
		return doc{}, err
	}
	d, err := docOf(o.Headers.Metadata)
	if err == nil && string(body) != string(bodyOf(d)) {
		err = fmt.Errorf("%s: the body %q is not that of write %q", claim.Resource, body, d.Write)
	}
	return d, err
}

func (s *object) write(ctx context.Context, claim guard.Claim, next doc) error {
	return s.objects.Put(ctx, claim, claim.Resource, bodyOf(next),
		&s3fence.Headers{Metadata: metadataOf(next)})
}

// rawObject is the usual home-made code: the token is only in the metadata. The
// naive guard compares the token with what was read, and sends If-Match with
// that ETag; without guards nothing is compared.
type rawObject struct {
	client   *s3.Client
	compares bool
	etags    map[string]string // of what was read last; "" for none
	token    int64             // of what was read last
}

func (s *rawObject) raise(context.Context, guard.Claim) error { return nil }

func (s *rawObject) read(ctx context.Context, claim guard.Claim) (doc, error) {
	out, err := s.client.GetObject(ctx, &s3.GetObjectInput{Bucket: aws.String(bucketName), Key: &claim.Resource})
	var code smithy.APIError
	if errors.As(err, &code) && code.ErrorCode() == "NoSuchKey" {
		s.etags[claim.Resource], s.token = "", 0
		return doc{}, nil
	}
	if err != nil {
		return doc{}, err
	}
	defer out.Body.Close()
	s.etags[claim.Resource] = aws.ToString(out.ETag)
	s.token, _ = strconv.ParseInt(out.Metadata[metaClient], 10, 64)
	return docOf(out.Metadata)
}

func (s *rawObject) write(ctx context.Context, claim guard.Claim, next doc) error {
	in := &s3.PutObjectInput{Bucket: aws.String(bucketName), Key: &claim.Resource, Metadata: metadataOf(next)}
	in.Metadata[metaClient] = claim.Token.String()
	in.Body = bytes.NewReader(bodyOf(next))
	if s.compares {
		if s.token > int64(claim.Token) {
			return &guard.RejectedError{Reason: guard.ReasonStale, Claim: claim}
		}
		if etag := s.etags[claim.Resource]; etag != "" {
			in.IfMatch = &etag
		} else {
			in.IfNoneMatch = aws.String("*")
		}
	}
	out, err := s.client.PutObject(ctx, in, func(o *s3.Options) { o.RetryMaxAttempts = 1 })
	var code smithy.APIError
	if errors.As(err, &code) && code.ErrorCode() == "PreconditionFailed" {
		return &guard.RejectedError{Reason: guard.ReasonStale, Claim: claim}
	}
	if err != nil {
		return err
	}
	s.etags[claim.Resource], s.token = aws.ToString(out.ETag), int64(claim.Token)
	return nil
}
