package s3fence_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/s3fence"
	"github.com/fencepost-go/fencepost/s3fence/s3test"
)

// lossy lists the ways in which a response can get lost.
var lossy = map[string]s3test.Fault{
	"request lost":        s3test.LoseRequest(),
	"response lost":       s3test.LoseResponse(),
	"500":                 s3test.Respond(http.StatusInternalServerError),
	"500 though applied":  s3test.RespondApplied(http.StatusInternalServerError),
	"503":                 s3test.Respond(http.StatusServiceUnavailable),
	"503 though applied":  s3test.RespondApplied(http.StatusServiceUnavailable),
	"409":                 s3test.Respond(http.StatusConflict),
	"409 though applied":  s3test.RespondApplied(http.StatusConflict),
	"response lost twice": {Lose: true, Applied: true},
}

// Every call, with every one of its PUTs lost in every way, is resolved: it
// succeeds, and took effect once.
func TestLostAnswersAreResolved(t *testing.T) {
	t.Parallel()
	eachMode(t, func(t *testing.T, mode s3fence.Mode) {
		for _, verb := range []string{"put", "raise", "delete"} {
			for faultName, fault := range lossy {
				for _, exists := range []bool{true, false} {
					t.Run(fmt.Sprintf("%s/%s, exists %v", verb, faultName, exists), func(t *testing.T) {
						server, _, o := setup(t, mode, 0)
						if exists {
							put(t, o, claim(4, "z"), "x")
						}
						before := len(server.History(bucketName, key))
						rule := firstPut(fault)
						if faultName == "response lost twice" {
							rule.Times = 2
						}
						fired := server.Inject(rule)
						must(t, calls(o, claim(5, "a"), key)[verb](t.Context()))
						if fired.Fired() == 0 {
							t.Error("the fault did not fire")
						}
						history := server.History(bucketName, key)[before:]
						if len(history) != 1 || history[0].Metadata["fencing-token"] != "5" {
							t.Errorf("%d writes took effect, want one under 5", len(history))
						}
					})
				}
			}
		}
	})
}

// A write whose response is lost and that is overtaken before it can read is still a
// success: it is in the list of recent writes. One that was lost in transit is exactly
// stale, although its first sending was in doubt.
func TestLostThenSuccessors(t *testing.T) {
	t.Parallel()
	eachMode(t, func(t *testing.T, mode s3fence.Mode) {
		for _, c := range []struct {
			fault      s3test.Fault
			successors int
			verdict    guard.Reason
		}{
			{s3test.LoseResponse(), 1, guard.ReasonNone}, {s3test.LoseResponse(), 7, guard.ReasonNone},
			// Too many to be listed: the outcome can no longer be determined,
			// and is called neither stale nor done.
			{s3test.LoseResponse(), 40, guard.ReasonOutcomeUnknown},
			{s3test.LoseRequest(), 1, guard.ReasonStale},
		} {
			server, _, o := setup(t, mode, 0)
			put(t, o, claim(4, "z"), "before")
			other := objects(t, o.Bucket().On(newClient(server), bucketName), mode, nil)
			follow := func() {
				for i := range c.successors {
					put(t, other, claim(guard.Token(6+i), "b"), "after")
				}
			}
			if c.fault.Applied {
				c.fault.After = func(*s3test.Request, int) { follow() }
			} else {
				c.fault.Before = func(*s3test.Request) { follow() }
			}
			server.Inject(firstPut(c.fault))
			refused(t, o.Put(t.Context(), claim(5, "a"), key, strings.NewReader("mine"), nil), c.verdict)
			want(t, o, "after", guard.Mark{Token: guard.Token(5 + c.successors), LeaseID: "b"})
		}
	})
}

// Data of a pointer that has left stays, whatever became of it, for the pointer may name it.
// The collector deletes what none can name. The control is a refusal before the pointer left,
// which leaves nothing.
func TestDataOfALostWrite(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fault     s3test.Fault
		overtaken bool
		ends      bool // the context, before the request is processed
		reason    guard.Reason
	}{
		"refused":   {s3test.Fault{}, true, false, guard.ReasonStale},
		"lost":      {s3test.LoseRequest(), true, false, guard.ReasonStale},
		"ended":     {s3test.LoseRequest(), true, true, guard.ReasonUnavailable},
		"not known": {s3test.LoseRequest(), false, true, guard.ReasonOutcomeUnknown},
	} {
		server, b, o := setup(t, s3fence.Pointer, 0)
		put(t, o, claim(4, "z"), "before")
		other := objects(t, b.On(newClient(server), bucketName), s3fence.Pointer, nil)
		ctx, cancel := context.WithCancel(t.Context())
		c.fault.Before = func(*s3test.Request) {
			if c.overtaken {
				put(t, other, claim(6, "b"), "after")
			}
			if c.ends {
				cancel()
			}
		}
		server.Inject(firstPut(c.fault))
		refused(t, o.Put(ctx, claim(5, "a"), key, strings.NewReader("mine"), nil), c.reason)
		stays := 2 // the first, and this one
		if c.overtaken {
			stays++
		}
		if data := dataKeys(server); len(data) != stays {
			t.Errorf("%s: the data is %q", name, data)
		}
		cancel()
		if !c.overtaken {
			continue
		}
		if done := collect(t, later(t, o, s3fence.DefaultGracePeriod+time.Minute)); done.Deleted != 2 {
			t.Errorf("%s: collected %+v", name, done)
		}
		refused(t, o.Put(t.Context(), claim(5, "a"), key, strings.NewReader("mine"), nil), guard.ReasonStale)
		if data := dataKeys(server); len(data) != 1 {
			t.Errorf("%s: the data is %q", name, data)
		}
	}
}

// A write that is abandoned in flight may land later. It was never called stale
// or failed, and when it lands it is valid.
func TestGivenUpWriteLandsLater(t *testing.T) {
	t.Parallel()
	eachMode(t, func(t *testing.T, mode s3fence.Mode) {
		server, _, o := setup(t, mode, 0)
		put(t, o, claim(4, "z"), "before")
		ctx, cancel := context.WithCancel(t.Context())
		release, verdict := hold(t, server, firstPut(s3test.Fault{}), func() error {
			return o.Put(ctx, claim(5, "a"), key, strings.NewReader("mine"), nil)
		})
		cancel()
		refused(t, <-verdict, guard.ReasonOutcomeUnknown)
		release()
		testkit.Eventually(t, "the held write to land", func() bool { return len(server.History(bucketName, key)) == 2 })
		want(t, o, "mine", guard.Mark{Token: 5, LeaseID: "a"}) // its data is also there
	})
}

// skewed is a store whose clock is ahead; it responds as Amazon S3 then does.
type skewed struct {
	under   *http.Client
	ahead   time.Duration
	refused atomic.Int64
}

func (s *skewed) Do(r *http.Request) (out *http.Response, err error) {
	now := time.Now().Add(s.ahead)
	signed, err := time.Parse("20060102T150405Z", r.Header.Get("X-Amz-Date"))
	if err != nil {
		return nil, err
	}
	if now.Sub(signed).Abs() >= 15*time.Minute {
		s.refused.Add(1)
		out = response(r, http.StatusForbidden, "<Error><Code>RequestTimeTooSkewed</Code></Error>")
	} else if out, err = s.under.Do(r); err != nil {
		return nil, err
	}
	out.Header.Set("Date", now.UTC().Format(http.TimeFormat))
	return out, nil
}

// A machine whose clock is an hour behind opens the bucket and writes: the
// SDK learns the store's time from the first refusal, and the write is
// repeated here, because the SDK may not.
func TestSkewedClock(t *testing.T) {
	t.Parallel()
	server := newServer(t, nil)
	clock := &skewed{under: server.HTTPClient(), ahead: time.Hour}
	client := newClient(server, func(o *s3.Options) { o.HTTPClient = clock })
	_, err := s3fence.Open(t.Context(), client, bucketName, nil)
	must(t, err)
	if n := clock.refused.Load(); n == 0 || n > 2 {
		t.Errorf("%d requests were refused for their time", n)
	}

	// The clock steps back while the process runs, and the state is known, so
	// that a conditional write is the first to learn of it.
	b := open(t, server, &s3fence.Options{InsecureSkipProbe: true}).On(client, bucketName)
	o := objects(t, b, s3fence.Sealed, nil)
	put(t, o, claim(5, "a"), "x")
	clock.ahead = -time.Hour
	put(t, o, claim(5, "a"), "y")
	want(t, o, "y", guard.Mark{Token: 5, LeaseID: "a"})

	// Where that does not help the error says what is wrong, and nothing is written.
	server.Inject(s3test.Rule{Ops: puts, Key: key, Fault: s3test.Fault{Status: http.StatusForbidden, Code: "RequestTimeTooSkewed"}})
	err = o.Put(t.Context(), claim(5, "a"), key, strings.NewReader("z"), nil)
	if refused(t, err, guard.ReasonSetup); err == nil || !strings.Contains(err.Error(), "clock") {
		t.Errorf("the error does not speak of the clock: %v", err)
	}
	if n := len(server.History(bucketName, key)); n != 2 {
		t.Errorf("%d writes took effect, want 2", n)
	}
}

// The caller's own settings cannot turn the SDK's retries on for a conditional
// write, nor can a gateway's retry, which responds with 412 for a write it has
// applied, turn our own success into a failure.
func TestCallersRetriesStayOff(t *testing.T) {
	t.Parallel()
	server := newServer(t, nil)
	client := newClient(server, func(o *s3.Options) {
		o.Retryer = retry.AddWithMaxAttempts(retry.NewAdaptiveMode(), 10)
		o.RetryMaxAttempts = 10
	})
	b := open(t, server, &s3fence.Options{InsecureSkipProbe: true}).On(client, bucketName)
	o := objects(t, b, s3fence.Sealed, nil)
	put(t, o, claim(5, "a"), "x")
	for name, fault := range map[string]s3test.Fault{ // resolved by a read; the SDK's retry would be a second PUT
		"response lost":      s3test.LoseResponse(),
		"503 though applied": s3test.RespondApplied(http.StatusServiceUnavailable),
		"412 though applied": s3test.RespondApplied(http.StatusPreconditionFailed),
		"404 though applied": s3test.RespondApplied(http.StatusNotFound),
	} {
		t.Run(name, func(t *testing.T) {
			server.ResetCounts()
			before := len(server.History(bucketName, key))
			server.Inject(firstPut(fault))
			put(t, o, claim(5, "a"), name)
			if n := server.Count(s3test.PutObject); n != 1 {
				t.Errorf("%d PUTs were sent, want 1", n)
			}
			if n := len(server.History(bucketName, key)) - before; n != 1 {
				t.Errorf("%d writes took effect, want 1", n)
			}
			want(t, o, name, guard.Mark{Token: 5, LeaseID: "a"})
		})
	}
}

// A write under a lease that is lost, whose response is also lost: it is stored, and no
// error may promise that it is not.
func TestP6UnknownOutcomeUnderALostLease(t *testing.T) {
	t.Parallel()
	eachMode(t, func(t *testing.T, mode s3fence.Mode) {
		server, _, o := setup(t, mode, 0)
		put(t, o, claim(4, "z"), "before")
		ctx, cancel := context.WithCancelCause(t.Context())
		server.Inject(s3test.Rule{Ops: puts, Key: key, Fault: s3test.Fault{Lose: true, Applied: true, After: func(*s3test.Request, int) { cancel(guard.ErrLeaseLost) }}})
		server.Inject(s3test.Rule{Ops: gets, Key: key, Fault: s3test.Respond(403)})
		err := o.Put(ctx, claim(5, "a"), key, strings.NewReader("stored"), nil)
		refused(t, err, guard.ReasonOutcomeUnknown)
		if errors.Is(err, guard.ErrLeaseLost) || errors.Is(err, guard.ErrUnavailable) {
			t.Errorf("it promises that nothing was written: %v", err)
		}
		server.ClearFaults()
		want(t, o, "stored", guard.Mark{Token: 5, LeaseID: "a"})
	})
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
		release, old := hold(t, server, firstPut(s3test.Fault{}), func() error { return write(o, 2, "Y") })
		must(t, write(other, 3, "Y"))
		must(t, write(other, 4, "X"))
		release()
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
