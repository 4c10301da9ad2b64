//go:build unix

package s3suite

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/longtest"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/s3fence"
)

// crashed records, for one object, the writers' results and what readers saw.
type crashed struct {
	mu       sync.Mutex
	verdicts map[string]error // by the body, which names the attempt
	highest  guard.Token      // that was acknowledged
	seen     map[string]guard.Token
}

func (c *crashed) note(body string, token guard.Token, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.verdicts[body] = err
	if err == nil {
		c.highest = max(c.highest, token)
	}
}

func (c *crashed) acknowledged() guard.Token {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.highest
}

// look reads the object and returns what is wrong with it, if anything: the
// acknowledged state, or a newer one, must be there. While the store is down it
// sees nothing.
func (c *crashed) look(ctx context.Context, o *s3fence.Objects, key string) (seen bool, err error) {
	before := c.acknowledged()
	object, err := o.Get(ctx, key)
	switch {
	case errors.As(err, new(*s3fence.DamagedError)):
		return false, err
	case errors.Is(err, guard.ErrNotFound) && before == guard.NoToken:
		return false, nil
	case errors.Is(err, guard.ErrUnavailable):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("after token %d was acknowledged: %w", before, err)
	}
	defer object.Body.Close()
	body, err := io.ReadAll(object.Body)
	if err != nil {
		return false, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen[string(body)] = object.Mark.Token
	if object.Mark.Token < before {
		return true, fmt.Errorf("the object is at token %d after %d was acknowledged", object.Mark.Token, before)
	}
	return true, nil
}

// wrong returns the verdicts that reads contradict: a write that was reported
// as refused, or not done, and is there.
func (c *crashed) wrong() (out []string) {
	for body := range c.seen {
		if err := c.verdicts[body]; err != nil && !errors.Is(err, guard.ErrOutcomeUnknown) {
			out = append(out, fmt.Sprintf("%s is there and was told: %v", body, err))
		}
	}
	return out
}

// The store is killed with kill -9 in the middle of writes and started again on
// its directory: no acknowledged write is lost, no older one comes back, and no
// verdict is wrong.
func TestP1StoreKilled(t *testing.T) {
	const keys, writers = 3, 4
	rounds := longtest.ByLength(5, 40)
	g := startGateway(t)
	client := gatewayClient(g, g.URL)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var wg sync.WaitGroup
	var objects [keys]*crashed
	var acknowledged, reads atomic.Int64
	name := func(i int) string { return fmt.Sprintf("export-%d.csv", i) }
	for i := range objects {
		c := &crashed{verdicts: map[string]error{}, seen: map[string]guard.Token{}}
		objects[i] = c
		var issued atomic.Int64
		for w := range writers {
			o := openSealed(t, client)
			wg.Go(func() {
				rng := rand.New(rand.NewPCG(uint64(i), uint64(w)))
				for n := 0; ctx.Err() == nil; n++ {
					token := guard.Token(issued.Add(1))
					time.Sleep(time.Duration(rng.IntN(2000)) * time.Microsecond)
					body := fmt.Sprintf("attempt %d of writer %d under %d %s", n, w, token, strings.Repeat(".", 2<<10))
					// Not ctx: a write in progress must end on its own.
					err := o.Put(t.Context(), claim(token), name(i), []byte(body), nil)
					if c.note(body, token, err); err == nil {
						acknowledged.Add(1)
					}
				}
			})
		}
		reader := openSealed(t, client)
		wg.Go(func() {
			for ctx.Err() == nil {
				seen, err := c.look(t.Context(), reader, name(i))
				if err != nil {
					t.Errorf("%s: %v", name(i), err)
					return
				}
				if seen {
					reads.Add(1)
				}
				time.Sleep(2 * time.Millisecond)
			}
		})
	}
	rng := rand.New(rand.NewPCG(5, 6))
	for range rounds {
		before := acknowledged.Load()
		testkit.Eventually(t, "writes to be acknowledged", func() bool { return acknowledged.Load() >= before+20 || t.Failed() })
		time.Sleep(time.Duration(rng.IntN(5000)) * time.Microsecond)
		g.Kill()
		time.Sleep(time.Duration(rng.IntN(50)) * time.Millisecond)
		g.Start()
	}
	stop()
	wg.Wait()
	reasons := map[guard.Reason]int{}
	for i, c := range objects {
		seen, err := c.look(t.Context(), openSealed(t, client), name(i))
		if err != nil || !seen {
			t.Errorf("%s in the end: seen: %v, %v", name(i), seen, err)
		}
		for _, w := range c.wrong() {
			t.Errorf("%s: %s", name(i), w)
		}
		for _, err := range c.verdicts {
			reasons[guard.ReasonOf(err)]++
		}
	}
	t.Logf("%d kills, %d writes acknowledged, %d reads, verdicts %v", rounds, acknowledged.Load(), reads.Load(), reasons)
}

// The control: it is noticed when an object reverts to an earlier state, as on
// a store that loses acknowledged writes.
func TestP1StoreKilledControl(t *testing.T) {
	g := startGateway(t)
	client := gatewayClient(g, g.URL)
	o := openSealed(t, client)
	c := &crashed{verdicts: map[string]error{}, seen: map[string]guard.Token{}}
	write := func(token guard.Token, body string) {
		c.note(body, token, o.Put(t.Context(), claim(token), key, []byte(body), nil))
	}
	write(5, "old")
	old, metadata := storedAs(t, client)
	write(6, "new")
	if seen, err := c.look(t.Context(), o, key); !seen || err != nil {
		t.Fatalf("seen: %v, %v", seen, err)
	}
	_, err := client.PutObject(t.Context(), &s3.PutObjectInput{
		Bucket: aws.String(bucket), Key: aws.String(key), Body: bytes.NewReader(old), Metadata: metadata,
	})
	testkit.Must(t, err)
	if _, err := c.look(t.Context(), o, key); err == nil {
		t.Error("a lost write was not noticed")
	}
	c.note("old", 5, guard.Unavailable("put", claim(5), nil))
	if len(c.wrong()) != 1 {
		t.Error("a wrong verdict was not noticed")
	}
}

const abaWriters = 16

// protocol is a way to write under a token; attempt goes into the metadata.
type protocol func(ctx context.Context, writer int, c guard.Claim, body, attempt string) error

// fuzzed is the result of a fuzz.
type fuzzed struct {
	writes   int
	accepted []accepted
	// late writes took effect after the response to one of a higher token.
	late int
	// wrong verdicts contradict what the store did.
	wrong   int
	reasons map[guard.Reason]int
}

// abaFuzz makes writers with ever newer tokens write two contents in turn,
// return with old tokens, and pause in between, through p.
func abaFuzz(t *testing.T, p *proxy, write protocol) fuzzed {
	t.Helper()
	tokens := int64(longtest.ByLength(1500, 20_000))
	type verdict struct {
		token guard.Token
		err   error
	}
	var (
		mu       sync.Mutex
		verdicts = map[string]verdict{}
		issued   atomic.Int64
		wg       sync.WaitGroup
	)
	for w := range abaWriters {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(7, uint64(w)))
			for n := 0; ; n++ {
				token := guard.Token(issued.Add(1))
				if int64(token) > tokens {
					return
				}
				for i := range 1 + rng.IntN(3) {
					if i > 0 && rng.IntN(2) == 0 {
						time.Sleep(time.Duration(rng.IntN(15_000)) * time.Microsecond)
					}
					attempt := fmt.Sprintf("%d-%d-%d", w, n, i)
					err := write(t.Context(), w, claim(token), [2]string{"X", "Y"}[rng.IntN(2)], attempt)
					mu.Lock()
					verdicts[attempt] = verdict{token, err}
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	out := fuzzed{writes: len(verdicts), accepted: p.seen, reasons: map[guard.Reason]int{}}
	applied, highest := map[string]int{}, guard.NoToken
	for _, a := range out.accepted {
		applied[a.attempt]++
		highest = max(highest, a.token)
		for _, before := range out.accepted {
			if before.token > a.token && before.answered.Before(a.sent) {
				out.late++
				break
			}
		}
	}
	for attempt, v := range verdicts {
		reason := guard.ReasonOf(v.err)
		out.reasons[reason]++
		ok := false
		switch n := applied[attempt]; reason {
		case guard.ReasonNone:
			ok = n == 1
		case guard.ReasonOutcomeUnknown:
			ok = n <= 1
		case guard.ReasonStale:
			var r *guard.RejectedError
			ok = n == 0 && errors.As(v.err, &r) && r.Mark.Token > v.token && r.Mark.Token <= highest
		case guard.ReasonUnavailable:
			ok = n == 0
		}
		if !ok {
			if out.wrong++; out.wrong < 5 {
				t.Logf("attempt %s under %d was applied %d times and told: %v", attempt, v.token, applied[attempt], v.err)
			}
		}
	}
	t.Logf("%d writes, verdicts %v; %d accepted, %d of them after a newer one; %d wrong verdicts",
		out.writes, out.reasons, len(out.accepted), out.late, out.wrong)
	return out
}

// The fuzz of P1 on a real process: contents that repeat, paused writers, lost
// requests and responses.
func TestP1ABA(t *testing.T) {
	g := startGateway(t)
	p := newProxy(t, g)
	var handles [4]*s3fence.Objects // as if several processes
	for i := range handles {
		handles[i] = openSealed(t, gatewayClient(g, p.URL))
	}
	f := abaFuzz(t, p, func(ctx context.Context, w int, c guard.Claim, body, attempt string) error {
		return handles[w%len(handles)].Put(ctx, c, key, []byte(body),
			&s3fence.Headers{Metadata: map[string]string{"attempt": attempt}})
	})
	if f.late != 0 || f.wrong != 0 {
		t.Errorf("%d writes were accepted after a newer one, %d verdicts are wrong", f.late, f.wrong)
	}
	// Every accepted write replaced the one before it: they form one chain, in
	// which tokens only grow.
	next := map[string]accepted{}
	for _, a := range f.accepted {
		if other, taken := next[a.ifMatch]; taken {
			t.Errorf("two writes replaced %q: %+v and %+v", a.ifMatch, other, a)
		}
		next[a.ifMatch] = a
	}
	at, n := next[""], 1
	for ; next[at.etag].etag != ""; n++ {
		following := next[at.etag]
		if following.token < at.token {
			t.Errorf("token %d replaced %d", following.token, at.token)
		}
		at = following
	}
	if n != len(f.accepted) || n < 10 {
		t.Errorf("%d of %d writes are in the chain, want all, and 10 at least", n, len(f.accepted))
	}
}

// The control, in the same harness: the token in the metadata, and If-Match on
// the ETag of what was read. It goes on until harm is done, which takes more
// than one fuzz only where the writers hardly meet.
func TestP1ABAControl(t *testing.T) {
	g := startGateway(t)
	client := gatewayClient(g, g.URL)
	late, wrong := 0, 0
	testkit.Eventually(t, "the naive protocol to fail", func() bool {
		// Each fuzz begins without an object, as its tokens begin with 1.
		_, err := client.DeleteObject(t.Context(), &s3.DeleteObjectInput{Bucket: aws.String(bucket), Key: aws.String(key)})
		testkit.Must(t, err)
		p := newProxy(t, g)
		through := gatewayClient(g, p.URL)
		f := abaFuzz(t, p, func(ctx context.Context, _ int, c guard.Claim, body, attempt string) error {
			return naivePut(ctx, through, c, body, attempt)
		})
		late, wrong = late+f.late, wrong+f.wrong
		return late > 0 && wrong > 0
	})
}

// naivePut is the usual code: read the token, compare, write on condition of
// the ETag.
func naivePut(ctx context.Context, client *s3.Client, c guard.Claim, body, attempt string) error {
	in := &s3.PutObjectInput{
		Bucket: aws.String(bucket), Key: aws.String(key), Body: bytes.NewReader([]byte(body)),
		Metadata: map[string]string{"fencing-token": c.Token.String(), "attempt": attempt},
	}
	head, err := client.HeadObject(ctx, &s3.HeadObjectInput{Bucket: in.Bucket, Key: in.Key})
	if err != nil {
		in.IfNoneMatch = aws.String("*")
	} else {
		n, err := strconv.ParseInt(head.Metadata["fencing-token"], 10, 64)
		if err != nil {
			return err
		}
		if err := guard.Decide(guard.SameOrNewer, guard.Mark{Token: guard.Token(n), LeaseID: c.LeaseID}, c); err != nil {
			return err
		}
		in.IfMatch = head.ETag
	}
	if _, err = client.PutObject(ctx, in); err == nil {
		return nil
	}
	var answer interface{ HTTPStatusCode() int }
	if errors.As(err, &answer) && answer.HTTPStatusCode() == http.StatusPreconditionFailed {
		return &guard.RejectedError{Reason: guard.ReasonStale, Claim: c, Mark: guard.Mark{Token: c.Token + 1}}
	}
	return guard.OutcomeUnknown("put", c, err)
}
