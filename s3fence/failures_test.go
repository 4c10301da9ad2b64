package s3fence_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/s3fence"
	"github.com/fencepost-go/fencepost/s3fence/s3test"
)

// A store that responds to a read during a write with metadata of one version and
// bytes of the next: the object is read once more, and not reported as damaged.
// Real damage is reported, after two reads.
func TestReadsOfTwoVersions(t *testing.T) {
	t.Parallel()
	eachMode(t, func(t *testing.T, mode s3fence.Mode) {
		server, b, o := setup(t, mode, 0)
		other := objects(t, b.On(newClient(server), bucketName), mode, nil)
		token := guard.Token(5)
		put(t, o, claim(token, "a"), "old")
		calls := map[string]func() error{
			"get":   func() error { return got(t, o, key) },
			"mark":  func() error { _, err := o.Mark(t.Context(), key); return err },
			"raise": func() error { return o.Raise(t.Context(), claim(token+1, "a"), key) },
			"put":   func() error { return o.Put(t.Context(), claim(token+1, "a"), key, strings.NewReader("mine"), nil) },
		}
		for name, call := range calls {
			in := server.Inject(s3test.Rule{Ops: gets, Key: key, Times: 1, Fault: s3test.Fault{
				MetadataFirst: true, ETagFirst: true, Between: func(*s3test.Request) {
					token++
					put(t, other, claim(token, "a"), "version "+token.String())
				},
			}})
			b.Forget()
			if err := call(); err != nil || in.Fired() != 1 {
				t.Errorf("%s: %v, %d reads were torn", name, err, in.Fired())
			}
			in.Remove()
		}
		bypass(t, server, key, []byte("x"), map[string]string{"fencing-token": "7"})
		server.ResetCounts()
		_, err := o.Mark(t.Context(), key)
		damage(t, err)
		if n := server.Count(); n != 2 {
			t.Errorf("a damaged object was read %d times", n)
		}
	})
}

// A store that never responds: each call names itself, the key and the claim.
func TestFailuresNameTheCall(t *testing.T) {
	t.Parallel()
	eachMode(t, func(t *testing.T, mode s3fence.Mode) {
		server, _, o := setup(t, mode, 0)
		server.Inject(s3test.Rule{Fault: s3test.Respond(403)})
		mine, ctx := claim(5, "a"), t.Context()
		all := calls(o, mine, key)
		if mode == s3fence.Pointer {
			delete(all, "adopt") // is a raise
			_, err := o.Collect(ctx, "p")
			var f *guard.FailedError
			if !errors.As(err, &f) || f.Op != `collect "p"` || f.Claim != (guard.Claim{}) || f.Reason != guard.ReasonSetup {
				t.Errorf("collect: %+v, %v", f, err)
			}
		}
		for name, call := range all {
			op, of := name, mine
			switch name {
			case "mark":
				op, of = "read mark of", guard.Claim{Resource: key}
			case "get":
				of = guard.Claim{Resource: key}
			case "remove":
				op, of = "delete", guard.Claim{}
			}
			var f *guard.FailedError
			if err := call(ctx); !errors.As(err, &f) || f.Reason != guard.ReasonSetup || f.Op != op+` "`+key+`"` || f.Claim != of || !strings.Contains(err.Error(), "denied") {
				t.Errorf("%s: %+v, %v", name, f, err)
			}
		}
		for _, err := range o.List(ctx, "p") {
			var f *guard.FailedError
			if !errors.As(err, &f) || f.Op != `list "p"` || !strings.Contains(err.Error(), "denied") {
				t.Errorf("list: %v", err)
			}
		}
	})
}

// A write whose first sending was lost and whose second is refused is not known to
// have had no effect, if nothing can be read.
func TestDoubtIsKept(t *testing.T) {
	t.Parallel()
	eachMode(t, func(t *testing.T, mode s3fence.Mode) {
		for _, second := range []int{403, 412, 503} {
			server, _, o := setup(t, mode, 0)
			put(t, o, claim(4, "z"), "before")
			server.Inject(s3test.Rule{Ops: puts, Key: key, Script: append([]s3test.Fault{s3test.LoseResponse()}, faults(9, s3test.Respond(second))...)})
			server.Inject(s3test.Rule{Ops: gets, Key: key, Fault: s3test.Respond(403)})
			err := o.Put(t.Context(), claim(5, "a"), key, strings.NewReader("mine"), nil)
			refused(t, err, guard.ReasonOutcomeUnknown)
			var f *guard.FailedError
			if !errors.As(err, &f) || f.Claim != claim(5, "a") || f.Op != `put "`+key+`"` {
				t.Errorf("%+v", f)
			}
			server.ClearFaults()
			want(t, o, "mine", guard.Mark{Token: 5, LeaseID: "a"}) // and so is the data of a pointer
			// Refused with no earlier sending in doubt, it has no effect.
			server.Inject(s3test.Rule{Ops: puts, Key: key, Fault: s3test.Respond(403)})
			refused(t, o.Put(t.Context(), claim(6, "a"), key, strings.NewReader("more"), nil), guard.ReasonSetup)
			server.ClearFaults()
			want(t, o, "mine", guard.Mark{Token: 5, LeaseID: "a"})
		}
	})
}

func faults(n int, f s3test.Fault) (out []s3test.Fault) {
	for range n {
		out = append(out, f)
	}
	return out
}

// A write that is overtaken reads the object once, and decides by that.
func TestRequestsOfAnOvertakenWrite(t *testing.T) {
	t.Parallel()
	server, b, o := setup(t, s3fence.Sealed, 0)
	other := objects(t, b.On(newClient(server), bucketName), s3fence.Sealed, nil)
	put(t, o, claim(4, "z"), "before")
	put(t, other, claim(6, "b"), "after")
	server.ResetCounts()
	refused(t, o.Put(t.Context(), claim(5, "a"), key, nil, nil), guard.ReasonStale)
	if n := server.Count(); n != 2 { // the remembered state admits it, so it is sent
		t.Errorf("a stale write took %d requests, want 2", n)
	}
	put(t, other, claim(7, "b"), "more")
	server.ResetCounts()
	put(t, o, claim(8, "c"), "mine")
	if n := server.Count(); n != 3 {
		t.Errorf("an overtaken write took %d requests, want 3", n)
	}
}

// bodies counts the bodies of responses that are opened and closed.
type bodies struct {
	s3fence.S3
	opened, closed atomic.Int64
}

func (c *bodies) GetObject(ctx context.Context, in *s3.GetObjectInput, opts ...func(*s3.Options)) (*s3.GetObjectOutput, error) {
	out, err := c.S3.GetObject(ctx, in, opts...)
	if err == nil {
		c.opened.Add(1)
		out.Body = &countedBody{out.Body, c}
	}
	return out, err
}

type countedBody struct {
	io.ReadCloser
	c *bodies
}

func (b *countedBody) Close() error { b.c.closed.Add(1); return b.ReadCloser.Close() }

// Whatever a call returns, the bodies of all responses are closed: otherwise the
// connection is lost.
func TestEveryBodyIsClosed(t *testing.T) {
	t.Parallel()
	eachMode(t, func(t *testing.T, mode s3fence.Mode) {
		for name, fault := range map[string]s3test.Fault{
			"none": {}, "ETag missing": {Omit: []string{"Etag"}}, "cut": {Cut: true}, "range ignored": {Ignore: []string{"Range"}},
			"range not named": {Omit: []string{"Content-Range"}}, "another ETag": {ETagFirst: true}, "no metadata": {Omit: []string{"X-Amz-Meta-Fencing-Mode"}},
		} {
			server, b, _ := setup(t, mode, 0)
			c := &bodies{S3: newClient(server)}
			handle := b.On(c, bucketName)
			o := objects(t, handle, mode, nil)
			ctx := t.Context()
			for _, size := range []int{0, 10_000} {
				put(t, o, claim(5, "a"), string(bytesOf(size)))
				bypass(t, server, "foreign", bytesOf(size), nil)
				in := server.Inject(s3test.Rule{Ops: gets, Fault: fault})
				for range 2 {
					handle.Forget()
					if object, err := o.Get(ctx, key); err == nil {
						_, _ = io.Copy(io.Discard, object.Body)
						object.Body.Close()
					}
					_, _ = o.Mark(ctx, key)
					_ = o.Raise(ctx, claim(6, "b"), key)
					_ = o.Adopt(ctx, claim(6, "b"), "foreign")
				}
				in.Remove()
				must(t, o.InsecureDelete(ctx, key))
			}
			if opened, closed := c.opened.Load(), c.closed.Load(); opened == 0 || closed < opened {
				t.Errorf("%s: %d bodies were opened, %d closed", name, opened, closed)
			}
		}
	})
}
