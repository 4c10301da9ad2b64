//go:build unix

package s3suite

import (
	"context"
	"fmt"
	"testing"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/guard/guardtest"
	"github.com/fencepost-go/fencepost/internal/longtest"
	"github.com/fencepost-go/fencepost/s3fence"
)

// The conformance suite on a store that is a process with a file system.
func TestStore(t *testing.T) {
	g := startGateway(t)
	client := gatewayClient(g, g.URL)
	if _, err := s3fence.Open(t.Context(), client, bucket, nil); err != nil {
		t.Fatal(err)
	}
	cases := 0
	handle := func(ctx context.Context, _ guard.Store) (guard.Store, error) {
		b, err := s3fence.Open(ctx, client, bucket, &s3fence.Options{
			Prefix: fmt.Sprint("case-", cases), InsecureSkipProbe: true, // it was probed above
		})
		if err != nil {
			return nil, err
		}
		return b.Store(), nil
	}
	h := guardtest.Harness{
		New: func(ctx context.Context) (guard.Store, error) {
			cases++
			return handle(ctx, nil)
		},
		Replica: handle,
		Reopen:  handle,
	}
	if !longtest.Long {
		h.Goroutines, h.Operations, h.Steps = 4, 12, 100
	}
	guardtest.Run(t, h)
}
