// Package input checks what callers give, fills in defaults, and makes lease IDs,
// for every issuer.
package input

import (
	"cmp"
	"log/slog"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/fencepost-go/fencepost/guard"
)

// Between checks a duration.
func Between(field string, d, low, high time.Duration) error {
	if d < low || d > high {
		return guard.Invalid(field, d.String(), "must be "+low.String()+" to "+high.String())
	}
	return nil
}

// Fill sets a duration that is zero to its default, and checks it: a millisecond
// to high.
func Fill(field string, d *time.Duration, fallback, high time.Duration) error {
	*d = cmp.Or(*d, fallback)
	return Between(field, *d, time.Millisecond, high)
}

// MaxTimeout is the longest OpTimeout.
const MaxTimeout = time.Hour

// Timeouts is [Fill] for the two timeouts that belong together: the server must
// give up before the client does.
func Timeouts(op, lock *time.Duration) error {
	if err := Fill("Options.OpTimeout", op, 5*time.Second, MaxTimeout); err != nil {
		return err
	}
	if *lock >= *op {
		return guard.Invalid("Options.LockTimeout", lock.String(), "must be less than Options.OpTimeout, which is "+op.String())
	}
	return Fill("Options.LockTimeout", lock, max(time.Millisecond, min(2*time.Second, *op*3/4)), MaxTimeout)
}

// Plain checks a text that is not a resource by the rules for resources.
func Plain(field, s string, most int) error {
	switch {
	case len(s) > most:
		return guard.Invalid(field, s, "is "+strconv.Itoa(len(s))+" bytes long, at most "+strconv.Itoa(most)+" are allowed")
	case !utf8.ValidString(s):
		return guard.Invalid(field, s, "must be valid UTF-8")
	case strings.ContainsFunc(s, unicode.IsControl):
		return guard.Invalid(field, s, "must not contain control characters")
	}
	return nil
}

// Logger returns the logger for an event: the given one. If it is nil, warnings go
// to slog's default, since operators must know them, and the rest nowhere.
func Logger(given *slog.Logger, level slog.Level) *slog.Logger {
	if given == nil && level >= slog.LevelWarn {
		return slog.Default()
	}
	return given
}
