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

	"github.com/aws/aws-sdk-go-v2/aws"
)

const (
	// probeWriters is how many writers race. burstRounds is in how many rounds of
	// a burst they create an object; in as many more they overwrite one. Created
	// keys are deep, because stores on a file system make directories between
	// comparing and writing.
	probeWriters = 16
	burstRounds  = 8

	// raceWrites is how often an object is overwritten in a burst while
	// raceReaders read it.
	raceWrites  = 24
	raceReaders = 4
)

// race runs many writes at once on the same condition: only one may succeed.
func (p *prober) race(ctx context.Context, burst int) error {
	etag, err := p.etag(ctx)
	if err != nil {
		return err
	}
	decided := 0
	for round := 0; decided < 2*burstRounds; round++ {
		if round == 4*burstRounds {
			return errUndecided
		}
		key, on := p.key, etag
		if round < burstRounds {
			key, on = fmt.Sprintf("%s-%d/0/1/2/3/4/5/6/7/8/9/a/b/c/d/e/f", p.key, burst*burstRounds+round), ""
			p.keys = append(p.keys, key)
		}
		won, ok, err := p.round(ctx, key, on)
		if err != nil {
			return err
		}
		if ok {
			decided++
		}
		if key == p.key {
			etag = won
		}
	}
	return nil
}

// rush is what concurrent writers have sent, and the answers.
type rush struct {
	bodies [probeWriters][]byte
	etags  [probeWriters]string
	errs   [probeWriters]error
}

// run lets the writers write on one condition. They wait for each other before
// the last byte of their bodies.
func (r *rush) run(ctx context.Context, p *prober, key, etag string) {
	var wg sync.WaitGroup
	gate := newGate(probeWriters, &p.ungated)
	for i := range probeWriters {
		r.bodies[i] = p.body()
		wg.Go(func() {
			defer gate.leave()
			r.etags[i], r.errs[i] = p.writeFrom(ctx, key, etag, &gated{bytes.NewReader(r.bodies[i]), gate}, nil)
		})
	}
	wg.Wait()
}

// winner returns the writer that was accepted, -1 if none is known. Several
// winners are an error.
func (r *rush) winner(p *prober) (int, error) {
	winner, winners := -1, 0
	for i, err := range r.errs {
		if classify(err) == outcomeApplied {
			winner = i
			winners++
		}
	}
	if winners > 1 {
		return winner, p.fails("racing writers", "%d of %d writes on one condition were accepted", winners, probeWriters)
	}
	return winner, nil
}

// errUndecided is the error of races without a known winner, which show nothing.
var errUndecided = errors.New("too many answers were lost to judge how the store handles racing writers; try again")

// round is one race. It returns the ETag afterwards, and whether there is a
// known winner.
func (p *prober) round(ctx context.Context, key, etag string) (string, bool, error) {
	const check = "racing writers"
	var r rush
	r.run(ctx, p, key, etag)
	winner, err := r.winner(p)
	if err != nil {
		return "", false, err
	}
	for _, err := range r.errs {
		if o := classify(err); o == outcomeRefused || o == outcomeLater {
			return "", false, err
		}
	}
	s, err := p.b.fetch(ctx, key)
	switch {
	case err != nil:
		return "", false, err
	case winner < 0: // all answers were lost or busy, which says nothing about the race
	case string(s.body) != string(r.bodies[winner]):
		return "", false, p.fails(check, "the write that was accepted is not what is stored")
	case s.etag != r.etags[winner]:
		return "", false, p.fails(check, "the ETag of a write, %s, is not the stored object's, %s", quoteShort(r.etags[winner]), quoteShort(s.etag))
	}
	return s.etag, winner >= 0, nil
}

// sighting is what one read saw of an object that is being overwritten.
type sighting struct {
	how   string
	after int // the last write that had been acknowledged when it began
	etag  string
	meta  string
	body  string // the version that all of the body says, "" for HEAD
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

// readRace reads an object in every way while it is overwritten. No answer may be
// older than what was acknowledged before. Each answer to GET, which writes are
// decided on, must have metadata and body of one version, and that version's ETag
// or an older one. A write on the condition of an older ETag fails: versitygw
// reads the ETag first. An ETag newer than the rest makes the condition true for
// a write that was decided on an older mark.
func (p *prober) readRace(ctx context.Context) error {
	etag, err := p.etag(ctx)
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
	)
	base := p.seq
	p.seq += raceWrites
	write := func(n int) error {
		etag, err = p.expect(ctx, "If-Match", p.key, etag, true, versionBody(n), map[string]string{"fencepost-probe": strconv.Itoa(n)})
		acked.Store(int64(n))
		return err
	}
	if err := write(base); err != nil {
		return err
	}
	etags := map[string]int{etag: base}
	begun.Add(raceReaders)
	for i := range raceReaders {
		all.Go(func() {
			for try := 0; failed[i] == nil && try < 100*raceWrites; try++ {
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
	for n := base + 1; n < base+raceWrites && err == nil; n++ {
		if err = write(n); err == nil {
			etags[etag] = n
		}
	}
	close(stop)
	all.Wait()
	for _, failure := range append(failed[:], err) {
		if failure != nil {
			return failure
		}
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
		case s.how == "HEAD": // no decision uses the rest of it
		case s.body != s.meta, n > meta:
			return p.fails(check, "%s gave the ETag of version %d, the metadata of %s, the body of %s", s.how, n, s.meta, s.body)
		case n < meta:
			p.torn++
		}
		p.reads++
	}
	return nil
}

// sight reads once: the end, all of it, or the headers. ok is false if the answer
// was lost.
func (p *prober) sight(ctx context.Context, try, after int) (s sighting, ok bool, err error) {
	const check = "reads beside writes"
	s = sighting{how: "GET of the last bytes", after: after}
	last := tailSize
	switch try % 3 {
	case 1:
		s.how, last = "GET", 0
	case 2:
		s.how = "HEAD"
	}
	var metadata map[string]string
	if s.how == "HEAD" {
		out, e := p.b.head(ctx, p.key)
		if err = e; err == nil {
			s.etag, metadata = aws.ToString(out.ETag), out.Metadata
		}
	} else {
		out, e := p.b.client.GetObject(ctx, p.b.get(p.key, last))
		if err = e; err == nil {
			defer out.Body.Close()
			s.etag, metadata = aws.ToString(out.ETag), out.Metadata
			h := head{}
			body, e := h.tail(out, last)
			if err = e; err == nil {
				s.body = bodyVersion(body, h.size)
			}
		}
	}
	status, _ := httpStatus(err)
	switch {
	case status == 404, status == 416:
		return s, false, p.fails(check, "%s of an object that is there was answered with %d", s.how, status)
	case err != nil:
		return s, false, nil // lost, or refused for another reason, which the writes will show
	case !strongETag(s.etag):
		return s, false, p.fails(check, "%s was answered with the ETag %s", s.how, quoteShort(s.etag))
	}
	s.meta = userMetadata(metadata)["fencepost-probe"]
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

const (
	// deleteRounds is how often deletions and writes race, deleteEach how many
	// of either kind.
	deleteRounds = 16
	deleteEach   = 8
)

// deletion checks what Options.AtomicDelete declares.
func (p *prober) deletion(ctx context.Context) error {
	const check = "DELETE with If-Match"
	err := p.b.removeIf(ctx, p.key, `"00000000000000000000000000000000"`)
	switch classify(err) {
	case outcomeNotMatched:
	case outcomeApplied:
		return p.fails(check, "a deletion was accepted that had to be refused")
	case outcomeRefused:
		return p.fails(check, "%v", err)
	default:
		return err
	}
	etag, err := p.etag(ctx)
	if err != nil {
		return err
	}
	if etag == "" {
		return p.fails(check, "the object of a deletion that was refused is gone")
	}
	if err := p.b.removeIf(ctx, p.key, etag); err != nil && classify(err) != outcomeUnknown {
		return p.fails(check, "a deletion was refused that had to be accepted: %v", err)
	}
	for range deleteRounds {
		if err := p.deleteRound(ctx, check); err != nil {
			return err
		}
	}
	p.saw(check, "kept, also beside racing writes in %d rounds", deleteRounds)
	return nil
}

// deleteRound lets deletions and writes race on one condition. If a write was
// accepted, no deletion may have taken it away.
func (p *prober) deleteRound(ctx context.Context, check string) error {
	on, err := p.etag(ctx)
	if err == nil && on == "" {
		on, err = p.expect(ctx, "If-None-Match: * after a deletion", p.key, "", true, p.body(), nil)
	}
	if err != nil {
		return err
	}
	var (
		wg    sync.WaitGroup
		etags [deleteEach]string
		wrote [deleteEach]error
		start = make(chan struct{})
	)
	for i := range deleteEach {
		body := p.body()
		wg.Go(func() {
			<-start
			etags[i], wrote[i] = p.write(ctx, p.key, on, body, nil)
		})
		wg.Go(func() {
			<-start
			_ = p.b.removeIf(ctx, p.key, on) // the object afterwards shows the result
		})
	}
	close(start)
	wg.Wait()
	now, err := p.etag(ctx)
	if err != nil {
		return err
	}
	for i, err := range wrote {
		switch classify(err) {
		case outcomeApplied:
			if now != etags[i] {
				return p.fails(check, "a racing write was accepted, and deleted on the condition that it was not there")
			}
		case outcomeRefused, outcomeLater:
			return err
		}
	}
	return nil
}
