package s3fence

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/fencepost-go/fencepost/guard"
)

const (
	// maxKey is the longest key that S3 takes, in bytes.
	maxKey = 1024
	// internalSegment is the name of the folder that this package keeps beside
	// the objects. No key of a caller may have it as a segment, whatever the
	// prefix, so that another handle's prefix cannot make a user's object of
	// what is internal.
	internalSegment = ".fencepost"
)

// validateKey checks a key or prefix. What is refused is legal on Amazon S3 and
// still one name for two objects, or two names for one, somewhere on the way: a
// gateway on a file system, a proxy that cleans paths. A mark under two names
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

// hashName is the name under which something of any length and spelling is
// filed below the internal folder.
func hashName(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

// dataPrefix is where the data of a pointer is.
func (b *Bucket) dataPrefix(key string) string { return b.opts.Prefix + "data/" + hashName(key) + "/" }

// dataKey names the data of one write. The token is padded, so that a listing
// is in the order of tokens.
func (b *Bucket) dataKey(key string, token guard.Token, id writeID) string {
	digits := token.String()
	return b.dataPrefix(key) + strings.Repeat("0", 19-len(digits)) + digits + "-" + id.String()
}

// parseDataKey undoes dataKey for what follows the data prefix.
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

// keyPattern tells the resource of a key: "exports/{tenant}/{period}.csv" beside
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

// resource is the name of what a key belongs to.
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
