package lockclient

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
)

// warm prepares every statement on the connections in use, so that the next
// chunk from the server is the answer to a statement.
func warm(t *testing.T, c *Client) {
	t.Helper()
	for range 3 {
		lease := mustTry(t, c, "warm", time.Minute)
		if err := lease.Renew(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// TestLostAnswers: the server carries out a request and the answer is lost,
// once or three times in a row; the repeated request finds that it was done.
func TestLostAnswers(t *testing.T) {
	t.Parallel()
	direct := migrated(t)
	for _, lost := range []int64{1, 3} {
		pool, proxy := behindProxy(t, direct.Config().ConnString())
		client := newTestClient(t, pool, nil)
		warm(t, client)

		mustExec(t, direct, "DELETE FROM fencepost.leases")
		mustExec(t, direct, "INSERT INTO fencepost.leases (resource, token) VALUES ('r', 41)")
		proxy.Cut.Store(lost)
		lease := mustTry(t, client, "r", time.Minute)
		if r := rowOf(t, direct, "r"); lease.Token() != 42 || r.Token != 42 || *r.LeaseID != lease.ID() {
			t.Errorf("%d lost: lease %+v, row %+v", lost, lease.Claim(), r)
		}

		before := rowOf(t, direct, "r").ExpiresAt
		proxy.Cut.Store(lost)
		if err := lease.Renew(t.Context()); err != nil {
			t.Errorf("%d lost: renew: %v", lost, err)
		}
		if !rowOf(t, direct, "r").ExpiresAt.After(before) {
			t.Error("not renewed")
		}

		proxy.Cut.Store(lost)
		if err := lease.Release(t.Context()); err != nil {
			t.Errorf("%d lost: release: %v", lost, err)
		}
		if rowOf(t, direct, "r").Live {
			t.Error("not released")
		}
		if n := proxy.Cut.Load(); n != 0 {
			t.Fatalf("%d answers were not lost", n)
		}
	}
}

// TestLostAnswerThenSuccessor: a release whose answer is lost is repeated after
// the successor was granted, and leaves the successor's lease alone.
func TestLostAnswerThenSuccessor(t *testing.T) {
	t.Parallel()
	direct := migrated(t)
	pool, proxy := behindProxy(t, direct.Config().ConnString())
	client := newTestClient(t, pool, nil)
	warm(t, client)
	lease := mustTry(t, client, "r", time.Minute)
	successor := waits(t, newTestClient(t, direct, nil), "r", time.Minute)
	eventually(t, "the successor rests", func() bool { return rests(t, direct, "r") })
	gate := make(chan struct{})
	proxy.Gate.Store(&gate) // the release is not repeated before the grant
	proxy.Cut.Store(1)
	released := make(chan error, 1)
	go func() { released <- lease.Release(context.Background()) }()
	l := <-successor
	close(gate)
	if err := <-released; err != nil {
		t.Error(err)
	}
	if r := rowOf(t, direct, "r"); proxy.Cut.Load() != 0 || !r.Live || *r.LeaseID != l.ID() {
		t.Errorf("the successor's row is %+v", r)
	}
}

// TestOutcomeUnknown: if every answer is lost, nothing is called success or
// refusal, the error names the lease, and what was granted is released once the
// network lets that through.
func TestOutcomeUnknown(t *testing.T) {
	expectNoGoroutines(t)
	direct := migrated(t)
	pool, proxy := behindProxy(t, direct.Config().ConnString())
	client := newTestClient(t, pool, nil)
	warm(t, client)
	lease := mustTry(t, client, "mine", time.Minute)
	client.set.OpTimeout = 600 * time.Millisecond // after the warm-up, which takes as long as it takes
	proxy.Cut.Store(1 << 40)
	if err := lease.Renew(t.Context()); !errors.Is(err, guard.ErrOutcomeUnknown) || !lease.Valid() {
		t.Errorf("renew: %v, valid %t", err, lease.Valid())
	}
	proxy.Cut.Store(0) // the renewal has used up the connections
	client.set.OpTimeout = patience
	warm(t, client)
	client.set.OpTimeout = 600 * time.Millisecond
	proxy.Cut.Store(1 << 40)
	_, err := client.TryAcquire(t.Context(), "r", &AcquireOptions{TTL: time.Minute})
	var failed *guard.FailedError
	if !errors.Is(err, guard.ErrOutcomeUnknown) || !errors.As(err, &failed) || failed.Claim.Resource != "r" || failed.Claim.LeaseID == "" {
		t.Fatalf("acquire: %v", err)
	}
	eventually(t, "the server grants (the control)", func() bool {
		var n int
		err := direct.QueryRow(t.Context(), "SELECT count(*) FROM fencepost.leases WHERE resource = 'r' AND lease_id = $1", failed.Claim.LeaseID).Scan(&n)
		return err == nil && n == 1
	})
	proxy.Cut.Store(0)
	eventually(t, "the grant that nobody got is released", func() bool { return !rowOf(t, direct, "r").Live })
	settled(client)
	client.set.OpTimeout = patience
	if err := lease.Renew(t.Context()); err != nil {
		t.Errorf("renew after the fault: %v", err)
	}

	proxy.Cut.Store(1 << 40)
	client.set.ReleaseTimeout = 300 * time.Millisecond
	if err := lease.Release(t.Context()); !errors.Is(err, guard.ErrOutcomeUnknown) || lease.Valid() || lease.Err() != ErrReleased {
		t.Errorf("release: %v, valid %t, Err %v", err, lease.Valid(), lease.Err())
	}
	proxy.Cut.Store(0)
	client.set.ReleaseTimeout = patience
	if err := lease.Release(t.Context()); err != nil || rowOf(t, direct, "mine").Live {
		t.Errorf("released again: %v, row %+v", err, rowOf(t, direct, "mine"))
	}
}

// TestLateAnswer is P7 on the wire: the deadline counts from before the request
// left, and a grant that is over for its holder when it arrives is released,
// not returned.
func TestLateAnswer(t *testing.T) {
	t.Parallel()
	direct := migrated(t)
	pool, proxy := behindProxy(t, direct.Config().ConnString())
	client := newTestClient(t, pool, nil)
	warm(t, client)
	const ttl, delay = time.Minute, 200 * time.Millisecond
	proxy.Delay.Store(int64(delay))
	lease := mustTry(t, client, "r", ttl)
	if left := lease.Remaining(); left > ttl-delay {
		t.Errorf("%v left of %v after an answer that took %v", left, ttl, delay)
	}
	if err := lease.Renew(t.Context()); err != nil || lease.Remaining() > ttl-delay {
		t.Errorf("renew: %v, %v left", err, lease.Remaining())
	}
	proxy.Delay.Store(0)

	// The statement gets no more time than the TTL, so a late answer needs a
	// clock that runs on between the answer and its reading.
	lease.Release(t.Context())
	client = newTestClient(t, pool, nil)
	patient(client) // for the release of the grant too
	real := client.clock
	slow := &jumping{Issuer: client.issuer}
	client.clock = func() time.Duration { return real() + time.Duration(slow.jump.Load()) }
	client.issuer = slow // before the first lease, whose renewals read the clock
	warm(t, client)
	slow.armed.Store(true)
	late, err := client.TryAcquire(t.Context(), "late", &AcquireOptions{TTL: time.Minute})
	if late != nil || !errors.Is(err, errLate) || !errors.Is(err, guard.ErrUnavailable) {
		t.Errorf("got %v, %v", late, err)
	}
	if r := rowOf(t, direct, "late"); r.Live || r.Token != 1 {
		t.Errorf("the row is %+v", r)
	}
}

// TestCancelledInFlight: the client waits a moment for an attempt in flight
// when its context ends, so that its outcome is known: a grant is released, a
// refusal names the holder, and the connection survives.
func TestCancelledInFlight(t *testing.T) {
	t.Parallel()
	direct := migrated(t)
	pool, proxy := behindProxy(t, direct.Config().ConnString())
	client := newTestClient(t, pool, nil)
	warm(t, client)
	holder := mustTry(t, client, "held", time.Minute)
	conns := pool.Stat().NewConnsCount()
	patient(client) // a busy machine takes longer than a moment
	// The context ends when the answer has reached the proxy.
	try := func(resource string) (*Lease, error) {
		mine := errors.New("mine")
		ctx, cancel := context.WithCancelCause(t.Context())
		end := func() { cancel(mine) }
		proxy.Answered.Store(&end)
		defer proxy.Answered.Store(nil)
		lease, err := client.TryAcquire(ctx, resource, &AcquireOptions{TTL: time.Minute})
		if ctx.Err() == nil || resource == "r" && !errors.Is(err, mine) {
			t.Errorf("the context did not end: %v", err)
		}
		return lease, err
	}
	for range 3 {
		lease, err := try("r")
		if lease != nil || !errors.Is(err, guard.ErrUnavailable) || errors.Is(err, guard.ErrOutcomeUnknown) {
			t.Errorf("got %v, %v", lease, err)
		}
		if r := rowOf(t, direct, "r"); r.Live || r.Token == 0 {
			t.Errorf("the row is %+v", r)
		}
		_, err = try("held")
		var held *HeldError
		if !errors.As(err, &held) || held.Token != holder.Token() {
			t.Errorf("got %v", err)
		}
	}
	if n := pool.Stat().NewConnsCount() - conns; n != 0 {
		t.Errorf("%d connections were lost", n)
	}
}

// jumping is an issuer whose clock jumps a minute after each grant.
type jumping struct {
	driver.Issuer
	armed atomic.Bool
	jump  atomic.Int64
}

func (j *jumping) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if j.armed.Load() {
		defer j.jump.Store(int64(time.Minute))
	}
	return j.Issuer.Acquire(ctx, r)
}
