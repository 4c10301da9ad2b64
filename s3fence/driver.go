package s3fence

import (
	"context"
	"errors"
	"io"
	"strconv"
	"time"
)

// driver is what this package needs of a bucket. Its one implementation outside of tests
// is sdk. Whatever is above it sees these results, and no status, error code or request.
type driver interface {
	// get reads the last bytes of an object, or all of it if last is 0 or the store
	// ignores ranges. An object of more than limit bytes is a sizeError.
	get(ctx context.Context, key string, last int, limit int64) (*object, error)
	// open reads an object as a stream, which the caller closes.
	open(ctx context.Context, key string) (*object, error)
	// put writes an object on a condition.
	put(ctx context.Context, key string, over condition, w payload) result
	// remove deletes an object, whatever it is.
	remove(ctx context.Context, key string) result
	// list returns the page of a listing that follows the token of the one before.
	list(ctx context.Context, prefix, token string) (page, error)
}

// errAbsent is the error of a read that the store itself has said finds nothing. No
// other error says so: what could not be seen is not absent.
var errAbsent = errors.New("the store says that there is no such object")

// sizeError is an object that is longer than was asked for: its length.
type sizeError int64

func (n sizeError) Error() string {
	return "the object has " + strconv.FormatInt(int64(n), 10) + " bytes"
}

// condition is what a write depends on: the object still has this ETag, or there is none.
// No write is without one.
type condition string

const noObject condition = ""

// payload is what is written.
type payload struct {
	headers  Headers
	metadata map[string]string
	// body is the content. from, if not nil, is in its place, with length bytes.
	body   []byte
	from   io.ReadSeeker
	length int64
	// again lets the SDK send it more than once: nobody else writes to the key.
	again bool
	// hold, if not nil, is called before the last byte leaves.
	hold func()
}

// object is a response to a read.
type object struct {
	etag     string // strong
	size     int64  // of the whole object, as stored
	content  []byte // what get has read
	body     io.ReadCloser
	modified time.Time // when it was stored, by the store's clock
	date     time.Time // when the store responded, by the same clock; zero if it did not say
	headers  Headers
	expires  string            // the Expires header, if it is not a date
	fencing  map[string]string // the reserved metadata
	// shortRange says that the store refused a range that is longer than the object.
	shortRange bool
}

// whole reports whether content is all of the object.
func (o *object) whole() bool { return int64(len(o.content)) == o.size }

// outcome is what is known of a write or deletion: of one sending from the driver, of all
// of its sendings from the register.
type outcome uint8

const (
	// unknown: it may have taken effect, or may yet. It is the zero value.
	unknown outcome = iota
	// applied: it took effect.
	applied
	// mismatch: it took no effect, because its condition was false.
	mismatch
	// busy: it took no effect. Sent again, it may.
	busy
	// refused: it took no effect, and would take none if it were sent again.
	refused
)

// result is what became of one sending.
type result struct {
	outcome outcome
	etag    string    // strong, if applied
	date    time.Time // as of object
	err     error     // why it was not applied
}

// page is a part of a listing.
type page struct {
	entries []entry
	next    string // the token of the next page, "" for none
}

// entry is an object in a listing. err says why its key could not be read.
type entry struct {
	Entry
	err error
}
