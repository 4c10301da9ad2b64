package s3fence_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/s3fence"
	"github.com/fencepost-go/fencepost/s3fence/s3test"
)

// Each refusal by its code: what is fixed ends at once, with its reason and nothing
// written; what is a race is tried again.
func TestRefusalsByCode(t *testing.T) {
	t.Parallel()
	for code, c := range map[string]struct {
		status int
		again  bool
		says   string
	}{
		"ConditionalRequestConflict": {409, true, ""}, "OperationAborted": {409, true, ""},
		"ExistingObjectIsDirectory": {409, false, "cannot hold an object of that name"}, "ObjectParentIsFile": {409, false, "cannot hold an object of that name"},
		"InvalidBucketState": {409, false, "InvalidBucketState"}, "KeyTooLongError": {400, false, "cannot hold an object of that name"},
		"InvalidObjectState": {403, false, "archived"}, "EntityTooLarge": {413, false, "use Pointers"}, "AccessDenied": {403, false, "denied"},
		"XAmzContentSHA256Mismatch": {400, false, "changed a signed header or the body"}, "SlowDown": {503, true, ""},
	} {
		server, _, o := setup(t, s3fence.Sealed, 0)
		put(t, o, claim(4, "z"), "before")
		server.ResetCounts()
		server.Inject(s3test.Rule{Ops: puts, Key: key, Times: 1, Fault: s3test.Fault{Status: c.status, Code: code}})
		err := o.Put(t.Context(), claim(5, "a"), key, strings.NewReader("after"), nil)
		if c.again {
			if err != nil {
				t.Errorf("%s: %v", code, err)
			}
			continue
		}
		reason := guard.ReasonSetup
		if code == "InvalidBucketState" { // unknown to this package
			reason = guard.ReasonUnavailable
		}
		refused(t, err, reason)
		if err == nil || !strings.Contains(err.Error(), c.says) || server.Count() != 1 {
			t.Errorf("%s: after %d requests: %v", code, server.Count(), err)
		}
		want(t, o, "before", guard.Mark{Token: 4, LeaseID: "z"})
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

// What the collector may not read or delete is counted and named, and what is behind
// it is collected.
func TestCollectGoesOn(t *testing.T) {
	t.Parallel()
	server, _, o := setup(t, s3fence.Pointer, 0)
	for _, k := range []string{"a", "b", "c"} {
		for token := guard.Token(5); token < 7; token++ {
			must(t, o.Put(t.Context(), claim(token, "l"), k, strings.NewReader("x"), nil))
		}
	}
	o = later(t, o, 2*time.Hour)
	archived := server.Inject(s3test.Rule{Ops: gets, Key: "a", Fault: s3test.Fault{Status: 403, Code: "InvalidObjectState"}})
	locked := server.Inject(s3test.Rule{Ops: []s3test.Op{s3test.DeleteObject}, Prefix: o.Bucket().DataPrefix("b"), Fault: s3test.Respond(403)})
	done, err := o.Collect(t.Context(), "")
	if err != nil || done.Pointers != 2 || done.Deleted != 1 || done.Skipped != 2 || done.Err == nil ||
		!strings.Contains(done.Err.Error(), `collect "a"`) || !strings.Contains(done.Err.Error(), `data of "b"`) {
		t.Errorf("Collect = %+v, %v", done, err)
	}
	archived.Remove()
	locked.Remove()
	if done, err := o.Collect(t.Context(), ""); err != nil || done.Deleted != 2 || done.Skipped != 0 || done.Err != nil {
		t.Errorf("later: %+v, %v", done, err)
	}
}

// repeating is a store whose listings all have one continuation token, or none, and no end.
type repeating struct {
	s3fence.S3
	token *string
	asked int
}

func (c *repeating) ListObjectsV2(context.Context, *s3.ListObjectsV2Input, ...func(*s3.Options)) (*s3.ListObjectsV2Output, error) {
	c.asked++
	return &s3.ListObjectsV2Output{IsTruncated: aws.Bool(true), NextContinuationToken: c.token}, nil
}

// A listing that cannot go on is not complete, and does not begin again.
func TestRepeatedContinuationToken(t *testing.T) {
	t.Parallel()
	server, b, _ := setup(t, s3fence.Pointer, 0)
	for want, token := range map[int]*string{4: aws.String("same"), 2: nil} {
		store := &repeating{S3: newClient(server), token: token}
		o := objects(t, b.On(store, bucketName), s3fence.Pointer, nil)
		for _, err := range o.List(t.Context(), "") {
			refused(t, err, guard.ReasonUnavailable)
		}
		_, err := o.Collect(t.Context(), "")
		if refused(t, err, guard.ReasonUnavailable); store.asked != want {
			t.Errorf("%d requests, want %d", store.asked, want)
		}
	}
}

// Objects without a template need the word that any resource will do.
func TestP9ResourceIsRequired(t *testing.T) {
	t.Parallel()
	_, b, _ := setup(t, s3fence.Sealed, 0)
	template := guard.Must(guard.NewTemplate("{tenant}:close"))
	for _, opts := range []*s3fence.ObjectsOptions{nil, {}, {Resource: template, KeyPattern: "{tenant}", InsecureAnyResource: true}} {
		if _, err := b.Objects(s3fence.Sealed, opts); !errors.Is(err, guard.ErrInvalid) {
			t.Errorf("Objects(%+v) = %v", opts, err)
		}
		if _, err := b.Pointers(opts); !errors.Is(err, guard.ErrInvalid) {
			t.Errorf("Pointers(%+v) = %v", opts, err)
		}
	}
}

// Bytes that end like a trailer are somebody's content: unfenced, and the error says how to be
// fenced. A whole trailer without metadata is damage.
func TestForeignBytesThatEndLikeATrailer(t *testing.T) {
	t.Parallel()
	server, _, o := setup(t, s3fence.Sealed, 0)
	bypass(t, server, key, []byte("made by fencepost/s3"), nil)
	err := o.Put(t.Context(), claim(5, "a"), key, nil, nil)
	if refused(t, err, guard.ReasonUnfenced); err == nil || !strings.Contains(err.Error(), "Adopt") {
		t.Errorf("it does not name the way out: %v", err)
	}
	must(t, o.Adopt(t.Context(), claim(5, "a"), key))
	want(t, o, "made by fencepost/s3", guard.Mark{Token: 5, LeaseID: "a"})
	bypass(t, server, "copied", stored(t, server, key).Body, nil)
	damage(t, o.Put(t.Context(), claim(5, "a"), "copied", nil, nil))
}

// TestP6RefusalsHaveTheFacts: an absent, a deleted and a foreign object differ,
// with the claim, and with the mark where there is one.
func TestP6RefusalsHaveTheFacts(t *testing.T) {
	t.Parallel()
	eachBody(t, func(t *testing.T, mode s3fence.Mode) {
		server, _, o := setup(t, mode, 0)
		ctx, reading, writing := t.Context(), guard.Claim{Resource: key}, claim(5, "a")
		rejected := func(err error, reason guard.Reason, claim guard.Claim, mark guard.Mark) {
			t.Helper()
			var r *guard.RejectedError
			if !errors.As(err, &r) || r.Reason != reason || r.Claim != claim || r.Mark != mark {
				t.Errorf("%v: %+v, want %s", err, r, reason)
			}
		}
		rejected(got(t, o, key), guard.ReasonNotFound, reading, guard.Mark{})
		bypass(t, server, key, []byte("foreign"), nil)
		rejected(got(t, o, key), guard.ReasonUnfenced, reading, guard.Mark{})
		rejected(o.Put(ctx, writing, key, strings.NewReader(""), nil), guard.ReasonUnfenced, writing, guard.Mark{})
		must(t, o.Adopt(ctx, writing, key))
		at := guard.Mark{Token: 6, LeaseID: "b"}
		must(t, o.Delete(ctx, claim(6, "b"), key))
		rejected(got(t, o, key), guard.ReasonNotFound, reading, at)
		rejected(o.Adopt(ctx, claim(5, "a"), key), guard.ReasonStale, claim(5, "a"), at)
	})
}

// TestLongestBody: a body may be as long as Options.MaxBody and no longer, and what
// another writer stored beyond that is refused by its length.
func TestLongestBody(t *testing.T) {
	t.Parallel()
	eachBody(t, func(t *testing.T, mode s3fence.Mode) {
		server := newServer(t, &s3test.Options{ETags: s3test.ETagOpaque})
		small := objects(t, open(t, server, &s3fence.Options{MaxBody: 10_000}), mode, nil)
		longest := strings.Repeat("x", 10_000)
		put(t, small, claim(5, "a"), longest)
		want(t, small, longest, guard.Mark{Token: 5, LeaseID: "a"})
		invalid(t, small.Put(t.Context(), claim(5, "a"), key, strings.NewReader(longest+"x"), nil), "body")
		put(t, objects(t, open(t, server, nil), mode, nil), claim(5, "a"), longest+longest)
		_, err := small.Get(t.Context(), key)
		if invalid(t, err, "body"); err != nil && !strings.Contains(err.Error(), "Options.MaxBody, 10000") {
			t.Error(err)
		}
	})
}
