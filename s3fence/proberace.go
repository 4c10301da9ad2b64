package s3fence

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// probeWriters is how many writers race. createRounds is in how many rounds they
	// create an object; in as many more they overwrite one. Created keys are deep,
	// because stores on a file system make directories between comparing and writing.
	probeWriters = 16
	createRounds = 8

	// raceWrites is how often an object is overwritten while raceReaders read it.
	raceWrites  = 48
	raceReaders = 4
)

// errUndecided is the error of races without a known winner, which show nothing.
var errUndecided = errors.New("too many answers were lost to judge how the store handles racing writers; try again")

// concurrency tests what needs several requests at once.
func (p *prober) concurrency(ctx context.Context) error {
	if err := p.race(ctx); err != nil {
		return err
	}
	if err := p.readRace(ctx); err != nil {
		return err
	}
	p.saw("racing writers", "one of %d was accepted, in each of %d rounds", probeWriters, 2*createRounds)
	p.saw("reads beside writes", "metadata and body of one version, never with a newer ETag, never older than the last acknowledged, in each of %d reads", p.reads)
	return nil
}

// race runs many writes at once on the same condition: only one may succeed.
func (p *prober) race(ctx context.Context) error {
	_, h, err := p.read(ctx, tailSize)
	if err != nil {
		return err
	}
	etag, decided := h.etag, 0
	for round := 0; decided < 2*createRounds; round++ {
		if round == 4*createRounds {
			return errUndecided
		}
		key, on := p.key, etag
		if round < createRounds {
			key, on = fmt.Sprintf("%s-%d/0/1/2/3/4/5/6/7/8/9/a/b/c/d/e/f", p.key, round), ""
			p.keys = append(p.keys, key)
		}
		won, err := p.round(ctx, key, on)
		if err != nil {
			return err
		}
		if won != "" {
			decided++
		}
		if key == p.key {
			if won == "" { // all answers were lost, and one of the writes may have won
				_, h, err := p.read(ctx, tailSize)
				if err != nil {
					return err
				}
				won = h.etag
			}
			etag = won
		}
	}
	return nil
}

// round lets writers race on one condition. They wait for each other before the last
// byte of their bodies. It returns the winner's ETag, "" if all answers were lost or
// busy, which says nothing about the race.
func (p *prober) round(ctx context.Context, key, etag string) (won string, err error) {
	const check = "racing writers"
	var (
		wg    sync.WaitGroup
		etags [probeWriters]string
		errs  [probeWriters]error
		gate  = newGate(probeWriters, &p.ungated)
	)
	for i := range probeWriters {
		content := p.unique()
		wg.Go(func() {
			defer gate.leave()
			etags[i], errs[i] = p.write(ctx, key, etag, probeBody{from: &gated{bytes.NewReader(content), gate}})
		})
	}
	wg.Wait()
	winners := 0
	for i, err := range errs {
		switch classify(err) {
		case outcomeApplied:
			won = etags[i]
			winners++
		case outcomeRefused, outcomeLater:
			return "", err
		}
	}
	if winners > 1 {
		return "", p.fails(check, "%d of %d writes on one condition were accepted", winners, probeWriters)
	}
	if winners == 0 || key != p.key {
		return won, nil
	}
	_, h, err := p.read(ctx, tailSize)
	if err == nil && h.etag != won {
		err = p.fails(check, "the ETag of the write that was accepted, %s, is not the stored object's, %s", quoteShort(won), quoteShort(h.etag))
	}
	return won, err
}

// sighting is what one read saw of an object that is being overwritten.
type sighting struct {
	how   string
	after int // the last write that had been acknowledged when it began
	etag  string
	meta  string
	body  string // the version that all of the body says
}

// versionBody is the body of a version: its number over and over, in lengths that
// make the versions differ in everything.
func versionBody(n int) []byte {
	return bytes.Repeat(fmt.Appendf(nil, "%08d", n), 10+(n*397)%1500)
}

// bodyVersion returns the version of a body, or of its end.
func bodyVersion(body []byte, size int64) string {
	if len(body) < 8 {
		return "none"
	}
	n, err := strconv.Atoi(string(body[len(body)-8:]))
	if whole := versionBody(n); err != nil || int64(len(whole)) != size || !bytes.HasSuffix(whole, body) {
		return "a mixture"
	}
	return strconv.Itoa(n)
}

// readRace reads an object while it is overwritten. No answer may be older than what
// was acknowledged before, and each must have metadata and body of one version, and
// that version's ETag or an older one: a write on the condition of an older ETag
// fails, but a newer one makes the condition true for a write that was decided on an
// older mark.
func (p *prober) readRace(ctx context.Context) error {
	_, h, err := p.read(ctx, tailSize)
	if err != nil {
		return err
	}
	var (
		acked  atomic.Int64
		begun  sync.WaitGroup
		all    sync.WaitGroup
		seen   [raceReaders][]sighting
		failed [raceReaders]error
		stop   = make(chan struct{})
		etag   = h.etag
		etags  = map[string]int{}
	)
	write := func(n int) error {
		etag, err = p.expect(ctx, "If-Match", p.key, etag, true, probeBody{content: versionBody(n), name: "fencepost-probe", value: strconv.Itoa(n)})
		acked.Store(int64(n))
		etags[etag] = n
		return err
	}
	if err := write(0); err != nil {
		return err
	}
	begun.Add(raceReaders)
	for i := range raceReaders {
		all.Go(func() {
			for try := 0; failed[i] == nil && try < 2*raceWrites; try++ {
				s, ok, err := p.sight(ctx, i+try, int(acked.Load()))
				if try == 0 {
					begun.Done()
				}
				if failed[i] = err; ok {
					seen[i] = append(seen[i], s)
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
	begun.Wait()
	for n := 1; n < raceWrites && err == nil; n++ {
		err = write(n)
	}
	close(stop)
	all.Wait()
	if err := errors.Join(append(failed[:], err)...); err != nil {
		return err
	}
	sightings := slices.Concat(seen[:]...)
	if len(sightings) < raceWrites/2 {
		return errUndecided
	}
	return p.judge(sightings, etags)
}

// judge compares what was seen with what was written: the versions by their ETags.
func (p *prober) judge(sightings []sighting, etags map[string]int) error {
	const check = "reads beside writes"
	for _, s := range sightings {
		n, known := etags[s.etag]
		meta, err := strconv.Atoi(s.meta)
		switch {
		case !known:
			return p.fails(check, "%s gave the ETag %s, which no write had", s.how, quoteShort(s.etag))
		case err != nil:
			return p.fails(check, "%s gave no metadata", s.how)
		case meta < s.after:
			return p.fails(check, "%s gave version %d after %d was acknowledged", s.how, meta, s.after)
		case s.body != s.meta, n > meta:
			return p.fails(check, "%s gave the ETag of version %d, the metadata of %s, the body of %s", s.how, n, s.meta, s.body)
		}
		p.reads++
	}
	return nil
}

// sight reads the end of the object, or all of it. ok is false if the answer was lost.
func (p *prober) sight(ctx context.Context, try, after int) (s sighting, ok bool, err error) {
	s = sighting{how: "GET of the last bytes", after: after}
	last := tailSize
	if try%2 == 1 {
		s.how, last = "GET", 0
	}
	content, h, err := p.read(ctx, last)
	switch status, _ := httpStatus(err); {
	case status == 404, status == 416:
		return s, false, p.fails("reads beside writes", "%s of an object that is there was answered with %d", s.how, status)
	case errors.As(err, new(*etagError)):
		return s, false, p.fails("reads beside writes", "%s: %v", s.how, err)
	case err != nil:
		return s, false, nil // lost, or refused for another reason, which the writes will show
	}
	s.etag, s.meta, s.body = h.etag, userMetadata(h.metadata)["fencepost-probe"], bodyVersion(content, h.size)
	return s, true, nil
}

// gateWait is how long racing writers wait for each other. It is longer than any
// of them needs, unless the client keeps too few connections.
const gateWait = 2 * time.Second

// gate makes racing writers go on together. Without it they meet only on idle
// machines: on a busy one versitygw 1.7 kept them apart in most rounds by serving
// one after the other.
type gate struct {
	// open lets all writers through, because some did not arrive.
	open *atomic.Bool

	mu      sync.Mutex
	size    int // how many writers there are
	waiting int
	next    chan struct{}
}

func newGate(size int, open *atomic.Bool) *gate {
	return &gate{size: size, open: open, next: make(chan struct{})}
}

// wait returns when all writers are waiting, and resets the gate.
func (g *gate) wait() {
	if g.open.Load() {
		return
	}
	g.mu.Lock()
	next := g.next
	g.waiting++
	g.pass()
	g.mu.Unlock()
	timer := time.NewTimer(gateWait)
	defer timer.Stop()
	select {
	case <-next:
	case <-timer.C:
		g.open.Store(true)
	}
}

// leave says that a writer is done and will not come again.
func (g *gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.size--
	g.pass()
}

// pass releases the waiting writers if no others are to come. g.mu is held.
func (g *gate) pass() {
	if g.waiting < g.size || g.waiting == 0 {
		return
	}
	close(g.next)
	g.waiting, g.next = 0, make(chan struct{})
}

// gated is a body that waits at the gate before its last byte each time it is
// read: the SDK first reads it for checksums. The bytes before it wait in the
// connection's buffer, so that all requests leave at once.
type gated struct {
	*bytes.Reader
	gate *gate
}

func (b *gated) Read(p []byte) (int, error) {
	switch left := b.Len(); {
	case left == 1:
		b.gate.wait()
	case left > 1 && len(p) >= left:
		p = p[:left-1]
	}
	return b.Reader.Read(p)
}

// WriteTo hides the method of bytes.Reader, which would not wait.
func (b *gated) WriteTo(w io.Writer) (int64, error) {
	return io.Copy(w, struct{ io.Reader }{b})
}
