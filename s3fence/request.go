package s3fence

import (
	"bytes"
	"context"
	"crypto/md5"
	"encoding/base64"
	"strconv"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
)

// once turns the SDK's retries off. After a lost answer they would repeat a
// conditional write on their own, and our success would come back as 412.
func once(o *s3.Options) {
	o.Retryer = aws.NopRetryer{}
	o.RetryMaxAttempts = 0 // a number would put another retryer around it
}

// str is nil for "", which the SDK takes for "not given".
func str(s string) *string {
	if s == "" {
		return nil
	}
	return aws.String(s) // &s would put every s on the heap
}

// customer returns the fields of SSE-C.
func (b *Bucket) customer() (algorithm, key, sum *string) {
	raw := b.opts.Encryption.CustomerKey
	if len(raw) == 0 {
		return nil, nil, nil
	}
	digest := md5.Sum(raw) // what the protocol asks for, to detect a garbled key
	return aws.String("AES256"), aws.String(base64.StdEncoding.EncodeToString(raw)),
		aws.String(base64.StdEncoding.EncodeToString(digest[:]))
}

// put returns the request that stores body under key with h; with a nil body
// the caller sets one.
func (b *Bucket) put(key string, h Headers, metadata map[string]string, body []byte) *s3.PutObjectInput {
	e := b.opts.Encryption
	in := &s3.PutObjectInput{
		Bucket: &b.name, Key: &key, ExpectedBucketOwner: str(b.opts.ExpectedBucketOwner),
		ChecksumAlgorithm: b.opts.ChecksumAlgorithm, Metadata: metadata,
		ContentType: str(h.ContentType), CacheControl: str(h.CacheControl),
		ContentDisposition: str(h.ContentDisposition), ContentEncoding: str(h.ContentEncoding),
		ContentLanguage: str(h.ContentLanguage), StorageClass: h.StorageClass,
		ServerSideEncryption: e.Algorithm, SSEKMSKeyId: str(e.KMSKeyID), SSEKMSEncryptionContext: str(e.KMSContext),
	}
	if body != nil {
		in.Body, in.ContentLength = bytes.NewReader(body), aws.Int64(int64(len(body)))
	}
	if !h.Expires.IsZero() {
		in.Expires = &h.Expires
	}
	if e.BucketKey {
		in.BucketKeyEnabled = aws.Bool(true)
	}
	in.SSECustomerAlgorithm, in.SSECustomerKey, in.SSECustomerKeyMD5 = b.customer()
	return in
}

// get returns the request that reads key, or its last bytes.
func (b *Bucket) get(key string, last int) *s3.GetObjectInput {
	in := &s3.GetObjectInput{Bucket: &b.name, Key: &key, ExpectedBucketOwner: str(b.opts.ExpectedBucketOwner)}
	if last > 0 {
		in.Range = aws.String("bytes=-" + strconv.Itoa(last))
	}
	in.SSECustomerAlgorithm, in.SSECustomerKey, in.SSECustomerKeyMD5 = b.customer()
	return in
}

func (b *Bucket) head(ctx context.Context, key string) (*s3.HeadObjectOutput, error) {
	in := &s3.HeadObjectInput{Bucket: &b.name, Key: &key, ExpectedBucketOwner: str(b.opts.ExpectedBucketOwner)}
	in.SSECustomerAlgorithm, in.SSECustomerKey, in.SSECustomerKeyMD5 = b.customer()
	return b.client.HeadObject(ctx, in)
}

// remove deletes key; with an etag only the object that has it.
func (b *Bucket) remove(ctx context.Context, key, etag string, opts ...func(*s3.Options)) error {
	_, err := b.client.DeleteObject(ctx, &s3.DeleteObjectInput{
		Bucket: &b.name, Key: &key, ExpectedBucketOwner: str(b.opts.ExpectedBucketOwner), IfMatch: str(etag),
	}, opts...)
	return err
}

// list calls f for each object whose key begins with prefix.
func (b *Bucket) list(ctx context.Context, prefix, after string, f func(types.Object) error) error {
	in := &s3.ListObjectsV2Input{
		Bucket: &b.name, Prefix: str(prefix), StartAfter: str(after), ExpectedBucketOwner: str(b.opts.ExpectedBucketOwner),
	}
	for {
		page, err := b.client.ListObjectsV2(ctx, in)
		if err != nil {
			return err
		}
		for _, object := range page.Contents {
			if err := f(object); err != nil {
				return err
			}
		}
		if !aws.ToBool(page.IsTruncated) || aws.ToString(page.NextContinuationToken) == "" {
			return nil
		}
		in.ContinuationToken = page.NextContinuationToken
	}
}
