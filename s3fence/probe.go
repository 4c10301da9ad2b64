package s3fence

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
)

// Probe is what [Open] found out about a store that it did not refuse.
type Probe struct {
	// OpaqueETags reports that two writes of one body get different ETags.
	OpaqueETags bool
}

// prober runs the checks on keys of its own, so that several may run at once.
type prober struct {
	b    *Bucket
	key  string
	keys []string // to be deleted
	seq  int
	// ungated says that racing writers cannot wait for each other here.
	ungated atomic.Bool
}

// cleanupTimeout bounds the deletions after a probe.
const cleanupTimeout = 30 * time.Second

func (b *Bucket) runProbe(ctx context.Context) (Probe, error) {
	p := &prober{b: b, key: b.probeKey(newWriteID().String())}
	p.keys = []string{p.key}
	defer p.cleanup(ctx)
	if err := p.conditions(ctx); err != nil {
		return Probe{}, err
	}
	if err := p.metadata(ctx); err != nil {
		return Probe{}, err
	}
	var found Probe
	var err error
	if found.OpaqueETags, err = p.opaque(ctx); err != nil {
		return Probe{}, err
	}
	if b.opts.AtomicDelete {
		if err := p.deletion(ctx); err != nil {
			return Probe{}, err
		}
	}
	return found, p.race(ctx)
}

func (p *prober) fails(check, format string, args ...any) error {
	return p.b.unsuitable(check, fmt.Sprintf(format, args...))
}

// body returns bytes that no other write of the probe has.
func (p *prober) body() []byte {
	p.seq++
	return fmt.Appendf(nil, "fencepost probe %d", p.seq)
}

// conditions are the sequential checks. In each a condition is false and must
// stop the write, or is true and must let it through.
func (p *prober) conditions(ctx context.Context) error {
	const create, match, gone = "If-None-Match: *", "If-Match", "If-Match without an object"
	first, err := p.expect(ctx, create, p.key, "", true, p.body(), nil)
	if err != nil {
		return err
	}
	if _, err := p.expect(ctx, create+" over an object", p.key, "", false, p.body(), nil); err != nil {
		return err
	}
	if _, err := p.expect(ctx, match+" with another ETag", p.key, `"00000000000000000000000000000000"`, false, p.body(), nil); err != nil {
		return err
	}
	second, err := p.expect(ctx, match+" with the right ETag", p.key, first, true, p.body(), nil)
	if err != nil {
		return err
	}
	if first == second {
		return p.fails(match, "two bodies have the same ETag %s", quoteShort(first))
	}
	if _, err := p.expect(ctx, match+" with an old ETag", p.key, first, false, p.body(), nil); err != nil {
		return err
	}
	absent := p.key + "-absent"
	p.keys = append(p.keys, absent)
	_, err = p.expect(ctx, gone, absent, second, false, p.body(), nil)
	return err
}

// metadata checks that a write replaces the metadata there was, so that no
// field of an older writer's stays.
func (p *prober) metadata(ctx context.Context) error {
	const check = "metadata"
	for _, m := range []map[string]string{{"fencepost-probe-a": "1"}, {"fencepost-probe-b": "2"}} {
		etag, err := p.etag(ctx)
		if err != nil {
			return err
		}
		if _, err := p.expect(ctx, check, p.key, etag, true, p.body(), m); err != nil {
			return err
		}
	}
	out, err := p.b.head(ctx, p.key)
	if err != nil {
		return err
	}
	got := userMetadata(out.Metadata)
	if got["fencepost-probe-b"] != "2" {
		return p.fails(check, "what was written with an object is not read with it")
	}
	if _, ok := got["fencepost-probe-a"]; ok {
		return p.fails(check, "an overwritten object's metadata is still there")
	}
	return nil
}

// opaque writes one body twice. Two different metadata make the worst case of
// a store whose ETag depends on the body alone visible.
func (p *prober) opaque(ctx context.Context) (bool, error) {
	body := p.body()
	etag, err := p.etag(ctx)
	if err != nil {
		return false, err
	}
	var seen []string
	for _, m := range []string{"1", "2", "2"} {
		if etag, err = p.expect(ctx, "If-Match", p.key, etag, true, body, map[string]string{"fencepost-probe": m}); err != nil {
			return false, err
		}
		seen = append(seen, etag)
	}
	return seen[0] != seen[1] && seen[1] != seen[2] && seen[0] != seen[2], nil
}

// etag returns the current ETag, "" if there is no object.
func (p *prober) etag(ctx context.Context) (string, error) {
	s, err := p.b.fetch(ctx, p.key)
	return s.etag, err
}

// expect writes on condition of etag, or of no object if it is "", and checks
// whether that was let through. Answers that leave it open are tried again.
func (p *prober) expect(ctx context.Context, check, key, etag string, through bool, body []byte, m map[string]string) (string, error) {
	for try := 1; ; try++ {
		got, err := p.write(ctx, key, etag, body, m)
		switch o := classifyPut(err, etag == ""); {
		case o == outcomeApplied && !through:
			return "", p.fails(check, "a write was accepted that had to be refused")
		case o == outcomeApplied && strings.Trim(got, `"`) == "":
			return "", p.fails(check, "the answer to a write has no ETag")
		case o == outcomeApplied:
			return got, nil
		case o == outcomeNotMatched && !through:
			return "", nil
		case o == outcomeNotMatched && try > 1:
			return p.sent(ctx, check, key, body, err)
		case o == outcomeNotMatched:
			return "", p.fails(check, "a write was refused that had to be accepted: %v", err)
		case o == outcomeRefused && errorCode(err) == "NotImplemented":
			return "", p.fails(check, "%v", err)
		case o == outcomeRefused, try == maxSends, ctx.Err() != nil:
			return "", err
		}
		sleep(ctx, p.b.backoff(try))
	}
}

// sent tells a refusal that follows a lost answer to the same write.
func (p *prober) sent(ctx context.Context, check, key string, body []byte, refusal error) (string, error) {
	s, err := p.b.fetch(ctx, key)
	if err != nil {
		return "", err
	}
	if string(s.body) != string(body) {
		return "", p.fails(check, "a write was refused that had to be accepted: %v", refusal)
	}
	return s.etag, nil
}

func (p *prober) write(ctx context.Context, key, etag string, body []byte, m map[string]string) (string, error) {
	return p.writeFrom(ctx, key, etag, bytes.NewReader(body), m)
}

// body is what the prober sends: of known length, to be read again.
type body interface {
	io.ReadSeeker
	Size() int64
}

func (p *prober) writeFrom(ctx context.Context, key, etag string, from body, m map[string]string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, p.b.opts.RequestTimeout)
	defer cancel()
	in := p.b.put(key, Headers{}, m, nil)
	in.Body, in.ContentLength = from, aws.Int64(from.Size())
	if in.IfMatch = str(etag); etag == "" {
		in.IfNoneMatch = aws.String("*")
	}
	out, err := p.b.client.PutObject(ctx, in, once)
	if err != nil {
		return "", err
	}
	return aws.ToString(out.ETag), nil
}

func (p *prober) cleanup(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	for _, key := range p.keys {
		_ = p.b.remove(ctx, key) // they are small and say what they are
	}
}
