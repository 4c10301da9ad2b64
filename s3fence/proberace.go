package s3fence

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/fencepost-go/fencepost/guard"
)

const (
	// probeWriters is how many writers race. createRounds is in how many rounds they
	// create an object and overwrite it. The keys are deep, because stores on a file
	// system make directories between comparing and writing.
	probeWriters = 16
	createRounds = 8

	// raceWrites is how often an object is overwritten while raceReaders read it.
	raceWrites  = 48
	raceReaders = 4

	// gateWait is how long racing writers wait for each other. It is longer than any
	// of them needs, unless the client keeps too few connections.
	gateWait = 2 * time.Second
)

// errUndecided is the error of races without a known winner, which show nothing.
var errUndecided = errors.New("too many responses were lost to judge how the store handles racing writers; try again")

// concurrency tests what needs several requests at once.
func (p *prober) concurrency(ctx context.Context) error {
	if err := p.race(ctx); err != nil {
		return err
	}
	if err := p.readRace(ctx); err != nil {
		return err
	}
	p.saw("racing writers", "one of %d was accepted, in each of %d rounds", probeWriters, 2*createRounds)
	p.saw("reads during writes", "metadata and body of one version, never with a newer ETag, never older than the last acknowledged, in each of %d reads", p.reads)
	return nil
}

// race runs many writes at once on the same condition: only one may succeed. In each
// round they create an object and then overwrite it.
func (p *prober) race(ctx context.Context) error {
	for round, decided := 0, 0; decided < 2*createRounds; round++ {
		if round == 4*createRounds {
			return errUndecided
		}
		key, etag := fmt.Sprintf("%s-%d/0/1/2/3/4/5/6/7/8/9/a/b/c/d/e/f", p.key, round), ""
		p.keys = append(p.keys, key)
		for range 2 {
			won, err := p.round(ctx, key, etag)
			if err != nil {
				return err
			}
			if won == "" {
				break
			}
			decided++
			etag = won
		}
	}
	return nil
}

// round lets writers race on one condition. They wait for each other before the last
// byte of their bodies: without that they meet only on idle machines. On a busy one
// versitygw 1.7 kept them apart in most rounds by serving one after the other.
// It returns the winner's ETag, "" if the winner's response was lost or all were busy,
// which says nothing about the race.
func (p *prober) round(ctx context.Context, key, etag string) (won string, err error) {
	const check = "racing writers"
	var (
		wg, absent sync.WaitGroup
		etags      [probeWriters]string
		errs       [probeWriters]error
		open       = make(chan struct{})
	)
	wait := func() {
		if p.ungated.Load() {
			return
		}
		select {
		case <-open:
		case <-time.After(gateWait):
			p.ungated.Store(true)
		}
	}
	absent.Add(probeWriters)
	go func() { absent.Wait(); close(open) }()
	for i := range probeWriters {
		content := p.unique()
		wg.Go(func() {
			arrive := sync.OnceFunc(absent.Done)
			defer arrive() // also of one that was never sent
			etags[i], errs[i] = p.write(ctx, key, etag, probeBody{content: content}, func(o *s3.Options) {
				before(o, func(r *http.Request) { r.Body = &gated{r.Body, r.ContentLength, func() { arrive(); wait() }} })
			})
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
	if winners == 0 {
		return "", nil
	}
	_, h, err := p.read(ctx, key, tailSize)
	if err == nil && h.etag != won {
		err = p.fails(check, "the ETag of the write that was accepted, %s, is not the stored object's, %s", quoteShort(won), quoteShort(h.etag))
	}
	return won, err
}

// sighting is what one read saw of an object that is being overwritten.
type sighting struct {
	acked int64 // the last write that had been acknowledged when it began
	state state
	err   error
}

// readRace reads a sealed object while it is overwritten. No response may be older than
// what was acknowledged before, and each must have metadata and body of one version,
// and that version's ETag or an older one: a write on the condition of an older ETag
// fails, but a newer one makes the condition true for a write that was decided on an
// older mark.
func (p *prober) readRace(ctx context.Context) error {
	_, h, err := p.read(ctx, p.key, tailSize)
	if err != nil {
		return err
	}
	var (
		acked atomic.Int64
		all   sync.WaitGroup
		seen  [raceReaders][]sighting
		stop  = make(chan struct{})
		begun = make(chan struct{}, raceReaders)
		etag  = h.etag
		etags = map[string]guard.Token{}
	)
	write := func(n guard.Token) error {
		// Lengths that make the versions differ in everything.
		w := p.b.sealedWrite(p.key, state{kind: kindSealed, mark: guard.Mark{Token: n}, id: newWriteID()}, Headers{}, make([]byte, 100+(n*3970)%15000))
		etag, err = p.expect(ctx, "If-Match", p.key, etag, true, probeBody{content: append(w.body, w.trailer...), metadata: w.in.Metadata})
		acked.Store(int64(n))
		etags[etag] = n
		return err
	}
	if err := write(1); err != nil {
		return err
	}
	for i := range raceReaders {
		all.Go(func() {
			for try := 0; try < 2*raceWrites; try++ {
				s := sighting{acked: acked.Load()}
				p.sent.Add(1)
				s.state, s.err = p.b.lookOnce(ctx, p.key, tailSize*((i+try)%2))
				seen[i] = append(seen[i], s)
				if try == 0 {
					begun <- struct{}{}
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
	for n := guard.Token(2); n <= raceWrites && err == nil; n++ {
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
func (p *prober) judge(sightings []sighting, etags map[string]guard.Token) error {
	const check = "reads during writes"
	for _, s := range sightings {
		token := s.state.mark.Token
		n, known := etags[s.state.etag]
		switch {
		case errors.As(s.err, new(*DamagedError)), errors.As(s.err, new(*etagError)):
			return p.fails(check, "%v", s.err)
		case s.err != nil: // lost, or refused for another reason, which the writes will show
			continue
		case s.state.kind == kindAbsent:
			return p.fails(check, "the store responded with 404 for an object that exists")
		case !known:
			return p.fails(check, "the ETag %s, which no write had", quoteShort(s.state.etag))
		case int64(token) < s.acked:
			return p.fails(check, "version %d after %d was acknowledged", token, s.acked)
		case n > token:
			return p.fails(check, "the ETag of version %d with version %d", n, token)
		}
		p.reads++
	}
	if p.reads < raceWrites/2 {
		return errUndecided
	}
	return nil
}

// gated holds a request's body back before its last byte. The bytes before it wait in
// the connection's buffer, so that all requests leave at once.
type gated struct {
	io.ReadCloser
	left int64
	wait func()
}

func (b *gated) Read(p []byte) (int, error) {
	switch {
	case b.left == 1:
		b.wait()
	case b.left > 1 && int64(len(p)) >= b.left:
		p = p[:b.left-1]
	}
	n, err := b.ReadCloser.Read(p)
	b.left -= int64(n)
	return n, err
}
