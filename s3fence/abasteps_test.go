package s3fence_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/s3fence"
	"github.com/fencepost-go/fencepost/s3fence/s3test"
)

// The hole of P1ABA, step by step: a writer compares and is paused, others write
// and bring the old content back, and the paused write is let go. Then a write
// whose answer is lost is sent again by the SDK.
func TestP1ABASteps(t *testing.T) {
	for _, naive := range []bool{false, true} {
		server, b, o := setup(t, s3fence.Sealed, 0)
		other := objects(t, b.Handle(newClient(server), bucketName), s3fence.Sealed, nil)
		clients := map[*s3fence.Objects]*s3.Client{o: newClient(server), other: newClient(server)}
		write := func(o *s3fence.Objects, token guard.Token, body string) error {
			c, attempt := claim(token, fmt.Sprint("lease-", token)), fmt.Sprint(token, body)
			if naive {
				return naivePut(context.Background(), clients[o], c, body, attempt)
			}
			return o.Put(context.Background(), c, key, bytes.NewReader([]byte(body)),
				&s3fence.PutOptions{Headers: s3fence.Headers{Metadata: map[string]string{"attempt": attempt}}})
		}
		must := func(err error) {
			if err != nil {
				t.Fatal(err)
			}
		}
		must(write(o, 1, "X"))
		pause := server.Pause(s3test.Rule{Ops: []s3test.Op{s3test.PutObject}, Key: key, Times: 1}, s3test.BeforeApply)
		old := make(chan error, 1)
		go func() { old <- write(o, 2, "Y") }()
		held, err := pause.Wait(t.Context())
		must(err)
		must(write(other, 3, "Y"))
		must(write(other, 4, "X"))
		held.Release()
		paused := <-old
		server.Inject(s3test.Rule{Ops: []s3test.Op{s3test.PutObject}, Key: key, Times: 1, Fault: s3test.LoseResponse()})
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
