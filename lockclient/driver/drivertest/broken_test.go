package drivertest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/driver/memory"
)

// TestIssuerThatAlwaysFails: a case that fails without a fault is no evidence that it
// reports the fault.
func TestIssuerThatAlwaysFails(t *testing.T) {
	server := memory.NewServer()
	correct := Harness{
		Issuer: func(testing.TB) driver.Issuer { return server.Issuer() },
		Network: func(testing.TB) (driver.Issuer, Network) {
			i := server.Issuer()
			return i, i
		},
		TTL: time.Minute, Pass: server.Move, Purge: func(testing.TB) {},
	}
	simulated := errors.New("simulated")
	broken := fault{broken: func(driver.Issuer) wrapper {
		return wrapper{
			acquire: func(context.Context, driver.Request) (driver.Grant, error) { return driver.Grant{}, simulated },
			renew: func(_ context.Context, _ []driver.Renewal, out []driver.Renewed) {
				for i := range out {
					out[i].Err = simulated
				}
			},
			release: func(context.Context, guard.Claim) (bool, error) { return false, simulated },
		}
	}}.in(correct)
	failing, working := verdicts(), verdicts()
	for _, f := range faults {
		if reported, err := f.try(t, broken, failing[f.caughtBy]); err == nil {
			t.Errorf("%s: %q counts as caught: %v", f.name, f.caughtBy, reported)
		}
		if _, err := f.try(t, correct, working[f.caughtBy]); err != nil {
			t.Errorf("%s: %v", f.name, err)
		}
	}
}
