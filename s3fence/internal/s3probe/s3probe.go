// Package s3probe tests whether a store of objects can be fenced: whether it compares and
// writes in one step, and whether something between it and this program stores or changes
// responses. s3fence's Open and Probe run it and say what it found; it knows a store only by
// [Store].
package s3probe

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	mathrand "math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Store is a bucket as one client sees it.
type Store interface {
	// Read reads the last bytes of an object, or all of it if last is 0. Its error is
	// ErrAbsent only if the store itself says so, and ErrETag without a strong ETag.
	Read(ctx context.Context, key string, last int) (*Object, error)
	// Write writes an object if it still has the ETag over; "" is one that does not exist.
	Write(ctx context.Context, key, over string, w Write) Result
	// Delete deletes an object, whether or not it exists.
	Delete(ctx context.Context, key string) Result
}

// What a read or write may end with.
var (
	ErrAbsent = errors.New("there is no such object")
	ErrETag   = errors.New("the response has no strong ETag")
)

// Object is a response to a read.
type Object struct {
	ETag, ContentEncoding string
	Size                  int64 // of the whole
	Content               []byte
	Metadata              map[string]string
	Date                  time.Time // of the response, by the store's clock; zero if unknown
	ShortRange            bool      // the store refused a range that is longer than the object
}

// Write is what is written.
type Write struct {
	Body            []byte
	Metadata        map[string]string
	ContentEncoding string
	Cacheable       bool   // with headers that invite caches
	Hold            func() // is called before the last byte leaves; may be nil
}

// Result is what became of a write, or a deletion.
type Result struct {
	Err      error // nil if it took effect
	ETag     string
	Mismatch bool   // its condition was false
	Final    bool   // it was refused, and would be again
	Code     string // the store's own, for the error
}

// Findings are the properties of a store that was not refused.
type Findings struct {
	At          time.Time // by the store's clock if it has one
	OpaqueETags bool      // two writes of one body get different ETags
	Requests    int64
	Checks      []Check
}

// Check is a property with what was seen of it.
type Check struct{ Property, Seen string }

// Unsuitable is the error of a store that cannot be fenced: what was tested, and what it did.
type Unsuitable struct{ Check, Problem string }

func (e *Unsuitable) Error() string { return e.Check + ": " + e.Problem }

const (
	// Writers is how many race. createRounds is in how many rounds they
	// create an object and overwrite it. The keys are deep, because stores on a file
	// system make directories between comparing and writing.
	Writers      = 16
	createRounds = 8
	// minMet is how many rivals of a winner must have been refused by their condition.
	minMet = (Writers - 1) / 2
	// maxEmpty is how many rounds in a row may show nothing.
	maxEmpty = 6

	// raceWrites is how often an object is overwritten while raceReaders read it.
	raceWrites  = 48
	raceReaders = 4

	// tail is how much s3fence reads to learn an object's mark.
	tail = 4 << 10
	// maxSends is how often a write is sent whose response leaves open what became of it.
	maxSends = 8

	// cleanupTimeout bounds the deletions after a probe.
	cleanupTimeout = 30 * time.Second
)

// Prober runs the checks on keys of its own, so that several may run at once.
type Prober struct {
	// GateWait is how long racing writers wait for each other. It is longer than any
	// of them needs, unless the client keeps too few connections.
	GateWait time.Duration

	stores []Store
	folder string // of its keys
	key    string
	keys   []string // to be deleted
	seq    int
	sent   atomic.Int64
	found  Findings
	// reads counts those during writes, met the fewest rivals that met in a round.
	reads, met int
	// ungated says that racing writers cannot wait for each other here.
	ungated atomic.Bool
}

// New returns a prober of one bucket, as one or more clients see it, whose keys are in a folder.
func New(folder string, stores ...Store) *Prober {
	return &Prober{GateWait: 2 * time.Second, stores: stores, folder: folder, key: folder + rand.Text(), met: Writers, found: Findings{At: time.Now()}}
}

// Run checks what is between this program and the store and, if whole, how the store behaves
// under concurrency. An error that is no [*Unsuitable] shows nothing of the store.
func (p *Prober) Run(ctx context.Context, whole bool) (*Findings, error) {
	err := p.mayDelete(ctx)
	if err == nil {
		p.keys = []string{p.key}
		err = p.path(ctx)
		if err == nil && whole {
			err = p.concurrency(ctx)
		}
		p.cleanup(ctx)
	}
	if err != nil {
		return nil, err
	}
	p.found.Requests = p.sent.Load()
	return &p.found, nil
}

// saw notes a property that holds.
func (p *Prober) saw(property, format string, args ...any) {
	p.found.Checks = append(p.found.Checks, Check{property, fmt.Sprintf(format, args...)})
}

func (p *Prober) fails(check, format string, args ...any) error {
	return &Unsuitable{check, fmt.Sprintf(format, args...)}
}

// mayDelete finds out, by a name that nothing is stored under, whether the probe can
// delete what it is going to write.
func (p *Prober) mayDelete(ctx context.Context) error {
	r := p.remove(ctx, p.folder+"canary")
	if r.Err != nil && r.Code == "AccessDenied" {
		return fmt.Errorf("the probe may not delete what it writes; allow s3:DeleteObject below %s: %w", strconv.QuoteToASCII(p.folder), r.Err)
	}
	return r.Err
}

// unique returns bytes that no other write of the probe has.
func (p *Prober) unique() []byte {
	p.seq++
	return fmt.Appendf(nil, "fencepost probe %d", p.seq)
}

// path makes, reads, overwrites, reads, deletes and makes again one object, as users
// set its headers. A cache, a box that rewrites bodies, a store without conditions and
// a missing permission each show in one of the responses.
func (p *Prober) path(ctx context.Context) (failed error) {
	const create, match = "If-None-Match: *", "If-Match"
	// Each step is taken if those before it have not failed.
	absent := func(when string) {
		if failed == nil {
			failed = p.absent(ctx, when)
		}
	}
	write := func(check, etag string, through bool, w Write) (got string) {
		if failed == nil {
			got, failed = p.expect(ctx, check, etag, through, w)
		}
		return got
	}
	shows := func(etag string, wrote Write, lasts ...int) {
		if failed == nil {
			failed = p.shows(ctx, etag, wrote, lasts...)
		}
	}
	var file bytes.Buffer
	w := gzip.NewWriter(&file)
	_, _ = w.Write(p.unique()) // a bytes.Buffer never fails
	_ = w.Close()
	packed := Write{Body: file.Bytes(), Metadata: map[string]string{"fencepost-probe-a": "1"}, ContentEncoding: "gzip", Cacheable: true}
	long := Write{Body: append(p.unique(), make([]byte, 3*tail)...), Metadata: map[string]string{"fencepost-probe-b": "2"}, Cacheable: true}
	absent("that nobody has written")
	first := write(create, "", true, packed)
	shows(first, packed, 0, tail)
	write(create+" over an object", "", false, packed)
	second := write(match+" with the right ETag", first, true, long)
	shows(second, long, 0, tail)
	write(match+" with an old ETag", first, false, long)
	// Other metadata expose the worst case: an ETag that depends on the body only.
	long.Metadata = map[string]string{"fencepost-probe-b": "3"}
	third := write(match+" with the right ETag", second, true, long)
	last := write(match+" with the right ETag", third, true, long)
	shows(last, long, tail)
	if failed == nil {
		failed = p.remove(ctx, p.key).Err
	}
	absent("that was deleted")
	write(match+" without an object", last, false, long)
	write(create+" after a deletion", "", true, long)
	if failed != nil {
		return failed
	}
	p.saw("conditions", "If-None-Match: * creates once, and again after a deletion; If-Match lets through only the right ETag, not an old one or none")
	p.saw("reads", "each write and deletion shows at once, by %d clients, whole and in its last %d bytes, unchanged and with its own metadata", len(p.stores), tail)
	p.found.OpaqueETags = second != third && third != last && last != second
	if p.found.OpaqueETags {
		p.saw("ETags", "opaque: three writes of one body had three")
	} else {
		p.saw("ETags", "not opaque: writes of one body have one ETag, so Plain is refused")
	}
	return nil
}

// absent checks that a read shows no object.
func (p *Prober) absent(ctx context.Context, when string) error {
	for _, store := range p.stores {
		switch _, err := p.read(ctx, store, p.key, tail); {
		case err == nil:
			return p.fails("reads", "a read shows an object %s: a cache serves it", when)
		case !errors.Is(err, ErrAbsent):
			return err
		}
	}
	return nil
}

// shows checks that reads of the last bytes, or of all if last is 0, are what was
// written.
func (p *Prober) shows(ctx context.Context, etag string, wrote Write, lasts ...int) error {
	const check = "reads"
	for i := range len(lasts) * len(p.stores) {
		last, store := lasts[i%len(lasts)], p.stores[i/len(lasts)]
		what, want := "a read of all of an object", wrote.Body
		if last > 0 {
			want = want[max(0, len(want)-last):]
			what = fmt.Sprintf("a read of the last %d bytes of an object of %d", last, len(wrote.Body))
		}
		got, err := p.read(ctx, store, p.key, last)
		switch {
		case errors.Is(err, ErrAbsent):
			return p.fails(check, "%s shows none after its write was acknowledged: a cache serves it", what)
		case errors.Is(err, ErrETag):
			return p.fails(check, "%s: %v", what, err)
		case err != nil:
			return err
		case got.ShortRange:
			return p.fails(check, "%s was refused with 416", what)
		case got.ETag != etag:
			return p.fails(check, "%s shows the ETag %s, that of the last write is %s: a cache serves it", what, quote(got.ETag), quote(etag))
		case got.ContentEncoding != wrote.ContentEncoding:
			return p.fails(check, "%s shows the Content-Encoding %s instead of %s: something on the way has transformed it",
				what, quote(got.ContentEncoding), quote(wrote.ContentEncoding))
		case !bytes.Equal(got.Content, want) || got.Size != int64(len(wrote.Body)):
			return p.fails(check, "%s does not show what was written", what)
		case !maps.Equal(got.Metadata, wrote.Metadata):
			return p.fails("metadata", "%s does not show the metadata that was written with it, and no other", what)
		}
		if !got.Date.IsZero() {
			p.found.At = got.Date
		}
	}
	return nil
}

// read reads an object, or its last bytes.
func (p *Prober) read(ctx context.Context, store Store, key string, last int) (*Object, error) {
	p.sent.Add(1)
	return store.Read(ctx, key, last)
}

// expect writes the probe's object on a condition, and checks
// whether the write was let through. It retries on responses that leave it open.
func (p *Prober) expect(ctx context.Context, check, over string, through bool, w Write) (string, error) {
	for try := 1; ; try++ {
		r := p.write(ctx, p.stores[0], p.key, over, w)
		switch {
		case r.Err == nil && !through:
			return "", p.fails(check, "a write was accepted that had to be refused")
		case r.Err == nil:
			return r.ETag, nil
		case r.Mismatch && !through:
			return "", nil
		case r.Mismatch:
			if try > 1 { // it may follow from the lost response to the same write
				stored, err := p.read(ctx, p.stores[0], p.key, 0)
				if err != nil {
					return "", err
				}
				if bytes.Equal(stored.Content, w.Body) && maps.Equal(stored.Metadata, w.Metadata) {
					return stored.ETag, nil
				}
			}
			return "", p.fails(check, "a write was refused that had to be accepted%s: %v", p.unquoted(ctx, over, w), r.Err)
		case r.Code == "NotImplemented", errors.Is(r.Err, ErrETag):
			return "", p.fails(check, "%v", r.Err)
		case r.Final, try == maxSends, ctx.Err() != nil:
			return "", r.Err
		}
		wait := min(20*time.Millisecond<<try, 2*time.Second)
		select {
		case <-time.After(wait/2 + mathrand.N(wait/2)):
		case <-ctx.Done():
		}
	}
}

// unquoted says why a store may have refused a right ETag.
func (p *Prober) unquoted(ctx context.Context, over string, w Write) string {
	bare := strings.Trim(over, `"`)
	switch {
	case over == "":
		return ""
	case bare != over && p.write(ctx, p.stores[0], p.key, bare, w).Err == nil:
		return ": the store takes If-Match only without the quotes that its own ETags have"
	}
	return ": the store refuses every If-Match"
}

func (p *Prober) write(ctx context.Context, store Store, key, over string, w Write) Result {
	p.sent.Add(1)
	return store.Write(ctx, key, over, w)
}

func (p *Prober) remove(ctx context.Context, key string) Result {
	p.sent.Add(1)
	return p.stores[0].Delete(ctx, key)
}

// cleanup deletes what the probe has written.
func (p *Prober) cleanup(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	for _, key := range p.keys {
		_ = p.remove(ctx, key) // they are small and say what they are
	}
}

// concurrency tests what needs several requests at once.
func (p *Prober) concurrency(ctx context.Context) error {
	if err := p.race(ctx); err != nil {
		return err
	}
	if err := p.readRace(ctx); err != nil {
		return err
	}
	p.saw("racing writers", "one of %d was accepted, in each of %d rounds; in each, %d of its rivals or more met it and were refused by their condition",
		Writers, 2*createRounds, p.met)
	p.saw("reads during writes", "metadata and body of one version, never with a newer ETag, never older than the last acknowledged, in each of %d reads", p.reads)
	return nil
}

// undecided is the error of races that show nothing.
func undecided(why error) error {
	err := errors.New("too few responses show how the store handles requests that meet: they were lost, or a limiter turned them away; try again, or from where no limiter is between")
	if why != nil {
		err = fmt.Errorf("%w: %w", err, why)
	}
	return err
}

// race runs many writes at once on the same condition: only one may succeed. In each
// round they create an object and then overwrite it.
func (p *Prober) race(ctx context.Context) error {
	empty := 0
	for round, decided := 0, 0; decided < 2*createRounds; round++ {
		key, over := fmt.Sprintf("%s-%d/0/1/2/3/4/5/6/7/8/9/a/b/c/d/e/f", p.key, round), ""
		p.keys = append(p.keys, key)
		for range 2 {
			won, met, err := p.Round(ctx, key, over)
			switch {
			case errors.As(err, new(*Unsuitable)), met < 0:
				return err
			case won == "", met < minMet:
				if empty++; empty == maxEmpty || ctx.Err() != nil {
					return undecided(err)
				}
			default:
				p.met = min(p.met, met)
				decided++
				empty = 0
			}
			if over = won; won == "" {
				break
			}
		}
	}
	return nil
}

// Round lets writers race on one condition. They wait for each other before the last
// byte of their bodies: without that they meet only on idle machines. On a busy one
// versitygw 1.7 kept them apart in most rounds by serving one after the other.
// It returns the winner's ETag, "" if no response shows one, and how many rivals were
// refused because of their condition, with an error of one that was not, or -1 with what
// ends the race.
func (p *Prober) Round(ctx context.Context, key, over string) (won string, met int, why error) {
	var wg, absent sync.WaitGroup
	var got [Writers]Result
	ready := make(chan struct{})
	wait := func() {
		if p.ungated.Load() {
			return
		}
		select {
		case <-ready:
		case <-time.After(p.GateWait):
			p.ungated.Store(true)
		}
	}
	absent.Add(Writers)
	go func() { absent.Wait(); close(ready) }()
	for i := range Writers {
		w := Write{Body: p.unique()}
		wg.Go(func() {
			arrive := sync.OnceFunc(absent.Done)
			defer arrive() // also of one that was never sent
			w.Hold = func() { arrive(); wait() }
			got[i] = p.write(ctx, p.stores[i%len(p.stores)], key, over, w)
		})
	}
	wg.Wait()
	winners := 0
	for _, r := range got {
		switch {
		case r.Err == nil:
			won = r.ETag
			winners++
		case r.Mismatch, r.Code == "ConditionalRequestConflict", r.Code == "OperationAborted":
			met++
		case r.Final:
			return "", -1, r.Err
		default:
			why = r.Err
		}
	}
	if winners > 1 {
		return "", met, p.fails("racing writers", "%d of %d writes on one condition were accepted", winners, Writers)
	}
	if winners == 1 {
		stored, err := p.read(ctx, p.stores[0], key, tail)
		if err != nil {
			return "", -1, err
		}
		if stored.ETag != won {
			return "", met, p.fails("racing writers", "the ETag of the write that was accepted, %s, is not the stored object's, %s", quote(won), quote(stored.ETag))
		}
	}
	return won, met, why
}

// numbered is the n-th version of the object that is overwritten while it is read. Lengths
// differ, so that parts of two versions do not fit.
func numbered(n int64) Write {
	text := fmt.Sprintf("fencepost probe, version %d ", n)
	return Write{
		Body:     bytes.Repeat([]byte(text), int(100+(n*3970)%15000)/len(text)+1),
		Metadata: map[string]string{"fencepost-probe-version": strconv.FormatInt(n, 10)},
	}
}

// sighting is what one read saw of an object that is being overwritten.
type sighting struct {
	acked int64 // the last version that had been acknowledged when it began
	last  int   // how much was asked for, 0 for all
	o     *Object
	err   error
}

// readRace reads an object while it is overwritten. No response may be older than
// what was acknowledged before, and each must have metadata and body of one version,
// and that version's ETag or an older one: a write on the condition of an older ETag
// fails, but a newer one makes the condition true for a write that was decided on an
// older mark.
func (p *Prober) readRace(ctx context.Context) error {
	o, err := p.read(ctx, p.stores[0], p.key, tail)
	if err != nil {
		return err
	}
	var (
		acked atomic.Int64
		all   sync.WaitGroup
		seen  [raceReaders][]sighting
		stop  = make(chan struct{})
		begun = make(chan struct{}, raceReaders)
		meet  = make(chan struct{}) // once each reader has begun: what follows meets the writes
		etag  = o.ETag
		etags = map[string]int64{}
	)
	write := func(n int64) error {
		etag, err = p.expect(ctx, "If-Match", etag, true, numbered(n))
		acked.Store(n)
		etags[etag] = n
		return err
	}
	if err := write(1); err != nil {
		return err
	}
	for i := range raceReaders {
		all.Go(func() {
			for try := 0; try < 2*raceWrites; try++ {
				s := sighting{acked: acked.Load(), last: tail * ((i + try) % 2)}
				s.o, s.err = p.read(ctx, p.stores[i%len(p.stores)], p.key, s.last)
				seen[i] = append(seen[i], s)
				if try == 0 {
					begun <- struct{}{}
					<-meet
				}
				select {
				case <-stop:
					if try >= raceWrites/raceReaders {
						return
					}
				default:
				}
			}
		})
	}
	for range raceReaders {
		<-begun
	}
	close(meet)
	for n := int64(2); n <= raceWrites && err == nil; n++ {
		err = write(n)
	}
	close(stop)
	all.Wait()
	if err != nil {
		return err
	}
	return p.judge(slices.Concat(seen[:]...), etags)
}

// judge compares what was seen with what was written: the versions by their ETags.
func (p *Prober) judge(sightings []sighting, etags map[string]int64) error {
	const check = "reads during writes"
	for _, s := range sightings {
		switch {
		case errors.Is(s.err, ErrETag):
			return p.fails(check, "%v", s.err)
		case errors.Is(s.err, ErrAbsent):
			return p.fails(check, "the store responded with 404 for an object that exists")
		case s.err != nil: // lost, or refused for another reason, which the writes will show
			continue
		}
		version, _ := strconv.ParseInt(s.o.Metadata["fencepost-probe-version"], 10, 64)
		body := numbered(version).Body
		if s.last > 0 {
			body = body[max(0, len(body)-s.last):]
		}
		switch written, known := etags[s.o.ETag]; {
		case !known:
			return p.fails(check, "the ETag %s, which no write had", quote(s.o.ETag))
		case !bytes.Equal(s.o.Content, body):
			return p.fails(check, "the metadata of version %d with the body of another", version)
		case version < s.acked:
			return p.fails(check, "version %d after %d was acknowledged", version, s.acked)
		case written > version:
			return p.fails(check, "the ETag of version %d with version %d", written, version)
		}
		p.reads++
	}
	if p.reads < raceWrites/2 {
		return undecided(nil)
	}
	return nil
}

// quote quotes the beginning of what a store responded.
func quote(s string) string {
	return strconv.QuoteToASCII(s[:min(len(s), 64)])
}
