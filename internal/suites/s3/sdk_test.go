package s3suite

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go"

	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/s3fence/s3test"
)

const bucket = "bucket"

// sdk is Amazon's client as applications have it, pointed at a server.
func sdk(server *s3test.Server, change ...func(*s3.Options)) *s3.Client {
	return s3.New(s3.Options{
		BaseEndpoint: aws.String(server.URL()),
		UsePathStyle: true,
		Region:       "us-east-1",
		HTTPClient:   server.HTTPClient(),
		// What config.LoadDefaultConfig sets; the zero value is no checksums.
		RequestChecksumCalculation: aws.RequestChecksumCalculationWhenSupported,
		ResponseChecksumValidation: aws.ResponseChecksumValidationWhenSupported,
		Retryer:                    retry.NewStandard(func(o *retry.StandardOptions) { o.MaxBackoff = time.Millisecond }),
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "id", SecretAccessKey: "secret"}, nil
		}),
	}, change...)
}

func newServer(t *testing.T, opts s3test.Options) *s3test.Server {
	opts.Buckets = []string{bucket}
	server := s3test.New(t, &opts)
	return server
}

func put(client *s3.Client, key, body string, change ...func(*s3.PutObjectInput)) (*s3.PutObjectOutput, error) {
	in := &s3.PutObjectInput{Bucket: aws.String(bucket), Key: aws.String(key), Body: strings.NewReader(body)}
	for _, f := range change {
		f(in)
	}
	return client.PutObject(context.Background(), in)
}

func code(err error) string {
	var api smithy.APIError
	if errors.As(err, &api) {
		return api.ErrorCode()
	}
	return ""
}

// By default the SDK sends a checksum with each upload, and verifies the one that
// comes back.
func TestSDKObjects(t *testing.T) {
	for _, tls := range []bool{false, true} { // over which it sends bodies in chunks
		t.Run(fmt.Sprint("TLS ", tls), func(t *testing.T) { sdkObjects(t, newServer(t, s3test.Options{TLS: tls})) })
	}
}

func sdkObjects(t *testing.T, server *s3test.Server) {
	client := sdk(server)
	for _, body := range []string{"", "body", strings.Repeat("large ", 1<<20)} {
		for _, key := range []string{"plain", "two words", "ünïcode/ключ", "/leading", "a//b", "a/../b", "../up", "plus+", "per%cent", strings.Repeat("k", 1024)} {
			out, err := put(client, key, body, func(in *s3.PutObjectInput) {
				in.ContentType, in.CacheControl = aws.String("text/plain"), aws.String("no-store")
				in.Metadata = map[string]string{"fencing-token": "7"}
			})
			if err != nil {
				t.Fatalf("%.40q: %v", key, err)
			}
			if out.ChecksumCRC32 == nil {
				t.Errorf("%.40q: no checksum", key)
			}
			got, err := client.GetObject(t.Context(), &s3.GetObjectInput{Bucket: aws.String(bucket), Key: aws.String(key)})
			if err != nil {
				t.Fatalf("%.40q: %v", key, err)
			}
			read, err := io.ReadAll(got.Body)
			if err != nil || string(read) != body || *got.ETag != *out.ETag || got.Metadata["fencing-token"] != "7" ||
				*got.ContentType != "text/plain" || *got.CacheControl != "no-store" || got.ContentEncoding != nil {
				t.Fatalf("%.40q: %d bytes, %+v, %v", key, len(read), got, err)
			}
			if o, ok := server.Object(bucket, key); !ok || string(o.Body) != body {
				t.Fatalf("%.40q is not what is stored", key)
			}
		}
	}
}

func TestSDKErrors(t *testing.T) {
	server := newServer(t, s3test.Options{})
	client := sdk(server)
	first, err := put(client, "a", "1")
	testkit.Must(t, err)
	match := func(etag string) func(*s3.PutObjectInput) {
		return func(in *s3.PutObjectInput) { in.IfMatch = aws.String(etag) }
	}
	create := func(in *s3.PutObjectInput) { in.IfNoneMatch = aws.String("*") }
	for _, c := range []struct {
		want string
		do   func() error
	}{
		{"PreconditionFailed", func() error { _, err := put(client, "a", "2", create); return err }},
		{"PreconditionFailed", func() error { _, err := put(client, "a", "2", match(`"other"`)); return err }},
		{"NoSuchKey", func() error { _, err := put(client, "missing", "2", match(*first.ETag)); return err }},
		{"NoSuchBucket", func() error {
			_, err := put(client, "a", "2", func(in *s3.PutObjectInput) { in.Bucket = aws.String("missing") })
			return err
		}},
		{"KeyTooLongError", func() error { _, err := put(client, strings.Repeat("k", 1025), "2"); return err }},
		{"NotModified", func() error {
			_, err := client.GetObject(t.Context(), &s3.GetObjectInput{Bucket: aws.String(bucket), Key: aws.String("a"), IfNoneMatch: first.ETag})
			return err
		}},
	} {
		if err := c.do(); code(err) != c.want {
			t.Errorf("want %s, got %v", c.want, err)
		}
	}
	_, err = client.GetObject(t.Context(), &s3.GetObjectInput{Bucket: aws.String(bucket), Key: aws.String("missing")})
	if _, ok := errors.AsType[*types.NoSuchKey](err); !ok {
		t.Errorf("GET: %v", err)
	}
	_, err = client.HeadObject(t.Context(), &s3.HeadObjectInput{Bucket: aws.String(bucket), Key: aws.String("missing")})
	if _, ok := errors.AsType[*types.NotFound](err); !ok {
		t.Errorf("HEAD: %v", err)
	}
	if h := server.History(bucket, ""); len(h) != 1 {
		t.Errorf("%d writes", len(h))
	}
}

// The SDK's own retry turns a success whose response was lost into a failure.
func TestSDKRetriesLostResponse(t *testing.T) {
	server := newServer(t, s3test.Options{})
	server.Inject(s3test.Rule{Ops: []s3test.Op{s3test.PutObject}, Times: 1, Fault: s3test.LoseResponse()})
	_, err := put(sdk(server), "a", "1", func(in *s3.PutObjectInput) { in.IfNoneMatch = aws.String("*") })
	if code(err) != "PreconditionFailed" || server.Count(s3test.PutObject) != 2 || len(server.History(bucket, "a")) != 1 {
		t.Errorf("%v, %d requests, history %+v", err, server.Count(s3test.PutObject), server.History(bucket, "a"))
	}
}

func TestSDKRetriesErrors(t *testing.T) {
	for _, c := range []struct {
		fault    s3test.Fault
		requests int
	}{
		{s3test.Respond(http.StatusInternalServerError), 3},
		{s3test.Respond(http.StatusServiceUnavailable), 3},
		{s3test.LoseRequest(), 3},
		{s3test.Respond(http.StatusConflict), 1},
	} {
		server := newServer(t, s3test.Options{})
		server.Inject(s3test.Rule{Fault: c.fault})
		if _, err := put(sdk(server), "a", "1"); err == nil || server.Count(s3test.PutObject) != c.requests {
			t.Errorf("%+v: %v, %d requests", c.fault, err, server.Count(s3test.PutObject))
		}
	}
}

func TestSDKList(t *testing.T) {
	server := newServer(t, s3test.Options{})
	client := sdk(server)
	var want []string
	for i := range 25 {
		key := fmt.Sprintf("list/%02d & <more>", i)
		if _, err := put(client, key, "x"); err != nil {
			t.Fatal(err)
		}
		want = append(want, key)
	}
	pages := s3.NewListObjectsV2Paginator(client, &s3.ListObjectsV2Input{Bucket: aws.String(bucket), Prefix: aws.String("list/"), MaxKeys: aws.Int32(10)})
	var got []string
	for pages.HasMorePages() {
		page, err := pages.NextPage(t.Context())
		testkit.Must(t, err)
		for _, o := range page.Contents {
			got = append(got, *o.Key)
		}
	}
	if !slices.Equal(got, want) || server.Count(s3test.ListObjectsV2) != 3 {
		t.Errorf("%q in %d pages", got, server.Count(s3test.ListObjectsV2))
	}
}
