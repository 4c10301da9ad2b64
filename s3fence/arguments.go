package s3fence

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/fencepost-go/fencepost/guard"
)

// What callers give is checked here, before anything is sent: begin and keyed for every
// call, storable for what is stored.

// begin checks the arguments that every write has, and starts a change. A claim for
// another resource than the key's is observed like any refusal.
func (o *fenced) begin(ctx context.Context, op guard.Op, verb string, claim guard.Claim, key string) (*change, error) {
	if err := claim.Validate(); err != nil {
		return nil, err
	}
	c, err := o.keyed(verb, key)
	if err != nil {
		return nil, err
	}
	guarded := c.claim.Resource
	c.op, c.claim, c.id, c.start = op, claim, newWriteID(), time.Now()
	if o.pattern != nil {
		if err := claim.CheckResource(guarded); err != nil {
			o.observe(ctx, c, guard.Mark{}, err)
			return nil, err
		}
	}
	return c, nil
}

// keyed checks the key of any call, and names the call in errors, with the key's
// resource if that is known.
func (o *fenced) keyed(verb, key string) (c *change, err error) {
	if err := validateKey("key", key, maxKey); err != nil {
		return nil, err
	}
	c = &change{verb: verb, key: key}
	if o.pattern != nil {
		c.claim.Resource, err = o.pattern.resource(key)
	}
	return c, err
}

// storable checks what a caller wants to store: headers, and how long the body is.
func (o *fenced) storable(given *Headers, length int64) (Headers, error) {
	h, err := given.validate()
	if err == nil {
		err = o.fitting(h)
	}
	if err == nil && length > o.b.opts.MaxBody && o.kind != kindPointer {
		err = tooLong(length, o.b.opts.MaxBody)
	}
	return h, err
}

// fitting refuses headers that a gzip file cannot be served with.
func (o *fenced) fitting(h Headers) error {
	if o.kind != kindGzip || h.ContentEncoding == "" || h.ContentEncoding == "gzip" {
		return nil
	}
	return guard.Invalid("Headers.ContentEncoding", h.ContentEncoding, `must be "gzip" or empty in this mode`)
}

func tooLong(size, limit int64) error {
	return guard.Invalid("body", strconv.FormatInt(size, 10)+" bytes",
		"is longer than Options.MaxBody, "+strconv.FormatInt(limit, 10)+"; use Pointers for long bodies")
}

const (
	// maxKey is the longest key that S3 takes, in bytes.
	maxKey = 1024
	// internalSegment is the name of the folder that this package keeps next to
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

// dataPrefix is the prefix of a pointer's data.
func (b *Bucket) dataPrefix(key string) string {
	sum := keySum(key)
	return b.opts.Prefix + "data/" + hex.EncodeToString(sum[:]) + "/"
}

// dataKey names the data of one write. The token is padded, so that listings are
// in token order.
func (b *Bucket) dataKey(key string, token guard.Token, id writeID) string {
	return fmt.Sprintf("%s%019d-%s", b.dataPrefix(key), token, id)
}

// parseDataKey is the inverse of dataKey for what follows the data prefix.
func parseDataKey(name string) (token guard.Token, id writeID, ok bool) {
	digits, hexID, _ := strings.Cut(name, "-")
	token, err := guard.ParseToken(strings.TrimLeft(digits, "0"))
	id, ok = parseWriteID(hexID)
	return token, id, ok && err == nil && len(digits) == 19
}

func keySum(key string) [sha256.Size]byte { return sha256.Sum256([]byte(key)) }

// keyPattern maps a key to its resource: "exports/{tenant}/{period}.csv" with
// the template "{tenant}:billing-close:{period}".
type keyPattern struct {
	text     string
	keys     *regexp.Regexp // with a group for each variable
	bound    []string       // the variables, in the order of the groups
	template *guard.Template
}

var variable = regexp.MustCompile(`\{([^{}]+)\}`)

func newKeyPattern(text string, template *guard.Template) (*keyPattern, error) {
	const field = "ObjectsOptions.KeyPattern"
	for part := range strings.SplitSeq(text, "/") {
		if strings.ContainsAny(variable.ReplaceAllLiteralString(part, ""), "{}") || strings.Count(part, "{") > 1 {
			return nil, guard.Invalid(field, text, "may have one variable in a segment, not as in "+strconv.Quote(part))
		}
	}
	if err := validateKey(field, variable.ReplaceAllLiteralString(text, "x"), maxKey); err != nil {
		return nil, err
	}
	literals := variable.Split(text, -1)
	for i := range literals {
		literals[i] = regexp.QuoteMeta(literals[i])
	}
	p := &keyPattern{text: text, keys: regexp.MustCompile("^" + strings.Join(literals, "([^/]+)") + "$"), template: template}
	for _, m := range variable.FindAllStringSubmatch(text, -1) {
		p.bound = append(p.bound, m[1])
	}
	return p, template.CheckVariables(p.bound...)
}

// resource returns the name of the resource that a key belongs to.
func (p *keyPattern) resource(key string) (string, error) {
	m := p.keys.FindStringSubmatch(key)
	if m == nil {
		return "", guard.Invalid("key", key, "is not of the pattern "+strconv.QuoteToASCII(p.text))
	}
	var values []string
	for _, name := range p.template.Variables() {
		values = append(values, m[1+slices.Index(p.bound, name)])
	}
	return p.template.Name(values...)
}

// Headers are what an object carries besides its body. The zero value of a
// field sends none.
type Headers struct {
	ContentType        string
	CacheControl       string
	ContentDisposition string
	ContentEncoding    string
	ContentLanguage    string
	Expires            time.Time // whole seconds
	// StorageClass must be one whose objects can be read at once: not GLACIER or
	// DEEP_ARCHIVE.
	StorageClass types.StorageClass
	// Metadata is the user's. Names are tokens as in HTTP, are stored in lower
	// case and must not begin with "fencing-"; values are printable ASCII
	// without spaces at either end. Names and values together with the
	// reserved ones must not exceed 2 KiB.
	Metadata map[string]string
}

// archived are the storage classes whose objects cannot be read.
var archived = []types.StorageClass{types.StorageClassGlacier, types.StorageClassDeepArchive}

// validate refuses headers that would be refused, or silently changed, on the
// way, and returns a copy with names in lower case. A nil h is the zero value.
func (given *Headers) validate() (Headers, error) {
	h := Headers{}
	if given != nil {
		h = *given
	}
	for _, f := range []struct{ field, value string }{
		{"Headers.ContentType", h.ContentType}, {"Headers.CacheControl", h.CacheControl},
		{"Headers.ContentDisposition", h.ContentDisposition}, {"Headers.ContentEncoding", h.ContentEncoding},
		{"Headers.ContentLanguage", h.ContentLanguage}, {"Headers.StorageClass", string(h.StorageClass)},
	} {
		if !printable(f.value) {
			return h, guard.Invalid(f.field, f.value, "must be printable ASCII without spaces at either end")
		}
	}
	if slices.Contains(archived, h.StorageClass) {
		return h, guard.Invalid("Headers.StorageClass", string(h.StorageClass), "must not be an archive: nobody could read the mark until it is restored")
	}
	total := 0
	lower := make(map[string]string, len(h.Metadata))
	for _, name := range slices.Sorted(maps.Keys(h.Metadata)) {
		value, key := h.Metadata[name], strings.ToLower(name)
		switch {
		case name == "" || strings.ContainsFunc(name, notToken):
			return h, guard.Invalid("Headers.Metadata name", name, "must be a token as in HTTP")
		case strings.HasPrefix(key, metaPrefix):
			return h, guard.Invalid("Headers.Metadata name", name, `must not begin with "`+metaPrefix+`", which is reserved`)
		case !printable(value):
			return h, guard.Invalid("Headers.Metadata["+name+"]", value, "must be printable ASCII without spaces at either end")
		}
		if _, ok := lower[key]; ok {
			return h, guard.Invalid("Headers.Metadata name", name, "is given twice, in upper and lower case")
		}
		lower[key] = value
		total += len(key) + len(value)
	}
	if room := maxMetadata - maxReserved; total > room {
		return h, guard.Invalid("Headers.Metadata", strconv.Itoa(total)+" bytes", "must not exceed "+strconv.Itoa(room)+" bytes")
	}
	h.Metadata = lower
	return h, nil
}

func printable(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return strings.Trim(s, " ") == s
}

func notToken(r rune) bool {
	return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("!#$%&'*+-.^_`|~", r))
}
