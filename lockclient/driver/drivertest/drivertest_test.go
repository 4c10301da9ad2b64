package drivertest_test

import (
	"testing"

	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/driver/drivertest"
	"github.com/fencepost-go/fencepost/lockclient/driver/memory"
)

// TestMemory: the suite on the issuer in memory, and its mutants.
func TestMemory(t *testing.T) {
	drivertest.Run(t, func(t *testing.T) drivertest.Harness {
		server := memory.NewServer()
		return drivertest.Harness{
			Issuer: func(testing.TB) driver.Issuer { return server.Issuer() },
			Network: func(testing.TB) (driver.Issuer, drivertest.Network) {
				i := server.Issuer()
				return i, i
			},
			Pass:  server.Move,
			Purge: func(testing.TB) {}, // it keeps every resource
		}
	})
}
