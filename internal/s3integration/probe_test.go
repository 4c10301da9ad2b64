//go:build unix

package s3integration

import (
	"errors"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/fencepost-go/fencepost/internal/s3integration/gateway"
	"github.com/fencepost-go/fencepost/s3fence"
	"github.com/fencepost-go/fencepost/s3fence/s3test"
)

// The probe must refuse the correct stores in no run. With the one that races it
// is a coin thrown often, since a real store cannot be told when to race: all runs
// but one in thousands refuse it, so that more than a third that do not are no
// chance. That every race which happens is noticed is shown in s3fence, where the
// store can be told.
func TestProbe(t *testing.T) {
	runs := times(6, 30)
	// A client for each run, as of a process that starts: versitygw 1.7 leaves
	// connections in disorder when it refuses a body that it has not read.
	clients := func(product gateway.Product) func(t *testing.T) func() *s3.Client {
		return func(t *testing.T) func() *s3.Client {
			g := gateway.Start(t, product)
			createBucket(t, gatewayClient(g, g.URL))
			return func() *s3.Client { return gatewayClient(g, g.URL) }
		}
	}
	for _, store := range []struct {
		name    string
		clients func(t *testing.T) func() *s3.Client
		correct bool
	}{
		{"versitygw " + gateway.RacingVersitygw.Version, clients(gateway.RacingVersitygw), false},
		{"versitygw " + gateway.Versitygw.Version, clients(gateway.Versitygw), true},
		{"s3test", func(t *testing.T) func() *s3.Client {
			server := newServer(t, s3test.Options{})
			return func() *s3.Client { return sdk(server) }
		}, true},
	} {
		t.Run(store.name, func(t *testing.T) {
			client := store.clients(t)
			refused := 0
			for range runs {
				b, err := s3fence.Open(t.Context(), client(), bucket, nil)
				switch {
				case err == nil && b.Probe().OpaqueETags:
					t.Error("the ETags were taken for opaque")
				case err == nil:
				case errors.Is(err, s3fence.ErrUnsuitableStore):
					refused++
					if refused == 1 {
						t.Log(err)
					}
				default:
					t.Fatal(err) // neither verdict
				}
			}
			t.Logf("refused in %d of %d runs", refused, runs)
			if least := runs - runs/3; store.correct && refused != 0 {
				t.Errorf("refused in %d of %d runs, want none", refused, runs)
			} else if !store.correct && refused < least {
				t.Errorf("refused in %d of %d runs, want %d at least", refused, runs, least)
			}
		})
	}
}
