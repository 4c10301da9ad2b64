package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient"
	"github.com/fencepost-go/fencepost/lockclient/pglock"

	"github.com/fencepost-go/fencepost/internal/suites/campaign/oracle"
)

const (
	// leaseTTL is short, so that a pause beyond it is also short.
	leaseTTL = 400 * time.Millisecond
	// opTimeout bounds one operation. It is far above every pause, and begins
	// after the gate: a deadline that expired during the pause would in effect
	// check the lease, and would hide what the fence must catch.
	opTimeout = 8 * time.Second
)

// worker does one session after the other on its surface: acquire, take over,
// read, write, release. It trusts its lease to the end: nowhere does it ask
// whether it still holds it.
type worker struct {
	role
	*control
	*recorder
	rng     *rand.Rand
	locks   *lockclient.Client
	surface surface
}

func runWorker(ctx context.Context, w *worker, pool *pgxpool.Pool) (err error) {
	w.rng = rand.New(rand.NewPCG(w.Seed, uint64(w.Life)))
	if w.surface, err = newSurface(w, pool); err != nil {
		return err
	}
	issuer, err := pglock.New(pool, nil)
	if err != nil {
		return err
	}
	if w.locks, err = lockclient.New(issuer, w.Name, &lockclient.Options{OpTimeout: 20 * time.Second}); err != nil {
		return err
	}
	defer w.locks.Close(ctx)
	for !closed(w.stop) {
		w.session(ctx)
		time.Sleep(w.pace.of(time.Duration(10+w.rng.IntN(80)) * time.Millisecond))
	}
	return nil
}

// newPool returns a small pool. Its timeout is for a connection that was lost; a dead
// server refuses at once.
func newPool(ctx context.Context, url string) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	config.MaxConns = 4
	config.ConnConfig.ConnectTimeout = 30 * time.Second
	return pgxpool.NewWithConfig(ctx, config)
}

// session is one lease.
func (w *worker) session(ctx context.Context) {
	resource := fmt.Sprintf("%s:%d", w.Surface, w.rng.IntN(resourcesPerSurface))
	lease, err := w.acquire(ctx, resource)
	if err != nil {
		return
	}
	defer w.release(ctx, lease)
	claim := lease.Claim()
	w.gate(phaseGranted, resource, int64(claim.Token))
	now, done, err := w.takeOver(ctx, claim)
	if err != nil || done {
		return
	}
	for range 1 + w.rng.IntN(3) {
		w.gate(phaseWrite, resource, int64(claim.Token))
		next := doc{Write: w.id(), Base: now.Write, N: now.N + 1}
		op := oracle.Op{Kind: oracle.Write, Resource: resource, Write: next.Write, Base: next.Base, N: next.N}
		if err := w.attempt(ctx, op, claim, func(ctx context.Context, claim guard.Claim) error {
			return w.surface.write(ctx, claim, next)
		}); err != nil {
			return // a client that does not know the state must not write on
		}
		now = next
	}
}

// takeOver raises the mark and reads. If the surface has another way to do
// both, half of the sessions use it; done says that it included the write.
func (w *worker) takeOver(ctx context.Context, claim guard.Claim) (now doc, done bool, err error) {
	op := oracle.Op{Kind: oracle.Raise, Resource: claim.Resource}
	if s, ok := w.surface.(taker); ok && w.rng.IntN(2) == 0 {
		err := w.attempt(ctx, op, claim, func(ctx context.Context, claim guard.Claim) (err error) {
			now, err = s.takeover(ctx, claim)
			return err
		})
		return now, false, err
	}
	s, swaps := w.surface.(swapper)
	swaps = swaps && w.rng.IntN(2) == 0
	if !swaps || !s.raises() || w.rng.IntN(2) == 0 {
		if err := w.attempt(ctx, op, claim, w.surface.raise); err != nil {
			return now, false, err
		}
	}
	if swaps {
		w.swap(ctx, s, claim)
		return now, true, nil
	}
	now, err = w.read(ctx, claim)
	return now, false, err
}

// attempt does a takeover or a write, records it and reports how it ended.
func (w *worker) attempt(ctx context.Context, op oracle.Op, claim guard.Claim, do func(context.Context, guard.Claim) error) error {
	op.Token, op.Lease = int64(claim.Token), claim.LeaseID
	op = w.begin(op)
	ctx, cancel := context.WithTimeout(guard.WithClaim(ctx, claim), w.pace.of(opTimeout))
	defer cancel()
	err := do(ctx, claim)
	w.end(op, err)
	switch {
	case err != nil:
		w.tell(report{Phase: phaseFailed, Resource: op.Resource, Token: op.Token, Outcome: outcome(err)})
	case op.Kind == oracle.Write:
		w.tell(report{Phase: phaseWritten, Resource: op.Resource, Token: op.Token})
	}
	return err
}

// swap reads and writes in one transaction, with a gate before the write and
// one before COMMIT.
func (w *worker) swap(ctx context.Context, s swapper, claim guard.Claim) {
	id := w.id()
	w.attempt(ctx, oracle.Op{Kind: oracle.Write, Resource: claim.Resource, Write: id}, claim, func(ctx context.Context, claim guard.Claim) error {
		return s.swap(ctx, claim, func(now doc) doc {
			w.gate(phaseInside, claim.Resource, int64(claim.Token))
			return doc{Write: id, Base: now.Write, N: now.N + 1}
		}, func() { w.gate(phaseCommit, claim.Resource, int64(claim.Token)) })
	})
}

func (w *worker) acquire(ctx context.Context, resource string) (*lockclient.Lease, error) {
	opts := &lockclient.AcquireOptions{TTL: w.pace.of(leaseTTL)}
	if w.rng.IntN(2) == 0 {
		opts.LeaseID = w.id() // one way in two: a lease ID of the caller's, or the client's own
	}
	op := w.begin(oracle.Op{Kind: oracle.Acquire, Resource: resource, Lease: opts.LeaseID})
	ctx, cancel := context.WithTimeout(ctx, w.pace.of(opTimeout))
	defer cancel()
	lease, err := w.locks.Acquire(ctx, resource, opts)
	if err == nil {
		now := monotonic() // before Remaining, so that a pause in between shortens the claim
		op.Until = now + int64(lease.Remaining())
		op.Token, op.Lease = int64(lease.Token()), lease.ID()
	}
	if errors.Is(err, lockclient.ErrHeld) { // no error of the client's
		op.Return, op.Outcome = monotonic(), oracle.Held
		w.recorder.write(op)
		return nil, err
	}
	w.end(op, err)
	return lease, err
}

func (w *worker) release(ctx context.Context, lease *lockclient.Lease) {
	op := w.begin(oracle.Op{Kind: oracle.Release, Resource: lease.Resource(), Token: int64(lease.Token()), Lease: lease.ID()})
	ctx, cancel := context.WithTimeout(ctx, w.pace.of(opTimeout))
	defer cancel()
	w.end(op, lease.Release(ctx))
}

func (w *worker) read(ctx context.Context, claim guard.Claim) (doc, error) {
	op := w.begin(oracle.Op{Kind: oracle.Read, Resource: claim.Resource, Token: int64(claim.Token)})
	ctx, cancel := context.WithTimeout(ctx, w.pace.of(opTimeout))
	defer cancel()
	now, err := w.surface.read(ctx, claim)
	op.Write, op.N = now.Write, now.N
	w.end(op, err)
	return now, err
}
