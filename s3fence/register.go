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
	// maxSends is how often one write is sent while its fate is open.
	maxSends = 8
	maxDelay = 2 * time.Second
	// resolveTimeout bounds what is still done for a write whose context has ended: one
	// read that resolves it, and one deletion of data that nothing names.
	resolveTimeout = time.Second
	// clockStep is by how much times of one store, which are whole seconds, may differ.
	clockStep = 2 * time.Second
)

// register reads versions of objects, and writes over a version. It knows no claim. It
// sends a write until it knows what became of it, and remembers versions.
type register struct {
	driver
	maxBody int64
	delay   time.Duration // the shortest wait before a write is sent again

	mu       sync.Mutex
	cache    map[string]version
	capacity int // about 1 KiB for each object
}

// read reads a version: its headers with its last bytes, or all of it. The version of what
// is absent has kindAbsent. It reads once more what was cut, and what seems damaged: some
// stores respond to a read during a write with parts of two versions; real damage stays.
func (r *register) read(ctx context.Context, key string, whole bool) (version, error) {
	v, err := r.readOnce(ctx, key, whole)
	if errors.As(err, new(*DamagedError)) || errors.As(err, new(*cutError)) {
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

// fate is what became of a write, however often it was sent, or how far that is known
// while it is sent.
type fate uint8

const (
	unclear fate = iota // final: it may have taken effect, or may yet

	none    // nothing has left
	denied  // so far its condition was false: no effect, unless something on the way sent it twice
	held    // so far the store had no time for it: no effect, with the same exception
	open    // one is out of which no response shows whether it took effect
	closing // as open, but to send it again shows nothing more

	written      // final: it took effect, once
	lost         // final: it took no effect and never will; the base is gone
	contradicted // final: the store refuses it on a condition that its reads show to be true
	declined     // final: the store refused each sending
	withheld     // final: nothing has left

	fates = iota
)

func (f fate) final() bool { return f == unclear || f >= written }

// sight is what a read shows of a write.
type sight uint8

const (
	own    sight = iota // it took effect; others may have written since
	same                // its base is still there
	passed              // its base is gone, and it was not among what followed
	beyond              // its base is gone, and what followed is not known back to it
	bare                // its base is gone, and what is there, if anything, is another program's
	unread              // the object could not be read
	broken              // the object is damaged, and stays so

	sights = iota
)

// afterSending is the fate of a write after the outcome to a sending, afterReading after
// what a read then shows, atTheEnd once the context or the sendings have ended. What is not
// listed does not happen, and would be unclear.
var (
	afterSending = [fates][outcomes]fate{
		none: {applied: written, mismatch: denied, raced: open, busy: held, refused: declined, unsent: withheld, unknown: open},
		held: {applied: written, mismatch: denied, raced: open, busy: held, refused: declined, unsent: declined, unknown: open},
		open: {applied: written, mismatch: open, raced: open, busy: open, refused: closing, unsent: closing, unknown: open},
	}
	afterReading = [fates][sights]fate{
		denied:  {own: written, same: contradicted, passed: lost, beyond: unclear, bare: lost, unread: open, broken: unclear},
		held:    {own: written, same: held, passed: lost, beyond: unclear, bare: lost, unread: declined, broken: declined},
		open:    {own: written, same: open, passed: lost, beyond: unclear, bare: unclear, unread: open, broken: unclear},
		closing: {own: written, same: unclear, passed: lost, beyond: unclear, bare: unclear, unread: unclear, broken: unclear},
	}
	atTheEnd = [fates]fate{none: withheld, denied: closing, held: declined, open: closing, closing: closing}
)

// write sends w, on condition that the object still is base, until its fate is final. now
// is the version that w made or, if w was lost or contradicted, the one that is there,
// with its body if whole is set. err is why it was not written.
func (r *register) write(ctx context.Context, key string, base *version, w *write, whole bool) (now version, f fate, err error) {
	first := time.Now()
	f = none
	for try := 0; ; try++ {
		if try > 0 {
			sleep(ctx, r.backoff(try))
		}
		if try < maxSends && ctx.Err() == nil {
			got := r.put(ctx, key, base.over(), w.payload)
			if f = afterSending[f][got.outcome]; f == written {
				w.next.etag, w.next.modified = got.etag, got.date
				r.remember(key, w.next)
				return w.next, f, nil
			}
			err = got.err
		}
		if try == maxSends || ctx.Err() != nil && !f.final() {
			f = atTheEnd[f]
		}
		if f.final() {
			return *base, f, err
		}
		now, shown, unread := r.look(ctx, key, base, w.next.id, first, whole)
		if f = afterReading[f][shown]; unread != nil {
			err = fmt.Errorf("%w, and then: %w", err, unread)
		}
		if f == unclear {
			r.forget(key)
		}
		if f.final() {
			return now, f, err
		}
	}
}

// look reads what has become of the write id over base. If the context has ended, one
// short read does not depend on it.
func (r *register) look(ctx context.Context, key string, base *version, id writeID, first time.Time, whole bool) (version, sight, error) {
	if ctx.Err() != nil {
		detached, cancel := context.WithTimeout(context.WithoutCancel(ctx), resolveTimeout)
		defer cancel()
		ctx = detached
	}
	now, err := r.read(ctx, key, whole)
	switch {
	case errors.As(err, new(*DamagedError)):
		return now, broken, err
	case err != nil:
		return now, unread, err
	}
	return now, seen(id, base, &now, ago(first)), nil
}

// seen compares what a read shows with the base of a write that was first sent so long ago.
//
// An ETag that was replaced never returns, because the bytes or the ETag of every write
// are new. So a write whose base is gone cannot take effect any more. It never did if the
// list of writes reaches back to the base without naming it, or if what is there now was
// already there before the write was first sent.
func seen(id writeID, base, now *version, sent time.Duration) sight {
	older := now.fenced() && !now.modified.IsZero() && !now.seen.IsZero() && now.seen.Sub(now.modified) > sent+clockStep
	switch {
	case now.made(id):
		return own
	case now.etag == base.etag: // "" for two that are absent
		return same
	case base.fenced() && now.made(base.id), base.kind == kindAbsent && now.fenced() && !now.cut, older:
		return passed
	case !now.fenced():
		return bare
	}
	return beyond
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
	if !strongETag(v.etag) || !v.fenced() {
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
