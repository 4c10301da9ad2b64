package s3fence

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

// reportVersion grows with what the probe tests, so that the result of a weaker
// probe is not mistaken for one of this probe.
const reportVersion = 4

// maxReportAge is how long a report is taken for true.
const maxReportAge = 30 * 24 * time.Hour

// Report is what [Open] or [Probe] found out about a store that it did not refuse. People read
// it as [Report.String], programs keep it as JSON and pass it to [Open] in
// [Options].Report.
type Report struct {
	// Version is the probe's version; other builds may have another.
	Version int `json:"version"`
	// Endpoint and Bucket are what was probed.
	Endpoint string `json:"endpoint"`
	Bucket   string `json:"bucket"`
	// At is the time of the probe, by the store's clock if it has one.
	At time.Time `json:"at"`
	// OpaqueETags reports that two writes of one body get different ETags.
	OpaqueETags bool `json:"opaqueETags"`
	// Requests is how many requests the probe has sent.
	Requests int64 `json:"requests"`
	// Checks lists each property with what was seen, in the order of the checks.
	Checks []Check `json:"checks"`
}

// Check is a property of a store that this package relies on.
type Check struct {
	Property string `json:"property"`
	Seen     string `json:"seen"`
}

// String has a line for each check.
func (r *Report) String() string {
	var out strings.Builder
	fmt.Fprintf(&out, "bucket %q at %s, %s, %d requests\n", r.Bucket, r.Endpoint, r.At.Format(time.RFC3339), r.Requests)
	for _, c := range r.Checks {
		fmt.Fprintf(&out, "  %-20s %s\n", c.Property, c.Seen)
	}
	return out.String()
}

// usable reports whether a kept report may replace a new probe. The error is for a
// report on something else; one that is too old is not usable.
func (r *Report) usable(b *Bucket, now time.Time) (bool, error) {
	const field = "Options.Report"
	switch {
	case b.endpoint == "":
		return false, guard.Invalid(field, r.Endpoint, "cannot be used with a client that does not tell its endpoint")
	case r.Endpoint != b.endpoint:
		return false, guard.Invalid(field, r.Endpoint, "is on another endpoint than the client's, "+strconv.QuoteToASCII(b.endpoint))
	case r.Bucket != b.name:
		return false, guard.Invalid(field, r.Bucket, "is on another bucket than "+strconv.QuoteToASCII(b.name))
	}
	age := now.Sub(r.At)
	// A little in the future is another machine's clock.
	return r.Version == reportVersion && age <= maxReportAge && age > -time.Hour, nil
}

// Probe tests a store whole: what [Open] checks at Amazon's endpoints, and besides it lets
// 16 writers race for one condition, 16 times, and reads an object while it is overwritten.
// A round counts if one writer won and 7 of its 15 rivals, or more, were refused because of
// their condition: only those met. The report says how many did.
//
// It sends 400 to 800 requests to keys of its own and deletes them, for which it needs
// permission; in a bucket with versioning, versions of these keys stay. The client
// should allow 16 connections, or the racing writers do not meet. opts may be nil.
//
// Run it when a store is chosen or upgraded, on idle machines, and read the report. No
// probe shows that all is well: a store that compares and then writes in a second step
// is found only if requests meet between the two, as versitygw 1.7 was in 9 probes of 10.
//
// Errors: as [Open]; ErrUnavailable also where a limiter turns racing writers away.
func Probe(ctx context.Context, client S3, bucket string, opts *Options) (*Report, error) {
	b, err := newBucket(client, bucket, opts)
	if err != nil {
		return nil, err
	}
	return b.probe(ctx, true)
}

const (
	// probeWriters is how many writers race. createRounds is in how many rounds they
	// create an object and overwrite it. The keys are deep, because stores on a file
	// system make directories between comparing and writing.
	probeWriters = 16
	createRounds = 8
	// minMet is how many rivals of a winner must have been refused by their condition.
	minMet = (probeWriters - 1) / 2
	// maxEmpty is how many rounds in a row may show nothing.
	maxEmpty = 6

	// raceWrites is how often an object is overwritten while raceReaders read it.
	raceWrites  = 48
	raceReaders = 4

	// gateWait is how long racing writers wait for each other. It is longer than any
	// of them needs, unless the client keeps too few connections.
	gateWait = 2 * time.Second

	// cleanupTimeout bounds the deletions after a probe.
	cleanupTimeout = 30 * time.Second
)

// prober runs the checks on keys of its own, so that several may run at once.
type prober struct {
	b *Bucket
	// ways are the stores as the client, and each of Options.ProbeClients, sees them.
	ways []*register
	key  string
	keys []string // to be deleted
	seq  int
	seen []Check
	date time.Time
	sent atomic.Int64
	// reads counts those during writes, met the fewest rivals that met in a round.
	reads, met int
	// ungated says that racing writers cannot wait for each other here.
	ungated  atomic.Bool
	gateWait time.Duration
}

func (b *Bucket) newProber() *prober {
	p := &prober{b: b, ways: []*register{b.register}, key: b.probeKey(newWriteID().String()), met: probeWriters, gateWait: gateWait, date: time.Now()}
	for _, client := range b.opts.ProbeClients {
		p.ways = append(p.ways, newRegister(&sdk{client, b.name, b.opts.RequestTimeout}, &b.opts))
	}
	return p
}

// probe checks what is between this program and the store and, if whole, how the
// store behaves under concurrency.
func (b *Bucket) probe(ctx context.Context, whole bool) (*Report, error) {
	p := b.newProber()
	found := &Report{Version: reportVersion, Endpoint: b.endpoint, Bucket: b.name}
	err := p.mayDelete(ctx)
	if err == nil {
		p.keys = []string{p.key}
		err = p.path(ctx, found)
		if err == nil && whole {
			err = p.concurrency(ctx)
		}
		p.cleanup(ctx)
	}
	switch {
	case errors.Is(err, ErrUnsuitableStore):
		return nil, err
	case err != nil:
		return nil, guard.Unavailable(fmt.Sprintf("probe bucket %q", b.name), guard.Claim{}, err)
	}
	found.Requests, found.Checks, found.At = p.sent.Load(), p.seen, p.date.UTC().Truncate(time.Second)
	return found, nil
}

// saw notes a property that holds.
func (p *prober) saw(property, format string, args ...any) {
	p.seen = append(p.seen, Check{property, fmt.Sprintf(format, args...)})
}

func (p *prober) fails(check, format string, args ...any) error {
	return p.b.unsuitable(check, fmt.Sprintf(format, args...))
}

// mayDelete finds out, by a name that nothing is stored under, whether the probe can
// delete what it is going to write.
func (p *prober) mayDelete(ctx context.Context) error {
	switch r := p.remove(ctx, p.b.probeKey("canary")); {
	case r.outcome == applied:
		return nil
	case !storeSays(r.err, "AccessDenied"):
		return r.err
	default:
		return fmt.Errorf("the probe may not delete what it writes; allow s3:DeleteObject below %s: %w", strconv.QuoteToASCII(p.b.probeKey("")), r.err)
	}
}

// unique returns bytes that no other write of the probe has.
func (p *prober) unique() []byte {
	p.seq++
	return fmt.Appendf(nil, "fencepost probe %d", p.seq)
}

// path makes, reads, overwrites, reads, deletes and makes again one object, as users
// set its headers. A cache, a box that rewrites bodies, a store without conditions and
// a missing permission each show in one of the responses.
func (p *prober) path(ctx context.Context, found *Report) (failed error) {
	const create, match = "If-None-Match: *", "If-Match"
	// Each step is taken if those before it have not failed.
	absent := func(when string) {
		if failed == nil {
			failed = p.absent(ctx, when)
		}
	}
	write := func(check, etag string, through bool, w payload) (got string) {
		if failed == nil {
			got, failed = p.expect(ctx, check, condition(etag), through, w)
		}
		return got
	}
	shows := func(etag string, wrote payload, lasts ...int) {
		if failed == nil {
			failed = p.shows(ctx, etag, wrote, lasts...)
		}
	}
	packed := payload{
		body: pack(p.unique()), metadata: map[string]string{"fencepost-probe-a": "1"},
		headers: Headers{ContentType: "text/csv", ContentEncoding: "gzip", CacheControl: "public, max-age=3600"},
	}
	long := payload{
		body: append(p.unique(), make([]byte, 3*tailSize)...), metadata: map[string]string{"fencepost-probe-b": "2"},
		headers: Headers{ContentType: "text/csv", CacheControl: "public, max-age=3600"},
	}
	absent("that nobody has written")
	first := write(create, "", true, packed)
	shows(first, packed, 0, tailSize)
	write(create+" over an object", "", false, packed)
	second := write(match+" with the right ETag", first, true, long)
	shows(second, long, 0, tailSize)
	write(match+" with an old ETag", first, false, long)
	// Other metadata expose the worst case: an ETag that depends on the body only.
	long.metadata = map[string]string{"fencepost-probe-b": "3"}
	third := write(match+" with the right ETag", second, true, long)
	last := write(match+" with the right ETag", third, true, long)
	shows(last, long, tailSize)
	if failed == nil {
		if r := p.remove(ctx, p.key); r.outcome != applied {
			failed = r.err
		}
	}
	absent("that was deleted")
	write(match+" without an object", last, false, long)
	write(create+" after a deletion", "", true, long)
	if failed != nil {
		return failed
	}
	p.saw("conditions", "If-None-Match: * creates once, and again after a deletion; If-Match lets through only the right ETag, not an old one or none")
	p.saw("reads", "each write and deletion shows at once, by %d clients, whole and in its last %d bytes, unchanged and with its own metadata", len(p.ways), tailSize)
	found.OpaqueETags = second != third && third != last && last != second
	if found.OpaqueETags {
		p.saw("ETags", "opaque: three writes of one body had three")
	} else {
		p.saw("ETags", "not opaque: writes of one body have one ETag, so Plain is refused")
	}
	return nil
}

// absent checks that a read shows no object.
func (p *prober) absent(ctx context.Context, when string) error {
	for _, way := range p.ways {
		switch _, err := p.read(ctx, way, p.key, tailSize); {
		case err == nil:
			return p.fails("reads", "a read shows an object %s: a cache serves it", when)
		case !errors.Is(err, errAbsent):
			return err
		}
	}
	return nil
}

// shows checks that reads of the last bytes, or of all if last is 0, are what was
// written.
func (p *prober) shows(ctx context.Context, etag string, wrote payload, lasts ...int) error {
	const check = "reads"
	for i := range len(lasts) * len(p.ways) {
		last, way := lasts[i%len(lasts)], p.ways[i/len(lasts)]
		what, want := "a read of all of an object", wrote.body
		if last > 0 {
			want = want[max(0, len(want)-last):]
			what = fmt.Sprintf("a read of the last %d bytes of an object of %d", last, len(wrote.body))
		}
		got, err := p.read(ctx, way, p.key, last)
		switch {
		case errors.Is(err, errAbsent):
			return p.fails(check, "%s shows none after its write was acknowledged: a cache serves it", what)
		case errors.As(err, new(*etagError)):
			return p.fails(check, "%s: %v", what, err)
		case err != nil:
			return err
		case got.shortRange:
			return p.fails(check, "%s was refused with 416", what)
		case got.etag != etag:
			return p.fails(check, "%s shows the ETag %s, that of the last write is %s: a cache serves it", what, quoteShort(got.etag), quoteShort(etag))
		case got.headers.ContentEncoding != wrote.headers.ContentEncoding:
			return p.fails(check, "%s shows the Content-Encoding %s instead of %s: something on the way has transformed it",
				what, quoteShort(got.headers.ContentEncoding), quoteShort(wrote.headers.ContentEncoding))
		case !bytes.Equal(got.content, want) || got.size != int64(len(wrote.body)):
			return p.fails(check, "%s does not show what was written", what)
		case !maps.Equal(got.headers.Metadata, wrote.metadata):
			return p.fails("metadata", "%s does not show the metadata that was written with it, and no other", what)
		}
		if !got.date.IsZero() {
			p.date = got.date
		}
	}
	return nil
}

// read reads an object, or its last bytes.
func (p *prober) read(ctx context.Context, way *register, key string, last int) (*object, error) {
	p.sent.Add(1)
	return way.get(ctx, key, last, 1<<20)
}

// expect writes the probe's object on a condition, and checks
// whether the write was let through. It retries on responses that leave it open.
func (p *prober) expect(ctx context.Context, check string, over condition, through bool, w payload) (string, error) {
	for try := 1; ; try++ {
		switch r := p.write(ctx, p.ways[0], p.key, over, w); {
		case r.outcome == applied && !through:
			return "", p.fails(check, "a write was accepted that had to be refused")
		case r.outcome == applied:
			return r.etag, nil
		case r.outcome == mismatch && !through:
			return "", nil
		case r.outcome == mismatch:
			if try > 1 { // it may follow from the lost response to the same write
				stored, err := p.read(ctx, p.ways[0], p.key, 0)
				if err != nil {
					return "", err
				}
				user, fencing := split(w.metadata)
				if bytes.Equal(stored.content, w.body) && maps.Equal(stored.headers.Metadata, user) && maps.Equal(stored.fencing, fencing) {
					return stored.etag, nil
				}
			}
			return "", p.fails(check, "a write was refused that had to be accepted%s: %v", p.unquoted(ctx, over, w), r.err)
		case storeSays(r.err, "NotImplemented"):
			return "", p.fails(check, "%v", r.err)
		case errors.As(r.err, new(*etagError)):
			return "", p.fails(check, "%v", r.err)
		case r.outcome == refused, try == maxSends, ctx.Err() != nil:
			return "", r.err
		}
		sleep(ctx, p.b.backoff(try))
	}
}

// unquoted says why a store may have refused a right ETag.
func (p *prober) unquoted(ctx context.Context, over condition, w payload) string {
	bare := condition(strings.Trim(string(over), `"`))
	switch {
	case over == noObject:
		return ""
	case bare != over && p.write(ctx, p.ways[0], p.key, bare, w).outcome == applied:
		return ": the store takes If-Match only without the quotes that its own ETags have"
	}
	return ": the store refuses every If-Match"
}

func (p *prober) write(ctx context.Context, way *register, key string, over condition, w payload) result {
	p.sent.Add(1)
	return way.put(ctx, key, over, w)
}

func (p *prober) remove(ctx context.Context, key string) result {
	p.sent.Add(1)
	return p.b.remove(ctx, key)
}

// cleanup deletes what the probe has written.
func (p *prober) cleanup(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	for _, key := range p.keys {
		_ = p.remove(ctx, key) // they are small and say what they are
	}
}

// concurrency tests what needs several requests at once.
func (p *prober) concurrency(ctx context.Context) error {
	if err := p.race(ctx); err != nil {
		return err
	}
	if err := p.readRace(ctx); err != nil {
		return err
	}
	p.saw("racing writers", "one of %d was accepted, in each of %d rounds; in each, %d of its rivals or more met it and were refused by their condition",
		probeWriters, 2*createRounds, p.met)
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
func (p *prober) race(ctx context.Context) error {
	empty := 0
	for round, decided := 0, 0; decided < 2*createRounds; round++ {
		key, over := fmt.Sprintf("%s-%d/0/1/2/3/4/5/6/7/8/9/a/b/c/d/e/f", p.key, round), noObject
		p.keys = append(p.keys, key)
		for range 2 {
			won, met, err := p.round(ctx, key, over)
			switch {
			case errors.As(err, new(*UnsuitableError)), met < 0:
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
			if over = condition(won); won == "" {
				break
			}
		}
	}
	return nil
}

// round lets writers race on one condition. They wait for each other before the last
// byte of their bodies: without that they meet only on idle machines. On a busy one
// versitygw 1.7 kept them apart in most rounds by serving one after the other.
// It returns the winner's ETag, "" if no response shows one, and how many rivals were
// refused because of their condition, with an error of one that was not, or -1 with what
// ends the race.
func (p *prober) round(ctx context.Context, key string, over condition) (won string, met int, why error) {
	var wg, absent sync.WaitGroup
	var got [probeWriters]result
	ready := make(chan struct{})
	wait := func() {
		if p.ungated.Load() {
			return
		}
		select {
		case <-ready:
		case <-time.After(p.gateWait):
			p.ungated.Store(true)
		}
	}
	absent.Add(probeWriters)
	go func() { absent.Wait(); close(ready) }()
	for i := range probeWriters {
		w := payload{body: p.unique()}
		wg.Go(func() {
			arrive := sync.OnceFunc(absent.Done)
			defer arrive() // also of one that was never sent
			w.hold = func() { arrive(); wait() }
			got[i] = p.write(ctx, p.ways[i%len(p.ways)], key, over, w)
		})
	}
	wg.Wait()
	winners := 0
	for _, r := range got {
		switch {
		case r.outcome == applied:
			won = r.etag
			winners++
		case r.outcome == mismatch, storeSays(r.err, conflictCode, abortedCode):
			met++
		case r.outcome == refused:
			return "", -1, r.err
		default:
			why = r.err
		}
	}
	if winners > 1 {
		return "", met, p.fails("racing writers", "%d of %d writes on one condition were accepted", winners, probeWriters)
	}
	if winners == 1 {
		stored, err := p.read(ctx, p.ways[0], key, tailSize)
		if err != nil {
			return "", -1, err
		}
		if stored.etag != won {
			return "", met, p.fails("racing writers", "the ETag of the write that was accepted, %s, is not the stored object's, %s", quoteShort(won), quoteShort(stored.etag))
		}
	}
	return won, met, why
}

// sighting is what one read saw of an object that is being overwritten.
type sighting struct {
	acked int64 // the last write that had been acknowledged when it began
	v     version
	err   error
}

// readRace reads a sealed object while it is overwritten. No response may be older than
// what was acknowledged before, and each must have metadata and body of one version,
// and that version's ETag or an older one: a write on the condition of an older ETag
// fails, but a newer one makes the condition true for a write that was decided on an
// older mark.
func (p *prober) readRace(ctx context.Context) error {
	o, err := p.read(ctx, p.ways[0], p.key, tailSize)
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
		etag  = o.etag
		etags = map[string]guard.Token{}
	)
	write := func(n guard.Token) error {
		// Lengths that make the versions differ in everything.
		w := version{kind: kindSealed, mark: guard.Mark{Token: n}, id: newWriteID()}.sealed(p.key, Headers{}, make([]byte, 100+(n*3970)%15000))
		etag, err = p.expect(ctx, "If-Match", condition(etag), true, w.payload)
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
				s.v, s.err = p.ways[i%len(p.ways)].readOnce(ctx, p.key, (i+try)%2 == 0)
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
		token := s.v.mark.Token
		n, known := etags[s.v.etag]
		switch {
		case errors.As(s.err, new(*DamagedError)), errors.As(s.err, new(*etagError)):
			return p.fails(check, "%v", s.err)
		case s.err != nil: // lost, or refused for another reason, which the writes will show
			continue
		case s.v.kind == kindAbsent:
			return p.fails(check, "the store responded with 404 for an object that exists")
		case !known:
			return p.fails(check, "the ETag %s, which no write had", quoteShort(s.v.etag))
		case int64(token) < s.acked:
			return p.fails(check, "version %d after %d was acknowledged", token, s.acked)
		case n > token:
			return p.fails(check, "the ETag of version %d with version %d", n, token)
		}
		p.reads++
	}
	if p.reads < raceWrites/2 {
		return undecided(nil)
	}
	return nil
}
