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
// other texts take the slower path.
func validateText(field, s string, low, high int) error {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' {
			return examineText(field, s, low, high)
		}
	}
	if len(s) < low || len(s) > high {
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
