package lockclient

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient/driver"
)

// stray is an issuer whose first acquire is lost on the way and may arrive later.
type stray struct {
	driver.Issuer
	first *driver.Request
}

func (s *stray) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if s.first == nil {
		s.first = &r
		return driver.Grant{}, guard.OutcomeUnknown("acquire", r.Claim(), errors.New("the connection broke"))
	}
	return s.Issuer.Acquire(ctx, r)
}

// TestStrayAttemptResurrectsNothing: the connection breaks, the client repeats the
// attempt under the same lease ID, works and releases, and then the first attempt
// arrives: it is refused, as is any under an ID of the caller's own. The control is a
// client whose answer was not lost: its release spends nothing. (P8)
func TestStrayAttemptResurrectsNothing(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	for name, test := range map[string]struct {
		lost, spent bool
		given       string
	}{
		"lost":    {lost: true, spent: true},
		"given":   {given: "mine", spent: true},
		"control": {},
	} {
		client := newTestClient(t, pool, nil)
		s := &stray{Issuer: client.issuer}
		if !test.lost {
			s.first = &driver.Request{}
		}
		client.issuer = s
		lease, err := client.TryAcquire(t.Context(), name, &AcquireOptions{TTL: time.Hour, LeaseID: test.given})
		testkit.Must(t, err)
		if !test.lost {
			*s.first = driver.Request{Resource: name, LeaseID: lease.ID(), Owner: lease.Owner(), TTL: time.Hour, Timeout: time.Minute}
		}
		testkit.Must(t, lease.Release(t.Context()))
		if _, err := s.Issuer.Acquire(t.Context(), *s.first); errors.Is(err, ErrLeaseIDSpent) != test.spent || s.first.LeaseID != lease.ID() {
			t.Errorf("%s: the first attempt arrives: %v", name, err)
		}
	}
}
