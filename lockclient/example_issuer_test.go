package lockclient_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient"
	"github.com/fencepost-go/fencepost/lockclient/driver"
)

// elected is a lock that another system keeps and that already has a token: the
// resourceVersion of the PUT that took a Kubernetes Lease, the ModifyIndex of a
// Consul key, the attempt number of a workflow engine. It only has to grow with
// every holder.
type elected struct {
	resource string
	token    guard.Token
	leads    func() (until time.Time, ok bool) // what the other system says now
}

func (e elected) Limits() driver.Limits { return driver.Limits{Batch: 1} }

func (e elected) Acquire(_ context.Context, r driver.Request) (driver.Grant, error) {
	from := driver.Now() // before the other system is asked
	until, ok := e.leads()
	if !ok || r.Resource != e.resource {
		return driver.Grant{}, &driver.HeldError{Resource: r.Resource, Remaining: time.Second}
	}
	return driver.Grant{Token: e.token, AcquiredAt: time.Now(), From: from, TTL: min(r.TTL, time.Until(until))}, nil
}

func (e elected) Renew(_ context.Context, renewals []driver.Renewal, results []driver.Renewed) {
	from := driver.Now()
	until, ok := e.leads()
	for n, r := range renewals {
		if !ok || r.Claim.Token != e.token {
			results[n] = driver.Renewed{State: driver.Over}
		} else {
			results[n] = driver.Renewed{State: driver.Extended, From: from, TTL: min(r.TTL, time.Until(until))}
		}
	}
}

func (e elected) Release(context.Context, guard.Claim) (bool, error) { return true, nil } // the other system frees it

func (e elected) Watch(context.Context, driver.Watch, func()) (driver.Watching, error) {
	return driver.Watching{}, driver.ErrNoWatch // waiters poll
}

func (e elected) Close() error { return nil }

// Bring your own token: Hold, its deadline and the fences work as with any
// issuer. Whether tokens grow is the other system's promise.
func ExampleNew_issuer() {
	term := elected{resource: "tenant_123:billing-close", token: 41, leads: func() (time.Time, bool) { return time.Now().Add(time.Hour), true }}
	locks := guard.Must(lockclient.New(term, "pod-7", nil))
	marks := guard.NewMemory()
	marks.Admit(context.Background(), guard.Claim{Resource: term.resource, Token: 42}) // a later leader was here
	err := locks.Hold(context.Background(), term.resource, &lockclient.AcquireOptions{TTL: time.Minute}, func(ctx context.Context) error {
		claim, _ := guard.ClaimFrom(ctx)
		fmt.Println("holding under token", claim.Token)
		_, err := marks.Admit(ctx, claim)
		return err
	})
	fmt.Println(errors.Is(err, guard.ErrStale))
	// Output:
	// holding under token 41
	// true
}
