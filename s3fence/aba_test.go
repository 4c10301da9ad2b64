package s3fence_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/s3fence"
	"github.com/fencepost-go/fencepost/s3fence/s3test"
)

// olderAfterNewer counts, in the order in which the server accepted them,
// writes under a token below one that was accepted before.
func olderAfterNewer(t *testing.T, history []s3test.Mutation) (violations int) {
	t.Helper()
	highest := guard.NoToken
	for _, m := range history {
		token, err := guard.ParseToken(m.Metadata["fencing-token"])
		if err != nil {
			t.Fatalf("mutation %d: %v", m.Seq, err)
		}
		if token < highest {
			violations++
		}
		highest = max(highest, token)
	}
	return violations
}

// naivePut is the usual code: read the token, compare, write on condition of
// the ETag.
func naivePut(ctx context.Context, client *s3.Client, c guard.Claim, body, attempt string) error {
	in := &s3.PutObjectInput{
		Bucket: aws.String(bucketName), Key: aws.String(key), Body: bytes.NewReader([]byte(body)),
		Metadata: map[string]string{"fencing-token": c.Token.String(), "attempt": attempt},
	}
	head, err := client.HeadObject(ctx, &s3.HeadObjectInput{Bucket: in.Bucket, Key: in.Key})
	if err != nil {
		in.IfNoneMatch = aws.String("*")
	} else {
		n, err := strconv.ParseInt(head.Metadata["fencing-token"], 10, 64)
		if err != nil {
			return err
		}
		if err := guard.Decide(guard.SameOrNewer, guard.Mark{Token: guard.Token(n), LeaseID: c.LeaseID}, c); err != nil {
			return err
		}
		in.IfMatch = head.ETag
	}
	if _, err = client.PutObject(ctx, in); err == nil {
		return nil
	}
	var answer interface{ HTTPStatusCode() int }
	if errors.As(err, &answer) && answer.HTTPStatusCode() == http.StatusPreconditionFailed {
		return &guard.RejectedError{Reason: guard.ReasonStale, Claim: c, Mark: guard.Mark{Token: c.Token + 1}}
	}
	return guard.OutcomeUnknown("put", c, err)
}

// The hole of P1ABA, step by step: a writer compares and is paused, others
// write and restore the old content, and the paused write is released. Then the
// SDK resends a write whose response is lost.
func TestP1ABASteps(t *testing.T) {
	t.Parallel()
	for _, naive := range []bool{false, true} {
		server, b, o := setup(t, s3fence.Sealed, 0)
		other := objects(t, b.On(newClient(server), bucketName), s3fence.Sealed, nil)
		clients := map[*s3fence.Handle]*s3.Client{o: newClient(server), other: newClient(server)}
		write := func(o *s3fence.Handle, token guard.Token, body string) error {
			c, attempt := claim(token, fmt.Sprint("lease-", token)), fmt.Sprint(token, body)
			if naive {
				return naivePut(context.Background(), clients[o], c, body, attempt)
			}
			return o.Put(context.Background(), c, key, bytes.NewReader([]byte(body)),
				&s3fence.Headers{Metadata: map[string]string{"attempt": attempt}})
		}
		must(t, write(o, 1, "X"))
		release, old := hold(t, server, firstPut(s3test.Fault{}), func() error { return write(o, 2, "Y") })
		must(t, write(other, 3, "Y"))
		must(t, write(other, 4, "X"))
		release()
		paused := <-old
		server.Inject(firstPut(s3test.LoseResponse()))
		lost := write(other, 5, "Z")
		if late := olderAfterNewer(t, server.History(bucketName, key)); (late == 1) != naive || late > 1 {
			t.Errorf("naive %v: %d writes were accepted after a newer one", naive, late)
		}
		if (paused == nil) != naive || !naive && !errors.Is(paused, guard.ErrStale) {
			t.Errorf("naive %v: the paused writer was told %v", naive, paused)
		}
		if errors.Is(lost, guard.ErrStale) != naive || !naive && lost != nil {
			t.Errorf("naive %v: the writer whose answer was lost was told %v", naive, lost)
		}
	}
}
