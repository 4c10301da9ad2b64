package s3fence_test

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
	"github.com/fencepost-go/fencepost/s3fence/s3test"
)

const (
	abaWriters = 16
	abaShort   = 250
	abaFull    = 20_000
)

func abaTokens() int64 { return int64(longtest.ByLength(abaShort, abaFull)) }

// protocol is a way to write under a token; attempt goes into the metadata, so
// that the write is found in the server's history.
type protocol func(ctx context.Context, writer int, c guard.Claim, body, attempt string) error

// abaVerdicts holds the writers' results, by attempt.
type abaVerdicts struct {
	mu  sync.Mutex
	of  map[string]error
	at  map[string]guard.Token
	all int
}

func (v *abaVerdicts) note(attempt string, token guard.Token, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.of[attempt], v.at[attempt] = err, token
	v.all++
}

// abaFaults pauses writes, loses them and their responses.
func abaFaults(server *s3test.Server) {
	rng := rand.New(rand.NewPCG(1, 2)) // called for one request at a time
	server.Inject(s3test.Rule{Ops: puts, Key: key, Decide: func(*s3test.Request) (f s3test.Fault) {
		switch n := rng.IntN(100); {
		case n < 4:
			f = s3test.LoseResponse()
		case n < 6:
			f = s3test.LoseRequest()
		case n < 8:
			f = s3test.RespondApplied(http.StatusInternalServerError)
		case n < 10:
			f = s3test.Respond(http.StatusServiceUnavailable)
		case n < 13:
			f = s3test.Respond(http.StatusConflict)
		}
		if rng.IntN(8) == 0 {
			f.Before = s3test.Slow(time.Duration(rng.IntN(4000)) * time.Microsecond).Before // a paused writer
		}
		return f
	}})
}

// aba makes writers with ever newer tokens write two contents in turn, return
// with old tokens, and pause in between.
func aba(t *testing.T, tokens int64, write protocol) *abaVerdicts {
	v := &abaVerdicts{of: map[string]error{}, at: map[string]guard.Token{}}
	var issued atomic.Int64
	var wg sync.WaitGroup
	for w := range abaWriters {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(7, uint64(w)))
			for n := 0; ; n++ {
				token := issued.Add(1)
				if token > tokens {
					return
				}
				c := claim(guard.Token(token), fmt.Sprint("lease-", token))
				for i := range 1 + rng.IntN(3) {
					if i > 0 && rng.IntN(2) == 0 {
						time.Sleep(time.Duration(rng.IntN(3000)) * time.Microsecond)
					}
					attempt := fmt.Sprintf("%d-%d-%d", w, n, i)
					body := [2]string{"X", "Y"}[rng.IntN(2)]
					v.note(attempt, c.Token, write(t.Context(), w, c, body, attempt))
				}
			}
		})
	}
	wg.Wait()
	return v
}

// olderAfterNewer counts, in the order in which the server accepted them,
// writes under a token below one that was accepted before.
func olderAfterNewer(t *testing.T, history []s3test.Mutation) (violations int) {
	t.Helper()
	highest := guard.NoToken
	for _, m := range history {
		token, err := guard.ParseToken(m.Metadata["fencing-token"])
		if err != nil {
			t.Fatalf("mutation %d: %v", m.Seq, err)
		}
		if token < highest {
			violations++
		}
		highest = max(highest, token)
	}
	return violations
}

// wrongVerdicts compares the writers' results with what the server did.
func wrongVerdicts(t *testing.T, history []s3test.Mutation, v *abaVerdicts) (wrong int) {
	t.Helper()
	applied, highest := map[string]int{}, guard.NoToken
	for _, m := range history {
		applied[m.Metadata["attempt"]]++
		token, _ := guard.ParseToken(m.Metadata["fencing-token"])
		highest = max(highest, token)
	}
	counts := map[guard.Reason]int{}
	for attempt, err := range v.of {
		reason := guard.ReasonOf(err)
		counts[reason]++
		ok := false
		switch times := applied[attempt]; reason {
		case guard.ReasonNone:
			ok = times == 1
		case guard.ReasonOutcomeUnknown:
			ok = times <= 1
		case guard.ReasonStale:
			var r *guard.RejectedError
			ok = times == 0 && errors.As(err, &r) && r.Mark.Token > v.at[attempt] && r.Mark.Token <= highest
		case guard.ReasonUnavailable:
			ok = times == 0
		}
		if !ok {
			wrong++
			if wrong < 5 {
				t.Logf("attempt %s under %d was applied %d times and told %v", attempt, v.at[attempt], applied[attempt], err)
			}
		}
	}
	t.Logf("verdicts of %d writes: %v", v.all, counts)
	return wrong
}

// The fuzz of P1: contents that repeat, paused writers, lost responses.
func TestP1ABA(t *testing.T) {
	t.Parallel()
	eachMode(t, func(t *testing.T, mode s3fence.Mode) {
		server, b, _ := setup(t, mode, 0)
		var handles [4]*s3fence.Handle // as if four processes
		for i := range handles {
			handles[i] = objects(t, b.On(newClient(server), bucketName), mode, nil)
		}
		abaFaults(server)
		v := aba(t, abaTokens(), func(ctx context.Context, w int, c guard.Claim, body, attempt string) error {
			return handles[w%len(handles)].Put(ctx, c, key, bytes.NewReader([]byte(body)),
				&s3fence.Headers{Metadata: map[string]string{"attempt": attempt}})
		})
		server.ClearFaults()
		history := server.History(bucketName, key)
		if n := olderAfterNewer(t, history); n != 0 {
			t.Errorf("%d of %d writes were accepted after a newer one", n, len(history))
		}
		if mode == s3fence.Pointer {
			history = dataHistory(t, server, history)
		}
		if wrong := wrongVerdicts(t, history, v); wrong != 0 {
			t.Errorf("%d of %d verdicts were wrong", wrong, v.all)
		}
		if t.Logf("%d writes were accepted", len(history)); len(history) < 10 {
			t.Error("that shows nothing")
		}
	})
}

// The same with the token in the metadata and If-Match on the ETag of what was
// read: the control, without which the test above shows nothing. It goes on
// until harm is done, which takes more than one fuzz of a few hundred tokens
// only where the writers hardly meet.
func TestP1ABAControl(t *testing.T) {
	t.Parallel()
	violations, wrong, writes := 0, 0, 0
	testkit.Eventually(t, "the naive protocol to fail", func() bool {
		server := newServer(t, nil)
		clients := [4]*s3.Client{}
		for i := range clients {
			clients[i] = newClient(server)
		}
		abaFaults(server)
		v := aba(t, abaTokens(), func(ctx context.Context, w int, c guard.Claim, body, attempt string) error {
			return naivePut(ctx, clients[w%len(clients)], c, body, attempt)
		})
		history := server.History(bucketName, key)
		violations += olderAfterNewer(t, history)
		wrong, writes = wrong+wrongVerdicts(t, history, v), writes+v.all
		return violations > 0 && wrong > 0
	})
	t.Logf("%d writes came after a newer one, %d of %d verdicts were wrong", violations, wrong, writes)
}

// naivePut is the usual code: read the token, compare, write on condition of
// the ETag.
func naivePut(ctx context.Context, client *s3.Client, c guard.Claim, body, attempt string) error {
	in := &s3.PutObjectInput{
		Bucket: aws.String(bucketName), Key: aws.String(key), Body: bytes.NewReader([]byte(body)),
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

// The hole of P1ABA, step by step: a writer compares and is paused, others
// write and restore the old content, and the paused write is released. Then the
// SDK resends a write whose response is lost.
func TestP1ABASteps(t *testing.T) {
	t.Parallel()
	for _, naive := range []bool{false, true} {
		server, b, o := setup(t, s3fence.Sealed, 0)
		other := objects(t, b.On(newClient(server), bucketName), s3fence.Sealed, nil)
		clients := map[*s3fence.Handle]*s3.Client{o: newClient(server), other: newClient(server)}
		write := func(o *s3fence.Handle, token guard.Token, body string) error {
			c, attempt := claim(token, fmt.Sprint("lease-", token)), fmt.Sprint(token, body)
			if naive {
				return naivePut(context.Background(), clients[o], c, body, attempt)
			}
			return o.Put(context.Background(), c, key, bytes.NewReader([]byte(body)),
				&s3fence.Headers{Metadata: map[string]string{"attempt": attempt}})
		}
		must(t, write(o, 1, "X"))
		held, old := hold(t, server, firstPut(s3test.Fault{}), func() error { return write(o, 2, "Y") })
		must(t, write(other, 3, "Y"))
		must(t, write(other, 4, "X"))
		held.Release()
		paused := <-old
		server.Inject(firstPut(s3test.LoseResponse()))
		lost := write(other, 5, "Z")
		if late := olderAfterNewer(t, server.History(bucketName, key)); (late == 1) != naive || late > 1 {
			t.Errorf("naive %v: %d writes were accepted after a newer one", naive, late)
		}
		if (paused == nil) != naive || !naive && !errors.Is(paused, guard.ErrStale) {
			t.Errorf("naive %v: the paused writer was told %v", naive, paused)
		}
		if errors.Is(lost, guard.ErrStale) != naive || !naive && lost != nil {
			t.Errorf("naive %v: the writer whose answer was lost was told %v", naive, lost)
		}
	}
}
