//go:build unix

package s3suite

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
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
