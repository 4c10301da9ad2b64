package lockclient

import (
	"context"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
)

func TestDeadline(t *testing.T) {
	for _, test := range []struct{ sent, ttl, want time.Duration }{
		{0, time.Second, 999 * time.Millisecond},
		{5, 1000, 1004},
		{5, 1001, 1004}, // the margin is rounded up
		{time.Hour, MaxTTL, time.Hour + MaxTTL - 86400*time.Millisecond},
	} {
		if got := deadline(test.sent, test.ttl); got != test.want {
			t.Errorf("sent %d, TTL %d: %d, want %d", test.sent, test.ttl, got, test.want)
		}
	}
}

func BenchmarkValid(b *testing.B) {
	client := simulate(b, simulation{driver.Now}, nil)
	defer client.Close(context.Background())
	lease := newLease(b.Context(), client, new(request), guard.Claim{Resource: "r"}, driver.Grant{AcquiredAt: time.Now()}, MaxTTL, client.clock()+MaxTTL, client.clock())
	for b.Loop() {
		if !lease.Valid() {
			b.Fatal("not valid")
		}
	}
}
