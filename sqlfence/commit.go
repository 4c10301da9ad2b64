package sqlfence

import (
	"context"
	"sync/atomic"
	"time"
)

// commitBound bounds COMMITs. Each needs its own deadline, since the caller's
// context must not end it; but starting a timer wakes a thread of the runtime,
// which costs more than the rest of a transaction's bookkeeping. So the COMMITs
// that begin within one eighth of the timeout share the deadline of the last of
// them: each gets the timeout, and up to an eighth more.
type commitBound struct {
	timeout time.Duration
	shared  atomic.Pointer[sharedDeadline]
}

// sharedDeadline is for the COMMITs that begin before until.
type sharedDeadline struct {
	ctx    context.Context
	cancel context.CancelFunc // never called: others may be committing under ctx
	until  time.Time
}

// context returns ctx for a COMMIT that is sent now: its values with no other
// deadline and cancellation than the bound's.
func (b *commitBound) context(ctx context.Context) context.Context {
	now := time.Now()
	s := b.shared.Load()
	if s == nil || now.After(s.until) {
		s = &sharedDeadline{until: now.Add(b.timeout / 8)}
		s.ctx, s.cancel = context.WithTimeout(context.Background(), b.timeout+b.timeout/8)
		b.shared.Store(s) // two callers at once make two, and either will do
	}
	return committing{s.ctx, ctx}
}

// committing is a deadline with another context's values.
type committing struct {
	context.Context
	values context.Context
}

// Value asks the deadline first: package context uses its values to recognise a
// context that it can watch without a goroutine. The deadline has no other
// values.
func (c committing) Value(key any) any {
	if v := c.Context.Value(key); v != nil {
		return v
	}
	return c.values.Value(key)
}
