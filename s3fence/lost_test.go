package s3fence_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/s3fence"
	"github.com/fencepost-go/fencepost/s3fence/s3test"
)

// lossy are the ways in which an answer can fail to come.
var lossy = map[string]s3test.Fault{
	"request lost":        s3test.LoseRequest(),
	"response lost":       s3test.LoseResponse(),
	"500":                 s3test.Answer(http.StatusInternalServerError),
	"500 though applied":  s3test.AnswerApplied(http.StatusInternalServerError),
	"503":                 s3test.Answer(http.StatusServiceUnavailable),
	"503 though applied":  s3test.AnswerApplied(http.StatusServiceUnavailable),
	"409":                 s3test.Answer(http.StatusConflict),
	"409 though applied":  s3test.AnswerApplied(http.StatusConflict),
	"response lost twice": {Lose: true, Applied: true},
}

// Every call, with every one of its PUTs lost in every way, is resolved: it
// succeeds, and took effect once.
func TestLostAnswersAreResolved(t *testing.T) {
	calls := map[string]struct {
		before func(t *testing.T, o *s3fence.Objects)
		call   func(ctx context.Context, o *s3fence.Objects) error
	}{
		"create": {nil, func(ctx context.Context, o *s3fence.Objects) error {
			return o.Put(ctx, claim(5, "a"), key, bytes.NewReader([]byte("x")), nil)
		}},
		"overwrite": {func(t *testing.T, o *s3fence.Objects) { put(t, o, claim(4, "z"), "x") },
			func(ctx context.Context, o *s3fence.Objects) error {
				return o.Put(ctx, claim(5, "a"), key, bytes.NewReader([]byte("x")), nil)
			}},
		"raise": {func(t *testing.T, o *s3fence.Objects) { put(t, o, claim(4, "z"), "x") },
			func(ctx context.Context, o *s3fence.Objects) error { return o.Raise(ctx, claim(5, "a"), key) }},
		"raise what is not there": {nil, func(ctx context.Context, o *s3fence.Objects) error { return o.Raise(ctx, claim(5, "a"), key) }},
		"delete": {func(t *testing.T, o *s3fence.Objects) { put(t, o, claim(4, "z"), "x") },
			func(ctx context.Context, o *s3fence.Objects) error { return o.Delete(ctx, claim(5, "a"), key) }},
	}
	eachMode(t, func(t *testing.T, mode s3fence.Mode) {
		for callName, c := range calls {
			for faultName, fault := range lossy {
				t.Run(callName+"/"+faultName, func(t *testing.T) {
					server, _, o := setup(t, mode, 0)
					if c.before != nil {
						c.before(t, o)
					}
					before := len(server.History(bucketName, key))
					times := 1
					if faultName == "response lost twice" {
						times = 2
					}
					fired := server.Inject(s3test.Rule{Ops: []s3test.Op{s3test.PutObject}, Key: key, Times: times, Fault: fault})
					if err := c.call(t.Context(), o); err != nil {
						t.Fatal(err)
					}
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
	})
}

// A write whose answer is lost and that is overtaken before it can look is
// still a success: it stands in the list of recent writes.
func TestLostAnswerThenSuccessors(t *testing.T) {
	eachMode(t, func(t *testing.T, mode s3fence.Mode) {
		for successors, verdict := range map[int]guard.Reason{
			1: guard.ReasonNone, 7: guard.ReasonNone,
			// Too many to be listed: it cannot be told any more, and is neither
			// called stale nor done.
			40: guard.ReasonOutcomeUnknown,
		} {
			t.Run(fmt.Sprint(successors), func(t *testing.T) {
				server, _, o := setup(t, mode, 0)
				put(t, o, claim(4, "z"), "before")
				other := objects(t, o.Bucket().Handle(newClient(server), bucketName), mode, nil)
				fault := s3test.LoseResponse()
				fault.After = func(*s3test.Request, int) {
					for i := range successors {
						put(t, other, claim(guard.Token(6+i), "b"), "after")
					}
				}
				server.Inject(s3test.Rule{Ops: []s3test.Op{s3test.PutObject}, Key: key, Times: 1, Fault: fault})
				err := o.Put(t.Context(), claim(5, "a"), key, bytes.NewReader([]byte("mine")), nil)
				refused(t, err, verdict)
				want(t, o, "after", guard.Mark{Token: guard.Token(5 + successors), LeaseID: "b"})
			})
		}
	})
}

// A write that was lost on the way and is then overtaken is stale, and exactly
// that, although its first sending was in doubt.
func TestLostRequestThenSuccessor(t *testing.T) {
	eachMode(t, func(t *testing.T, mode s3fence.Mode) {
		server, _, o := setup(t, mode, 0)
		put(t, o, claim(4, "z"), "before")
		other := objects(t, o.Bucket().Handle(newClient(server), bucketName), mode, nil)
		fault := s3test.LoseRequest()
		fault.Before = func(*s3test.Request) { put(t, other, claim(6, "b"), "after") }
		server.Inject(s3test.Rule{Ops: []s3test.Op{s3test.PutObject}, Key: key, Times: 1, Fault: fault})
		err := o.Put(t.Context(), claim(5, "a"), key, bytes.NewReader([]byte("mine")), nil)
		refused(t, err, guard.ReasonStale)
		want(t, o, "after", guard.Mark{Token: 6, LeaseID: "b"})
	})
}

// A write that is given up while it is on its way may land later. It was never
// called stale or failed, and when it lands it is in order.
func TestGivenUpWriteLandsLater(t *testing.T) {
	eachMode(t, func(t *testing.T, mode s3fence.Mode) {
		server, _, o := setup(t, mode, 0)
		put(t, o, claim(4, "z"), "before")
		pause := server.Pause(s3test.Rule{Ops: []s3test.Op{s3test.PutObject}, Key: key, Times: 1}, s3test.BeforeApply)
		ctx, cancel := context.WithCancel(t.Context())
		verdict := make(chan error, 1)
		go func() { verdict <- o.Put(ctx, claim(5, "a"), key, bytes.NewReader([]byte("mine")), nil) }()
		held, err := pause.Wait(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		refused(t, <-verdict, guard.ReasonOutcomeUnknown)
		held.Release()
		for deadline := time.Now().Add(time.Minute); len(server.History(bucketName, key)) < 2; {
			if time.Now().After(deadline) {
				t.Fatal("the held write did not land")
			}
			time.Sleep(time.Millisecond)
		}
		want(t, o, "mine", guard.Mark{Token: 5, LeaseID: "a"}) // its data, too, is there
	})
}

// When the store answers nothing any more, the outcome of a write is unknown.
func TestUnreachableAfterSending(t *testing.T) {
	eachMode(t, func(t *testing.T, mode s3fence.Mode) {
		server, _, o := setup(t, mode, 0)
		put(t, o, claim(4, "z"), "before")
		server.Inject(s3test.Rule{Key: key, Fault: s3test.LoseRequest()})
		refused(t, o.Put(t.Context(), claim(5, "a"), key, bytes.NewReader([]byte("mine")), nil), guard.ReasonOutcomeUnknown)
		server.ClearFaults()
		want(t, o, "before", guard.Mark{Token: 4, LeaseID: "z"})
		server.Close() // now not even a connection
		o.Bucket().Forget()
		refused(t, o.Put(t.Context(), claim(5, "a"), key, bytes.NewReader([]byte("mine")), nil), guard.ReasonUnavailable)
	})
}
