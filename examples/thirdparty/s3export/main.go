// Command s3export shows fenced objects on any S3 endpoint. It probes the
// store, lets one holder write an export, lets a second take over, and then
// lets the first continue.
//
//	go run . -bucket invoices                                       Amazon S3
//	go run . -endpoint http://127.0.0.1:7070 -bucket invoices       any other
//
// Credentials, region and profile come from the usual places of AWS tools:
// AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_PROFILE, the
// files in ~/.aws. The object stays, with its mark; another run continues from
// there. The exit status is 0 if the stale writer was refused. The code to copy
// is in export.go.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/s3fence"
)

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run returns the exit status: 2 for wrong usage, 1 for a failure.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("s3export", flag.ContinueOnError)
	flags.SetOutput(stderr)
	endpoint := flags.String("endpoint", "", "URL of the store; empty for Amazon's, or what AWS_ENDPOINT_URL says")
	bucket := flags.String("bucket", "", "the bucket, which must exist")
	key := flags.String("key", "fencepost-example/2026-04.csv", "the object's key")
	modeName := flags.String("mode", "sealed", "how the object carries its mark: sealed, gzip, plain or pointer")
	timeout := flags.Duration("timeout", time.Minute, "how long all of it may take")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return 0
		}
		return 2
	}
	mode, known := map[string]s3fence.Mode{
		"sealed": s3fence.Sealed, "gzip": s3fence.SealedGzip, "plain": s3fence.Plain, "pointer": 0,
	}[*modeName]
	switch {
	case flags.NArg() > 0:
		fmt.Fprintf(stderr, "s3export: unexpected argument %q\n", flags.Arg(0))
		return 2
	case *bucket == "":
		fmt.Fprintln(stderr, "s3export: -bucket is required")
		return 2
	case !known:
		fmt.Fprintf(stderr, "s3export: -mode %q must be sealed, gzip, plain or pointer\n", *modeName)
		return 2
	}
	ctx, cancel := context.WithTimeoutCause(ctx, *timeout, fmt.Errorf("not done after %s", *timeout))
	defer cancel()
	client, err := newClient(ctx, *endpoint)
	if err == nil {
		err = story{client: client, bucket: *bucket, key: *key, mode: mode, out: stdout}.tell(ctx)
	}
	if err != nil {
		fmt.Fprintln(stderr, "s3export:", err)
		if cause := context.Cause(ctx); cause != nil {
			fmt.Fprintln(stderr, "s3export:", cause)
		} else if h := hint(err); h != "" {
			fmt.Fprintln(stderr, "s3export:", h)
		}
		if errors.Is(err, guard.ErrInvalid) {
			return 2
		}
		return 1
	}
	return 0
}

// newClient configures a client the way AWS tools are configured.
func newClient(ctx context.Context, endpoint string) (*s3.Client, error) {
	cfg, err := config.LoadDefaultConfig(ctx)
	if err != nil {
		return nil, err
	}
	return s3.NewFromConfig(cfg, func(o *s3.Options) {
		if endpoint != "" {
			o.BaseEndpoint = aws.String(endpoint)
		}
		o.DisableLogOutputChecksumValidationSkipped = true // other stores keep no checksums
		// Self-hosted stores seldom have a DNS name for each bucket.
		o.UsePathStyle = o.BaseEndpoint != nil
		if o.BaseEndpoint != nil && o.Region == "" {
			o.Region = "us-east-1" // the default of most of them
		}
	}), nil
}

// hint returns advice on an error, "" if its text says enough.
func hint(err error) string {
	var api interface{ ErrorCode() string }
	code := ""
	if errors.As(err, &api) {
		code = api.ErrorCode()
	}
	switch text := err.Error(); {
	case errors.Is(err, s3fence.ErrUnsuitableStore):
		return "no writer can be fenced there: choose another store, or ask its makers for conditional writes"
	case errors.Is(err, guard.ErrUnfenced):
		return "another program wrote the object: choose another -key, or put it under a claim with Objects.Adopt"
	case code == "NoSuchBucket":
		return "check -bucket and -endpoint"
	case code == "ExpiredToken" || code == "ExpiredTokenException" || code == "RequestExpired":
		return "log in again: the session in AWS_SESSION_TOKEN or the profile is over"
	case code == "InvalidAccessKeyId" || code == "SignatureDoesNotMatch" || code == "InvalidToken",
		code == "XAdminUserNotFound": // versitygw's name for the first
		return "check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
	case code == "PermanentRedirect" || code == "AuthorizationHeaderMalformed" || code == "IllegalLocationConstraintException":
		return "check AWS_REGION, or the profile's region"
	// The SDK has no types for these.
	case strings.Contains(text, "get credentials"):
		return "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
	case strings.Contains(text, "Missing Region"), strings.Contains(text, "Invalid region"):
		return "set AWS_REGION, or -endpoint"
	}
	return ""
}
