package s3fence_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/s3fence"
	"github.com/fencepost-go/fencepost/s3fence/s3test"
)

// exampleClient is a client of a store inside this process; yours comes from
// s3.NewFromConfig.
func exampleClient() (client *s3.Client, end func()) {
	server := s3test.Start(&s3test.Options{Buckets: []string{"invoices"}})
	return s3.New(s3.Options{
		BaseEndpoint: aws.String(server.URL()), UsePathStyle: true, Region: "eu-central-1",
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "AKIDEXAMPLE", SecretAccessKey: "secret"}, nil
		}),
	}), server.Close
}

func exampleBucket(client *s3.Client) *s3fence.Bucket {
	bucket, err := s3fence.Open(context.Background(), client, "invoices", &s3fence.Options{
		InsecureSkipProbe: true, // this store is known; leave it out for yours
	})
	if err != nil {
		log.Fatal(err)
	}
	return bucket
}

// A worker that was paused past its lease comes back and is refused.
func Example() {
	ctx := context.Background()
	client, end := exampleClient()
	defer end()
	bucket, err := s3fence.Open(ctx, client, "invoices", nil)
	if err != nil {
		log.Fatal(err)
	}
	exports, err := bucket.Objects(s3fence.Sealed, &s3fence.ObjectsOptions{
		Resource: guard.Must(guard.NewTemplate("{tenant}:billing-close:{period}")), KeyPattern: "{tenant}/{period}.csv"})
	if err != nil {
		log.Fatal(err)
	}
	const key = "tenant_123/2026-04.csv"
	paused := guard.Claim{Resource: "tenant_123:billing-close:2026-04", Token: 10, LeaseID: "a"}
	holder := guard.Claim{Resource: paused.Resource, Token: 11, LeaseID: "b"}

	fmt.Println(exports.Put(ctx, holder, key, []byte("total;4200"), nil))
	err = exports.Put(ctx, paused, key, []byte("total;0"), nil)
	fmt.Println(errors.Is(err, guard.ErrStale))
	fmt.Println(err)
	// Output:
	// <nil>
	// true
	// fencepost: stale fencing token: token 10 for "tenant_123:billing-close:2026-04", the mark is 11
}

// A new holder raises the mark, then reads, then writes what follows from it.
func ExampleObjects_Raise() {
	ctx := context.Background()
	client, end := exampleClient()
	defer end()
	counters, err := exampleBucket(client).Objects(s3fence.Sealed, &s3fence.ObjectsOptions{InsecureAnyResource: true})
	if err != nil {
		log.Fatal(err)
	}
	old := guard.Claim{Resource: "counter", Token: 10}
	holder := guard.Claim{Resource: "counter", Token: 11}
	if err := counters.Put(ctx, old, "counter", []byte("41"), nil); err != nil {
		log.Fatal(err)
	}

	if err := counters.Raise(ctx, holder, "counter"); err != nil {
		log.Fatal(err)
	}
	object, err := counters.Get(ctx, "counter")
	if err != nil {
		log.Fatal(err)
	}
	defer object.Body.Close()
	var n int
	if _, err := fmt.Fscan(object.Body, &n); err != nil {
		log.Fatal(err)
	}
	// The old holder, still running, can no longer write in between.
	fmt.Println(counters.Put(ctx, old, "counter", []byte("42"), nil) != nil)
	fmt.Println(counters.Put(ctx, holder, "counter", []byte(fmt.Sprint(n+1)), nil))
	// Output:
	// true
	// <nil>
}

// Long content goes behind a pointer, from a file.
func ExamplePointers_Collect() {
	ctx := context.Background()
	client, end := exampleClient()
	defer end()
	dumps, err := exampleBucket(client).Pointers(&s3fence.ObjectsOptions{InsecureAnyResource: true})
	if err != nil {
		log.Fatal(err)
	}
	claim := guard.Claim{Resource: "dump", Token: 10}
	file := strings.NewReader(strings.Repeat("a line\n", 1<<20)) // an *os.File, for example
	if err := dumps.Put(ctx, claim, "dump", file, nil); err != nil {
		log.Fatal(err)
	}
	object, err := dumps.Get(ctx, "dump")
	if err != nil {
		log.Fatal(err)
	}
	defer object.Body.Close()
	n, err := io.Copy(io.Discard, object.Body)
	fmt.Println(n, err)
	// From time to time, anywhere: delete the data that pointers have left.
	done, err := dumps.Collect(ctx, "")
	fmt.Println(done.Pointers, done.Deleted, err)
	// Output:
	// 7340032 <nil>
	// 1 0 <nil>
}
