package lockclient

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/internal/leasetest"
)

// TestLogLines: every attribute of every event, and what is observed and
// counted besides.
func TestLogLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const slow = 2 * time.Second // each request
		var log leasetest.Text
		var mu sync.Mutex
		var seen []guard.Event
		i := &answering{}
		i.acquire = func(_ context.Context, r driver.Request) (driver.Grant, error) {
			from := i.clock()
			time.Sleep(slow)
			switch r.Resource {
			case "held":
				return driver.Grant{}, &HeldError{Resource: r.Resource, Owner: "another", Token: 9, Remaining: 1500 * time.Millisecond}
			case "down":
				return driver.Grant{}, guard.Unavailable("acquire", r.Claim(), errSimulated)
			}
			return driver.Grant{Token: 7, From: from, Reclaimed: r.Resource == "reclaimed"}, nil
		}
		i.renew = func(_ context.Context, renewals []driver.Renewal, results []driver.Renewed) {
			from := i.clock()
			time.Sleep(slow)
			switch len(i.renewed) {
			case 1, 4:
				results[0] = driver.Renewed{State: driver.Extended, From: from}
			case 6:
				results[0] = driver.Renewed{State: driver.Over}
			default:
				results[0] = driver.Renewed{Err: guard.Unavailable("renew", renewals[0].Claim, errSimulated)}
			}
		}
		i.release = func(_ context.Context, claim guard.Claim) (bool, error) {
			if time.Sleep(slow); claim.Resource == "stuck" {
				return false, guard.Unavailable("release", claim, errSimulated)
			}
			return true, nil
		}
		client := i.client(t, &Options{
			Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
				if a.Key == slog.TimeKey {
					return slog.Attr{}
				}
				return a
			}})),
			Observer: guard.ObserverFunc(func(_ context.Context, e guard.Event) {
				mu.Lock()
				defer mu.Unlock()
				seen = append(seen, e)
			}),
		})
		try := func(resource string) *Lease {
			l, _ := client.TryAcquire(t.Context(), resource, &AcquireOptions{TTL: time.Minute, LeaseID: "id"})
			return l
		}
		reset := func() {
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			log.Reset()
			seen = nil
		}
		expect := func(step string, line string, ops ...guard.Event) {
			t.Helper()
			synctest.Wait()
			if got := strings.TrimSuffix(log.String(), "\n"); got != line {
				t.Errorf("%s: logged\n%s, want\n%s", step, got, line)
			}
			log.Reset()
			mu.Lock()
			defer mu.Unlock()
			if len(seen) != len(ops) {
				t.Fatalf("%s: observed %+v", step, seen)
			}
			for n, want := range ops {
				got := seen[n]
				if got.Err == nil != (want.Reason == guard.ReasonOf(nil)) {
					t.Errorf("%s: error %v", step, got.Err)
				}
				got.Err, want.Surface = nil, guard.SurfaceLock
				if got != want {
					t.Errorf("%s: observed\n%+v, want\n%+v", step, got, want)
				}
			}
			seen = nil
		}
		claim := func(resource string, token guard.Token) guard.Claim {
			return guard.Claim{Resource: resource, Token: token, LeaseID: "id"}
		}
		held, down, ok := guard.ReasonOf(ErrHeld), guard.ReasonUnavailable, guard.ReasonOf(nil)
		attrs := func(resource, token string) string {
			return ` resource=` + resource + ` ownerId=o leaseId=id fencingToken=` + token
		}
		failed := ` error="fencepost: `

		lease := try("r")
		expect("granted", "level=INFO msg=lock_acquired"+attrs("r", "7")+" ttlSeconds=60 waitedSeconds=2",
			guard.Event{Op: guard.OpAcquire, Claim: claim("r", 7), Reason: ok, Duration: slow})
		renewed := "level=DEBUG msg=lock_renewed" + attrs("r", "7") + " ttlSeconds=60 renewalSeconds=2"
		notRenewed := "level=WARN msg=lock_renew_failed" + attrs("r", "7") + ` ttlSeconds=60` + failed + `renew: ` + guard.ErrUnavailable.Error() + `: token 7 for \"r\": simulated"`
		for n, line := range []string{renewed, notRenewed, "", renewed, notRenewed} {
			reason := down
			if line == renewed {
				reason = ok
			}
			lease.Renew(t.Context())
			expect(fmt.Sprint("renewal ", n), line, guard.Event{Op: guard.OpRenew, Claim: claim("r", 7), Reason: reason, Duration: slow})
		}
		lease.Release(t.Context())
		expect("released", "level=INFO msg=lock_released"+attrs("r", "7")+" ttlSeconds=60 heldSeconds=12",
			guard.Event{Op: guard.OpRelease, Claim: claim("r", 7), Reason: ok, Duration: 12 * time.Second})
		lease = try("cut")
		reset()
		lease.Renew(t.Context())
		cut := failed + ErrLeaseLost.Error() + `: token 7 for \"cut\": ` + errGone.Error() + `"`
		expect("lost at a renewal", "level=WARN msg=lock_lost"+attrs("cut", "7")+` ttlSeconds=60 heldSeconds=2`+cut+"\nlevel=WARN msg=lock_renew_failed"+attrs("cut", "7")+` ttlSeconds=60`+cut,
			guard.Event{Op: guard.OpLost, Claim: claim("cut", 7), Reason: guard.ReasonLeaseLost, Duration: slow},
			guard.Event{Op: guard.OpRenew, Claim: claim("cut", 7), Reason: guard.ReasonLeaseLost, Duration: slow})
		lease.Release(t.Context())
		expect("released after it was lost", "level=INFO msg=lock_released"+attrs("cut", "7")+" ttlSeconds=60 heldSeconds=4",
			guard.Event{Op: guard.OpRelease, Claim: claim("cut", 7), Reason: ok, Duration: 4 * time.Second})
		try("held")
		expect("held", "level=INFO msg=lock_contended"+attrs("held", "0")+" ttlSeconds=60 holderId=another holderToken=9 remainingSeconds=1.5",
			guard.Event{Op: guard.OpContend, Claim: claim("held", 0), Reason: held}, guard.Event{Op: guard.OpAcquire, Claim: claim("held", 0), Reason: held, Duration: slow})
		notGranted := "level=WARN msg=lock_acquire_failed" + attrs("down", "0") + ` ttlSeconds=60` + failed + `acquire: ` + guard.ErrUnavailable.Error() + `: for \"down\": simulated"`
		once := guard.Event{Op: guard.OpAcquire, Claim: claim("down", 0), Reason: down, Duration: slow}
		try("down")
		expect("not granted", notGranted, once)
		waiting, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		_, err := client.Acquire(waiting, "held", &AcquireOptions{TTL: time.Minute, LeaseID: "id"})
		cancel()
		synctest.Wait()
		if lines := log.String(); strings.Count(lines, "\n") != 2 || !strings.Contains(lines, "lock_contended") || !strings.Contains(lines, "lock_acquire_failed") || len(seen) != 2 || !errors.Is(err, ErrHeld) {
			t.Errorf("waited in vain: %v, logged\n%s, observed %+v", err, lines, seen)
		}
		reset()
		try("reclaimed").Release(t.Context())
		expect("reclaimed", "level=INFO msg=lock_acquired"+attrs("reclaimed", "7")+" ttlSeconds=60 waitedSeconds=2\n"+
			"level=INFO msg=lock_released"+attrs("reclaimed", "7")+" ttlSeconds=60 heldSeconds=2",
			guard.Event{Op: guard.OpReclaim, Claim: claim("reclaimed", 7), Reason: ok, Duration: slow},
			guard.Event{Op: guard.OpAcquire, Claim: claim("reclaimed", 7), Reason: ok, Duration: slow},
			guard.Event{Op: guard.OpRelease, Claim: claim("reclaimed", 7), Reason: ok, Duration: slow})
		lease = try("stuck")
		synctest.Wait()
		reset()
		lease.Release(t.Context())
		expect("not released", "level=WARN msg=lock_release_failed"+attrs("stuck", "7")+` ttlSeconds=60`+failed+`release: `+guard.ErrUnavailable.Error()+`: for \"stuck\": simulated"`,
			guard.Event{Op: guard.OpRelease, Claim: claim("stuck", 7), Reason: down, Duration: slow})
		try("lost")
		synctest.Wait()
		reset()
		time.Sleep(time.Hour)
		synctest.Wait()
		expect("lost", "level=WARN msg=lock_lost"+attrs("lost", "7")+` ttlSeconds=60 heldSeconds=57.94`+failed+ErrLeaseLost.Error()+`: token 7 for \"lost\": `+errUnkept.Error()+`"`,
			guard.Event{Op: guard.OpLost, Claim: claim("lost", 7), Reason: guard.ReasonLeaseLost, Duration: 57940 * time.Millisecond})
	})
}
