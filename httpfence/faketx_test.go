package httpfence

import (
	"context"
	"sync"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

// fakeTx is a Transactor in memory: it admits to a store, and its transactions
// collect what they write until it commits.
type fakeTx struct {
	store     guard.Store
	commitErr error
	commit    func()        // called while the COMMIT is on its way
	twice     bool          // broken: calls fn again
	swallow   bool          // broken: hides fn's error and its panic
	begun     chan struct{} // told of each BEGIN
	slow      time.Duration // what a BEGIN takes, whatever becomes of the context

	mu        sync.Mutex
	committed []string
	rolled    int
	unfenced  int
}

type fakeTxKey struct{}

// write is what a handler does with its transaction.
func write(ctx context.Context, s string) bool {
	work, ok := ctx.Value(fakeTxKey{}).(*[]string)
	if ok {
		*work = append(*work, s)
	}
	return ok
}

func (f *fakeTx) Marks() guard.Store { return f.store }

func (f *fakeTx) InTx(ctx context.Context, claim guard.Claim, fn func(context.Context) error) error {
	if _, err := f.store.Admit(ctx, claim); err != nil {
		return err
	}
	return f.run(guard.WithClaim(ctx, claim), fn)
}

func (f *fakeTx) run(ctx context.Context, fn func(context.Context) error) (err error) {
	if f.begun != nil {
		f.begun <- struct{}{}
	}
	time.Sleep(f.slow)
	var work []string
	ended := false
	defer func() {
		if !ended {
			f.mu.Lock()
			f.rolled++
			f.mu.Unlock()
		}
		if f.swallow {
			recover()
			err = nil
		}
	}()
	ctx = context.WithValue(ctx, fakeTxKey{}, &work)
	err = fn(ctx)
	if f.twice {
		err = fn(ctx)
	}
	if err != nil {
		return err
	}
	if ctx.Err() != nil {
		return guard.Unavailable("fake", guard.Claim{}, ctx.Err())
	}
	if f.commit != nil {
		f.commit()
	}
	if f.commitErr != nil {
		return f.commitErr
	}
	ended = true
	f.mu.Lock()
	f.committed = append(f.committed, work...)
	f.mu.Unlock()
	return nil
}

// insecureTx is a fakeTx that can leave the fence out.
type insecureTx struct{ *fakeTx }

func (f insecureTx) InsecureTx(ctx context.Context, fn func(context.Context) error) error {
	f.mu.Lock()
	f.unfenced++
	f.mu.Unlock()
	return f.run(ctx, fn)
}
