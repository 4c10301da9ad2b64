package main

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/suites/s3/gateway"
	"github.com/fencepost-go/fencepost/s3fence"
)

const bucket = "bench"

func costS3(ctx context.Context, e *env, s *Section) error {
	g := gateway.Start(tb{e: e, ctx: ctx}, gateway.Versitygw)
	client := s3.New(s3.Options{
		BaseEndpoint: aws.String(g.URL), UsePathStyle: true, Region: g.Region,
		Retryer: retry.NewStandard(func(o *retry.StandardOptions) { o.MaxBackoff = 20 * time.Millisecond }),
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: g.AccessKeyID, SecretAccessKey: g.SecretAccessKey}, nil
		}),
	})
	if _, err := client.CreateBucket(ctx, &s3.CreateBucketInput{Bucket: aws.String(bucket)}); err != nil {
		return err
	}
	b, err := s3fence.Open(ctx, client, bucket, nil)
	if err != nil {
		return err
	}
	random := rand.NewChaCha8([32]byte{})
	for _, size := range []struct {
		name   string
		bytes  int
		rounds int
	}{{"1 KiB", 1 << 10, 16}, {"64 KiB", 64 << 10, 16}, {"1 MiB", 1 << 20, 12}, {"64 MiB", 64 << 20, 4}} {
		if e.short && size.bytes > 64<<10 {
			continue
		}
		body := make([]byte, size.bytes)
		copy(body, strings.Repeat("tenant_123;2026-04;12,50\n", len(body)/50))
		random.Read(body[len(body)/2:])
		token := guard.Token(0)
		// Each write has a body of its own, as BodiesNeverRepeat declares.
		next := func() []byte {
			token++
			copy(body, fmt.Sprintf("%020d", token))
			return body
		}
		ways := []Way{{Name: "bare PUT", Do: timed(func(ctx context.Context, _, _ int) error {
			_, err := client.PutObject(ctx, &s3.PutObjectInput{Bucket: aws.String(bucket), Key: aws.String("bare"), Body: bytes.NewReader(next())})
			return err
		})}}
		fenced := func(name string, put func(context.Context, guard.Claim, string, []byte, *s3fence.Headers) error) {
			key := fmt.Sprintf("%s-%d", name, size.bytes)
			ways = append(ways, Way{Name: name, Do: timed(func(ctx context.Context, _, _ int) error {
				body := next()
				return put(ctx, guard.Claim{Resource: "bench", Token: token, LeaseID: "a"}, key, body, nil)
			})})
		}
		for _, mode := range []s3fence.Mode{s3fence.Sealed, s3fence.SealedGzip, s3fence.Plain} {
			o, err := b.Objects(mode, &s3fence.ObjectsOptions{InsecureAnyResource: true, BodiesNeverRepeat: mode == s3fence.Plain})
			if err != nil {
				return err
			}
			fenced(mode.String(), o.Put)
		}
		p, err := b.Pointers(&s3fence.ObjectsOptions{InsecureAnyResource: true})
		if err != nil {
			return err
		}
		fenced("pointer", func(ctx context.Context, claim guard.Claim, key string, body []byte, h *s3fence.Headers) error {
			return p.Put(ctx, claim, key, bytes.NewReader(body), h)
		})
		figures, err := Compare(ctx, Plan{Clients: 1, Block: 60 * time.Millisecond, Rounds: e.rounds(size.rounds)}, ways...)
		if err != nil {
			return err
		}
		s.add(size.name, figures)
	}
	return nil
}
