package s3fence

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/fencepost-go/fencepost/guard"
)

// Bucket is a bucket whose store is known to enforce preconditions. Open one
// with [Open]; the zero value is not usable. It is safe for concurrent use,
// holds no connection and needs no closing.
type Bucket struct {
	client   S3
	endpoint string // "" if the client does not tell
	name     string
	opts     Options
	probe    Probe
	clock    func() time.Time
	delay    time.Duration // the shortest wait before a retry

	// plainStop is set once a write has shown that ETags are no longer opaque.
	plainStop atomic.Pointer[UnsuitableError]

	mu    sync.Mutex
	cache map[string]state
}

// Open returns the bucket after probing the store: whether it enforces
// preconditions, also under concurrency, answers reads during writes with nothing
// older than the ETag, replaces metadata, and makes opaque ETags; see [Probe]. The
// probe sends about 1,300 requests in three bursts to keys of its own, and deletes
// them, for which it needs permission. Measured on s3test over loopback, on two
// busy cores: 1,252 to 1,400 requests and 1.5 to 5.3 seconds, in eight runs, of
// which 0.8 are pauses; a distant store takes longer. In a bucket with versioning,
// versions of these keys stay. The client should allow 16 connections, or the
// racing writers do not meet. opts may be nil.
//
// Errors: ErrInvalid for a bad bucket name or option; [ErrUnsuitableStore] for a
// store that is refused; ErrUnavailable, with the cause, for one that could not
// be asked.
func Open(ctx context.Context, client S3, bucket string, opts *Options) (*Bucket, error) {
	if client == nil {
		return nil, guard.Missing("client")
	}
	if len(bucket) < 3 || len(bucket) > 2048 || !printable(bucket) { // names, and ARNs of access points
		return nil, guard.Invalid("bucket", bucket, "must be a bucket's name or an access point's ARN")
	}
	if opts == nil {
		opts = &Options{}
	}
	o, err := opts.resolve()
	if err != nil {
		return nil, err
	}
	b := &Bucket{client: checked{client}, endpoint: endpointOf(client), name: bucket, opts: o, clock: time.Now, delay: 20 * time.Millisecond, cache: map[string]state{}}
	if o.InsecureSkipProbe {
		return b, nil
	}
	if o.Probe != nil {
		usable, err := o.Probe.usable(b, b.clock())
		if err != nil {
			return nil, err
		}
		if usable {
			b.probe = *o.Probe
			return b, nil
		}
	}
	if b.probe, err = b.runProbe(ctx); errors.Is(err, ErrUnsuitableStore) {
		return nil, err
	} else if err != nil {
		return nil, guard.Unavailable(fmt.Sprintf("probe bucket %q", bucket), guard.Claim{}, b.explain(err))
	}
	return b, nil
}

// Probe returns the result of the probe, or the kept result that was used; the
// zero value if it was skipped.
func (b *Bucket) Probe() Probe { return b.probe }

func (b *Bucket) observe(ctx context.Context, op guard.Op, claim guard.Claim, mark guard.Mark, start time.Time, err error) {
	if b.opts.Observer == nil {
		return
	}
	b.opts.Observer.Observe(ctx, guard.Event{
		Op: op, Surface: guard.SurfaceS3, Claim: claim, Mark: mark, Reason: guard.ReasonOf(err), Duration: time.Since(start), Err: err,
	})
}

// ended reports that ctx is over before anything was sent.
func ended(ctx context.Context, op string, claim guard.Claim) error {
	if ctx.Err() == nil {
		return nil
	}
	return guard.Unavailable(op, claim, context.Cause(ctx))
}

// sleep waits for d or the end of ctx.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

const (
	// maxKey is the longest key that S3 takes, in bytes.
	maxKey = 1024
	// internalSegment is the name of the folder that this package keeps beside
	// the objects. No key of a caller may have it as a segment, whatever the
	// prefix, so that another handle's prefix cannot make an internal object look
	// like a user's.
	internalSegment = ".fencepost"
)

// validateKey checks a key or prefix. The keys it refuses are legal on Amazon S3.
// But somewhere on the way (a gateway on a file system, a proxy that cleans paths)
// they are one name for two objects, or two names for one. A mark under two names
// fences nothing.
func validateKey(field, key string, limit int) error {
	switch {
	case key == "":
		return guard.Invalid(field, key, "must not be empty")
	case len(key) > limit:
		return guard.Invalid(field, key, "is "+strconv.Itoa(len(key))+" bytes long, at most "+strconv.Itoa(limit)+" are allowed")
	case !utf8.ValidString(key):
		return guard.Invalid(field, key, "must be valid UTF-8")
	case strings.ContainsFunc(key, unicode.IsControl):
		return guard.Invalid(field, key, "must not contain control characters")
	}
	for segment := range strings.SplitSeq(key, "/") {
		switch segment {
		case "":
			return guard.Invalid(field, key, "must not begin or end with a slash or have two in a row")
		case ".", "..":
			return guard.Invalid(field, key, "must not have the path segment "+strconv.Quote(segment))
		case internalSegment:
			return guard.Invalid(field, key, "must not have the path segment "+strconv.Quote(segment)+", which is reserved")
		}
	}
	return nil
}

// internal reports whether key is one of this package's own.
func internal(key string) bool {
	return strings.HasPrefix(key, internalSegment+"/") || strings.Contains(key, "/"+internalSegment+"/")
}

// hashName returns the name below the internal folder for a string of any length
// and spelling.
func hashName(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

// dataPrefix is the prefix of a pointer's data.
func (b *Bucket) dataPrefix(key string) string { return b.opts.Prefix + "data/" + hashName(key) + "/" }

// dataKey names the data of one write. The token is padded, so that listings are
// in token order.
func (b *Bucket) dataKey(key string, token guard.Token, id writeID) string {
	digits := token.String()
	return b.dataPrefix(key) + strings.Repeat("0", 19-len(digits)) + digits + "-" + id.String()
}

// parseDataKey is the inverse of dataKey for what follows the data prefix.
func parseDataKey(name string) (guard.Token, writeID, bool) {
	digits, hexID, ok := strings.Cut(name, "-")
	if !ok || len(digits) != 19 {
		return 0, writeID{}, false
	}
	token, err := guard.ParseToken(strings.TrimLeft(digits, "0"))
	if err != nil {
		return 0, writeID{}, false
	}
	id, ok := parseWriteID(hexID)
	return token, id, ok
}

func (b *Bucket) marksPrefix() string            { return b.opts.Prefix + "marks/" }
func (b *Bucket) markKey(resource string) string { return b.marksPrefix() + hashName(resource) }
func (b *Bucket) isMarkKey(key string) bool {
	name, ok := strings.CutPrefix(key, b.marksPrefix())
	_, err := hex.DecodeString(name)
	return ok && err == nil && len(name) == 2*sha256.Size
}
func (b *Bucket) floorKey() string            { return b.opts.Prefix + "floor" }
func (b *Bucket) probeKey(name string) string { return b.opts.Prefix + "probe/" + name }

func keySum(key string) [sha256.Size]byte { return sha256.Sum256([]byte(key)) }

// keyPattern maps a key to its resource: "exports/{tenant}/{period}.csv" beside
// the template "{tenant}:billing-close:{period}".
type keyPattern struct {
	text     string
	segments []patternSegment
	template *guard.Template
}

// patternSegment is a segment of a path: text, or a variable between two texts.
type patternSegment struct{ before, variable, after string }

func newKeyPattern(text string, template *guard.Template) (*keyPattern, error) {
	const field = "ObjectsOptions.KeyPattern"
	p := &keyPattern{text: text, template: template}
	var bound, plain []string
	for part := range strings.SplitSeq(text, "/") {
		before, rest, found := strings.Cut(part, "{")
		s := patternSegment{before: before}
		if found {
			var closed bool
			s.variable, s.after, closed = strings.Cut(rest, "}")
			if !closed || s.variable == "" {
				return nil, guard.Invalid(field, text, "has no variable in the braces of "+strconv.Quote(part))
			}
			bound = append(bound, s.variable)
			plain = append(plain, s.before+"x"+s.after)
		} else {
			plain = append(plain, part)
		}
		if strings.ContainsAny(s.before+s.after, "{}") {
			return nil, guard.Invalid(field, text, "may have one variable in a segment, not as in "+strconv.Quote(part))
		}
		p.segments = append(p.segments, s)
	}
	if err := validateKey(field, strings.Join(plain, "/"), maxKey); err != nil {
		return nil, err
	}
	return p, template.CheckVariables(bound...)
}

// resource returns the name of the resource that a key belongs to.
func (p *keyPattern) resource(key string) (string, error) {
	parts := strings.Split(key, "/")
	if len(parts) != len(p.segments) {
		return "", p.mismatch(key)
	}
	value := map[string]string{}
	for i, s := range p.segments {
		v, begins := strings.CutPrefix(parts[i], s.before)
		v, ends := strings.CutSuffix(v, s.after)
		if !begins || !ends || (v == "") != (s.variable == "") {
			return "", p.mismatch(key)
		}
		value[s.variable] = v
	}
	var values []string
	for _, name := range p.template.Variables() {
		values = append(values, value[name])
	}
	return p.template.Name(values...)
}

func (p *keyPattern) mismatch(key string) error {
	return guard.Invalid("key", key, "is not of the pattern "+strconv.QuoteToASCII(p.text))
}
