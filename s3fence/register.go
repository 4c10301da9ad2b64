package s3fence

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"
)

const (
	// maxSends is how often one write is sent while it is unknown what became of it.
	maxSends = 8
	maxDelay = 2 * time.Second
	// resolveTimeout bounds what is still done for a write whose context has ended: one
	// read that resolves it, and one deletion of data that nothing names.
	resolveTimeout = time.Second
	// clockStep is by how much times of one store, which are whole seconds, may differ.
	clockStep = 2 * time.Second
)

// register reads versions of objects, and replaces one version by another. It knows no
// claim. It sends a write until it knows what became of it, and remembers versions.
type register struct {
	driver
	maxBody int64
	delay   time.Duration // the shortest wait before a write is sent again

	mu       sync.Mutex
	cache    map[string]version
	capacity int // entries of about 1 KiB, of a pointer or a long key up to 5
}

// read reads a version: its headers with its last bytes, or all of it. The version of what
// is absent has kindAbsent. It reads once more what was cut, what seems damaged, and what
// seems another program's: some stores respond to a read during a write with parts of two
// versions, and something in between may respond with a page. What is so stays so.
func (r *register) read(ctx context.Context, key string, whole bool) (version, error) {
	v, err := r.readOnce(ctx, key, whole)
	if errors.As(err, new(*DamagedError)) || errors.As(err, new(*truncatedError)) || v.kind == kindUnfenced {
		v, err = r.readOnce(ctx, key, whole)
	}
	if err != nil {
		r.forget(key)
		return v, err
	}
	r.remember(key, v)
	return v, nil
}

func (r *register) readOnce(ctx context.Context, key string, whole bool) (version, error) {
	last := tailSize
	if whole {
		last = 0
	}
	o, err := r.get(ctx, key, last, r.maxBody+r.maxBody/1000+tailSize) // what does not compress grows a little
	if errors.Is(err, errAbsent) {
		return version{}, nil
	}
	if n, ok := errors.AsType[sizeError](err); ok {
		return version{}, tooLong(int64(n), r.maxBody)
	}
	if err != nil {
		return version{}, err
	}
	return parse(key, o)
}

// compareAndSwap sends w, on condition that the object still is base, until it is known
// what became of it:
//
//   - applied: it took effect, once. now is the version that it made.
//   - mismatch: it took no effect and never will. now is the version that is there, with its
//     body if whole is set. If that is base, the store has contradicted itself.
//   - refused: it took no effect. err says why.
//   - unknown: it may have taken effect, or may yet. err says why.
//
// These are the steps 4 and 5 of FORMAT.md, section 6. After any response but success the
// object is read, and its last writes show what happened. If ctx ends, what was sent is
// looked for once more.
func (r *register) compareAndSwap(ctx context.Context, key string, base *version, w *update, whole bool) (now version, o outcome, err error) {
	first := time.Now()
	o = busy // what has not left took no effect; unknown, once it may have, is FORMAT.md's "in doubt"
	for try := 1; ; try++ {
		last := try > maxSends || ctx.Err() != nil
		if !last {
			got := r.put(ctx, key, base.over(), w.payload)
			if got.outcome == applied {
				w.next.etag, w.next.modified = got.etag, got.date
				r.remember(key, w.next)
				return w.next, applied, nil
			}
			if o != unknown { // otherwise an earlier sending may still take effect, whatever this one did
				o = got.outcome
			}
			err, last = got.err, got.outcome == refused || ctx.Err() != nil
		}
		if o == refused || o == busy && last {
			return *base, refused, err
		}
		reading, cancel := ctx, context.CancelFunc(func() {})
		if ctx.Err() != nil {
			o = unknown // no response counts as the only one
			reading, cancel = context.WithTimeout(context.WithoutCancel(ctx), resolveTimeout)
		}
		now, unread := r.read(reading, key, whole)
		cancel()
		if unread != nil {
			err = fmt.Errorf("%w, and then: %w", err, unread)
		}
		final := false
		if o, final = verdict(w.next.id, base, &now, unread, o, ago(first)); final || last {
			if o == unknown {
				r.forget(key)
			}
			return now, o, err
		}
		sleep(ctx, r.backoff(try))
	}
}

// verdict is what a read shows of the write id over base, which was first sent so long ago
// and of which o is known so far: the table of FORMAT.md, section 6. If it is not final, the
// same bytes may be sent again: they cannot take effect twice.
//
// An ETag that was replaced never returns, because the bytes or the ETag of every write
// are new. So a write whose base is gone cannot take effect any more. It never did if the
// list of writes reaches back to the base without naming it, or if what is there now was
// already there before the write was first sent.
func verdict(id writeID, base, now *version, unread error, o outcome, sent time.Duration) (shown outcome, final bool) {
	older := now.fenced() && !now.modified.IsZero() && !now.seen.IsZero() && now.seen.Sub(now.modified) > sent+clockStep
	switch {
	case unread != nil && o == busy:
		return refused, true // by the store's word
	case unread != nil:
		return unknown, errors.As(unread, new(*DamagedError)) // which stays so
	case now.made(id): // others may have written since
		return applied, true
	case now.etag == base.etag: // "" for two that are absent
		return o, o == mismatch
	case base.fenced() && now.made(base.id), base.kind == kindAbsent && now.fenced() && !now.cut, older:
		return mismatch, true
	case !now.fenced() && o != unknown: // whoever writes or deletes without a fence takes a hidden copy of ours, too
		return mismatch, true
	}
	return unknown, true
}

// ago is how long a time is past, by whichever of this machine's clocks says more: one
// stands still while the machine is suspended, the other may be set back.
func ago(t time.Time) time.Duration {
	return max(time.Since(t), time.Now().Round(0).Sub(t.Round(0)))
}

// backoff is the wait before the try-th repetition: doubled each time, with
// jitter, so that writers that failed together do not retry together.
func (r *register) backoff(try int) time.Duration {
	d := min(r.delay<<(try-1), maxDelay)
	return d/2 + rand.N(d/2+1)
}

// sleep waits for d or the end of ctx.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// cached returns a remembered version.
func (r *register) cached(key string) (version, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	v, ok := r.cache[key]
	return v, ok
}

// remember keeps a version for the next write. It is only ever a guess: a conditional
// write checks it.
func (r *register) remember(key string, v version) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !v.fenced() {
		delete(r.cache, key)
		return
	}
	if v.kind != kindPointer && v.kind != kindTombstone {
		v.body = nil
	}
	v.headers = nil
	if _, ok := r.cache[key]; !ok && len(r.cache) >= r.capacity {
		for other := range r.cache { // any: a map's order is random enough
			delete(r.cache, other)
			break
		}
	}
	r.cache[strings.Clone(key)] = v
}

func (r *register) forget(key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.cache, key)
}
