package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/s3fence"
)

// resource is what the leases are on. An application acquires them with
// lockclient, which issues the tokens; here the program stands in for it.
const resource = "tenant_123:billing-close:2026-04"

type story struct {
	client      s3fence.S3
	bucket, key string
	mode        s3fence.Mode // 0 for pointers
	out         io.Writer
}

// objects are Objects or Pointers.
type objects interface {
	Mark(context.Context, string) (guard.Mark, error)
	Raise(context.Context, guard.Claim, string) error
	Get(context.Context, string) (*s3fence.Object, error)
	Put(context.Context, guard.Claim, string, []byte, *s3fence.Headers) error
}

// pointers are Pointers with bodies in memory.
type pointers struct{ *s3fence.Pointers }

func (p pointers) Put(ctx context.Context, claim guard.Claim, key string, body []byte, h *s3fence.Headers) error {
	return p.Pointers.Put(ctx, claim, key, bytes.NewReader(body), h)
}

func (s story) open(b *s3fence.Bucket) (objects, error) {
	opts := &s3fence.ObjectsOptions{InsecureAnyResource: true} // the key is any that the user names
	if s.mode == 0 {
		p, err := b.Pointers(opts)
		return pointers{p}, err
	}
	return b.Objects(s.mode, opts)
}

// tell makes two holders overlap. It fails unless the older one is refused.
func (s story) tell(ctx context.Context) error {
	b, err := s3fence.Open(ctx, s.client, s.bucket, nil) // refuses a store that does not enforce preconditions
	if err != nil {
		return err
	}
	etags := "those of bodies"
	if b.Report().OpaqueETags { // a program that runs often keeps it, for Options.Report
		etags = "opaque"
	}
	s.line("probe", 0, "the store enforces preconditions; its ETags are "+etags)
	exports, err := s.open(b)
	if err != nil {
		return err
	}
	mark, err := exports.Mark(ctx, s.key)
	if err != nil {
		return err
	}
	a := guard.Claim{Resource: resource, Token: mark.Token + 1, LeaseID: "a"}
	if err := s.takeOverAndWrite(ctx, exports, "holder a", a, "ardent,1000\n"); err != nil {
		return err
	}
	// Here a is paused for longer than its lease, which then goes to b.
	next := guard.Claim{Resource: resource, Token: a.Token + 1, LeaseID: "b"}
	if err := s.takeOverAndWrite(ctx, exports, "holder b", next, "boreal,2000\n"); err != nil {
		return err
	}
	// And here a continues.
	err = exports.Put(ctx, a, s.key, []byte("ardent,999\n"), nil)
	switch {
	case err == nil:
		return errors.New("the stale writer was not refused")
	case !errors.Is(err, guard.ErrStale):
		return err
	}
	s.line("holder a", a.Token, "goes on and writes: "+err.Error())
	content, mark, err := s.read(ctx, exports)
	if err != nil {
		return err
	}
	s.line("reader", mark.Token, fmt.Sprintf("s3://%s/%s has %d rows", s.bucket, s.key, bytes.Count(content, []byte("\n"))))
	return nil
}

// takeOverAndWrite is what a holder does: raise the mark, so that no older
// holder can write any more; then read; then write.
func (s story) takeOverAndWrite(ctx context.Context, exports objects, who string, claim guard.Claim, row string) error {
	if err := exports.Raise(ctx, claim, s.key); err != nil {
		return err
	}
	content, _, err := s.read(ctx, exports)
	if err != nil && !errors.Is(err, guard.ErrNotFound) { // only the store's own word is ErrNotFound, so no total is lost by starting from nothing
		return err
	}
	s.line(who, claim.Token, fmt.Sprintf("raises the mark and reads %d rows", bytes.Count(content, []byte("\n"))))
	err = exports.Put(ctx, claim, s.key, append(content, row...), &s3fence.Headers{ContentType: "text/csv"})
	if err != nil {
		return err
	}
	s.line(who, claim.Token, "writes one more")
	return nil
}

func (s story) read(ctx context.Context, exports objects) ([]byte, guard.Mark, error) {
	object, err := exports.Get(ctx, s.key)
	if err != nil {
		return nil, guard.Mark{}, err
	}
	defer object.Body.Close()
	content, err := io.ReadAll(object.Body)
	return content, object.Mark, err
}

func (s story) line(who string, token guard.Token, what string) {
	shown := ""
	if token != guard.NoToken {
		shown = "token " + token.String()
	}
	fmt.Fprintf(s.out, "%-9s %-9s %s\n", who, shown, what)
}
