package guard

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	// MaxResourceLen is the longest resource name, in bytes.
	MaxResourceLen = 512
	// MaxOwnerLen is the longest owner, in bytes.
	MaxOwnerLen = 128
	// MaxLeaseIDLen is the longest lease ID, in bytes.
	MaxLeaseIDLen = 128
)

// ValidateResource checks a resource name: 1 to [MaxResourceLen] bytes of
// UTF-8, no control characters. Every package checks its input with this
// function. The error is an [*InvalidError] for the field "resource".
func ValidateResource(s string) error { return validateText("resource", s, 1, MaxResourceLen) }

// ValidateOwner checks the name of a lease's owner: 1 to [MaxOwnerLen] bytes
// of UTF-8, no control characters. The error is an [*InvalidError] for the
// field "owner".
func ValidateOwner(s string) error { return validateText("owner", s, 1, MaxOwnerLen) }

// ValidateLeaseID checks a lease ID: at most [MaxLeaseIDLen] bytes of UTF-8, no
// control characters; empty is allowed and means "no lease ID". The error is
// an [*InvalidError] for the field "lease ID".
func ValidateLeaseID(s string) error { return validateText("lease ID", s, 0, MaxLeaseIDLen) }

// validateText handles printable ASCII, which nearly every text is, by itself;
// other texts take the slower path. It looks at eight bytes at a time, because
// every request pays for it; the last eight may overlap the previous eight.
func validateText(field, s string, low, high int) error {
	if len(s) < low || len(s) > high {
		return examineText(field, s, low, high)
	}
	var bad uint64
	if len(s) >= 8 {
		for i := 0; i < len(s)-8; i += 8 {
			bad |= notPrintable(s[i : i+8])
		}
		bad |= notPrintable(s[len(s)-8:])
	} else {
		for i := range len(s) {
			bad |= notPrintable1(s[i])
		}
	}
	if bad != 0 {
		return examineText(field, s, low, high)
	}
	return nil
}

// examineText is validateText for a text that may be invalid.
func examineText(field, s string, low, high int) error {
	switch {
	case len(s) < low:
		return Invalid(field, s, "must not be empty")
	case len(s) > high:
		return Invalid(field, s, "is "+itoa(len(s))+" bytes long, at most "+itoa(high)+" are allowed")
	}
	if !utf8.ValidString(s) {
		return Invalid(field, s, "must be valid UTF-8")
	}
	for _, r := range s {
		if unicode.IsControl(r) {
			return Invalid(field, s, "must not contain control characters")
		}
	}
	return nil
}

// notPrintable is 0 if the first eight bytes of s are from ' ' to '~'. In each
// byte of the word, bit 7 is set if the byte is above 0x7f, by the subtraction
// if it is below ' ', and by the addition if it is 0x7f. A borrow or a carry
// comes only out of a byte that is itself refused, so it can hide nothing.
func notPrintable(s string) uint64 {
	const ones, high = 0x0101010101010101, 0x8080808080808080
	x := uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24 |
		uint64(s[4])<<32 | uint64(s[5])<<40 | uint64(s[6])<<48 | uint64(s[7])<<56
	return (x | (x - ' '*ones) | (x + ones)) & high
}

// notPrintable1 is notPrintable for one byte.
func notPrintable1(c byte) uint64 { return uint64((c | (c - ' ') | (c + 1)) & 0x80) }

// JoinResource joins components into one resource name, "tenant_123:billing-close:2026-04",
// injectively: different components never give the same name. Inside a
// component, "%" becomes "%25" and ":" becomes "%3A". The name is empty and the
// error an [*InvalidError] if there is no component, if one is empty, or if the
// result is not a valid resource.
func JoinResource(components ...string) (string, error) {
	if len(components) == 0 {
		return "", Invalid("resource", "", "has no components")
	}
	for i, c := range components {
		if c == "" {
			return "", Invalid("resource component "+itoa(i+1), "", "must not be empty")
		}
	}
	var b strings.Builder
	for i, c := range components {
		if i > 0 {
			b.WriteByte(':')
		}
		writeEscaped(&b, c)
	}
	return checkedResource(b.String())
}

// checkedResource keeps a refused name from a caller that drops the error.
func checkedResource(name string) (string, error) {
	if err := ValidateResource(name); err != nil {
		return "", err
	}
	return name, nil
}
