package s3fence

import (
	"context"
	"crypto/md5"
	"encoding/hex"
	"strings"

	"github.com/fencepost-go/fencepost/guard"
)

// What only Plain needs: it has no seal that makes its bytes new, so it relies on ETags
// that differ although bodies do not, or on bodies that never repeat.

// mayRepeat refuses operations that rewrite the body of an object.
func (o *fenced) mayRepeat(what string) error {
	if o.repeatable {
		return nil
	}
	return guard.Invalid("mode", kindNames[o.kind], "has no safe way for "+what+" here: the body stays the same, and so would the ETag")
}

// watchETags makes a Plain change examine ETags, of the version that it replaces and of
// the one that it makes. The probe has found them opaque. If one is the hash of its body
// after all, the next write of that body would have it again, and a condition on it would
// not tell the two apart. From then on nothing is written in Plain through this bucket.
// Nobody uses what was written as the base of a write, because its metadata has the hash.
func (o *fenced) watchETags(c *change) {
	next := c.next
	c.next = func(ctx context.Context, base *version) (*update, error) {
		w, err := next(ctx, base)
		if err != nil || w == nil {
			return nil, err
		}
		problem := o.b.plainStop.Load()
		if problem == nil && base.kind == kindPlain && isMD5(base.etag, base.md5) {
			problem = o.b.unsuitable("Plain needs opaque ETags", "the ETag "+base.etag+" of an object is the MD5 of its body")
		}
		if problem != nil {
			return nil, guard.Setup(c.name(), c.claim, problem)
		}
		return w, nil
	}
	c.applied = func(base, now *version) {
		problem := ""
		switch {
		case now.kind != kindPlain || now.id != c.id: // a tombstone; or what a read showed after others had written
			return
		case isMD5(now.etag, now.md5):
			problem = "the ETag " + now.etag + " of a write is the MD5 of its body"
		case now.etag == base.etag:
			problem = "a write did not change the ETag " + now.etag
		default:
			return
		}
		o.b.plainStop.CompareAndSwap(nil, o.b.unsuitable("Plain needs opaque ETags", problem))
	}
}

// isMD5 reports whether the ETag is the MD5 of the body.
func isMD5(etag string, sum [md5.Size]byte) bool {
	return strings.ToLower(strings.Trim(etag, `"`)) == hex.EncodeToString(sum[:])
}
