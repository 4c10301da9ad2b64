package main

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"testing"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin"
)

// coded is an error of a PostgreSQL driver.
type coded string

func (c coded) Error() string    { return "SQLSTATE " + string(c) }
func (c coded) SQLState() string { return string(c) }

// TestExit: every reason has its exit code, the one that promises least comes first,
// and each code that is used is in the table that operators read.
func TestExit(t *testing.T) {
	t.Parallel()
	for _, reason := range append(guard.Reasons(), guard.ReasonOther) {
		if _, there := byReason[reason]; !there {
			t.Errorf("%s has no exit code", reason)
		}
		code, printed := exitOf(&guard.RejectedError{Reason: reason})
		if reason == guard.ReasonOther {
			code, printed = exitOf(errors.New("simulated"))
		}
		var on []int
		for _, e := range exitCodes {
			if slices.Contains(e.Reasons, printed) {
				on = append(on, e.Code)
			}
		}
		if !slices.Equal(on, []int{code}) {
			t.Errorf("%s exits with %d as %s, which the table has at %v", reason, code, printed, on)
		}
	}
	claim := guard.Claim{}
	cause := errors.New("simulated")
	for _, test := range []struct {
		err    error
		code   int
		reason string
	}{
		{cause, exitOther, "other"},
		{context.DeadlineExceeded, exitUnavailable, "unavailable"},
		{guard.Unavailable("op", claim, cause), exitUnavailable, "unavailable"},
		{guard.Unavailable("op", claim, coded("28P01")), exitNoRights, "no_rights"},
		{guard.Setup("op", claim, cause), exitSetup, "setup"},
		{guard.Setup("op", claim, coded("42501")), exitNoRights, "no_rights"},
		{coded("42501"), exitNoRights, "no_rights"},
		{guard.OutcomeUnknown("op", claim, coded("42501")), exitUnknown, "outcome_unknown"},
		{errors.Join(driver.ErrHeld, guard.OutcomeUnknown("op", claim, cause)), exitUnknown, "outcome_unknown"},
		{guard.Invalid("field", "value", "is wrong"), exitUsage, "invalid"},
		{&guard.RejectedError{Reason: guard.ReasonMissing}, exitUsage, "invalid"},
		{&guard.RejectedError{Reason: guard.ReasonNotFound}, exitNotFound, "not_found"},
		{&guard.RejectedError{Reason: guard.ReasonStale}, exitRefused, "stale"},
		{&driver.HeldError{}, exitRefused, "held"},
		{&lockadmin.LeaseChangedError{}, exitRefused, "lease_changed"},
		{&lockadmin.UnsupportedError{Op: "purge"}, exitUsage, "unsupported"},
		{guard.Setup("op", claim, fs.ErrPermission), exitNoRights, "no_rights"},
		{&commandError{exitPartial, "partial", guard.Unavailable("op", claim, cause)}, exitPartial, "partial"},
		{usage("no %s", "command"), exitUsage, "usage"},
	} {
		code, reason := exitOf(test.err)
		if code != test.code || reason != test.reason {
			t.Errorf("%v: %d, %s; want %d, %s", test.err, code, reason, test.code, test.reason)
		}
		listed := func(e exitCode) bool {
			return e.Code == code && slices.Contains(e.Reasons, reason)
		}
		if !slices.ContainsFunc(exitCodes, listed) {
			t.Errorf("%d, %s is not in the table", code, reason)
		}
	}
}
