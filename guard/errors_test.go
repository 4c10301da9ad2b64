package guard_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/fencepost-go/fencepost/guard"
)

func TestErrorMessages(t *testing.T) {
	claim := guard.Claim{Resource: "r\u202e\n", Token: 10, LeaseID: "a"}
	refused := func(r guard.Reason, m guard.Mark) error {
		return &guard.RejectedError{Reason: r, Claim: claim, Mark: m}
	}
	because := func(r guard.Reason) error {
		return &guard.RejectedError{Reason: r, Claim: claim, Cause: errors.New("why")}
	}
	for want, err := range map[string]error{
		`fencepost: resource not found: token 10 for "r\u202e\n": why`:                                                                  because(guard.ReasonNotFound),
		`fencepost: resource is not fenced: token 10 for "r\u202e\n": why`:                                                              because(guard.ReasonUnfenced),
		`fencepost: stale fencing token: token 10 for "r\u202e\n"`:                                                                      because(guard.ReasonStale), // a driver's, which says the same again
		`fencepost: stale fencing token: token 10 for "r\u202e\n", the mark is 11`:                                                      refused(guard.ReasonStale, guard.Mark{Token: 11, LeaseID: "b"}),
		`fencepost: stale fencing token: token 10 for "r\u202e\n", the store's floor is 11`:                                             refused(guard.ReasonStale, guard.Mark{Token: 11, Floor: true}),
		`fencepost: resource not found: token 10 for "r\u202e\n"`:                                                                       refused(guard.ReasonNotFound, guard.Mark{}),
		`fencepost: fencing token belongs to another lease: token 10 for "r\u202e\n", the mark is 10 under lease "", offered under "a"`: refused(guard.ReasonConflict, guard.Mark{Token: 10}),
		`fencepost: rejected: token 10 for "r\u202e\n"`:                                                                                 refused("", guard.Mark{}),
		`fencepost: raise: store unavailable: token 10 for "r\u202e\n": refused by peer`:                                                guard.Unavailable("raise", claim, errors.New("refused by peer")),
		`fencepost: read mark: store unavailable: for "r"`:                                                                              guard.Unavailable("read mark", guard.Claim{Resource: "r"}, nil),
		`fencepost: retire: outcome unknown: gone`:                                                                                      guard.OutcomeUnknown("retire", guard.Claim{}, errors.New("gone")),
		`fencepost: X-Fencing-Token header is missing`:                                                                                  guard.Missing("X-Fencing-Token header"),
		`fencepost: invalid owner "a\u202e\x00": must not contain control characters`:                                                   guard.ValidateOwner("a\u202e\x00"),
		`fencepost: invalid token "-1": must be 1 to 9223372036854775806`:                                                               guard.Token(-1).Validate(),
	} {
		if got := err.Error(); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}

// TestErrorsOfHugeInputsAreShort: a client must not be able to fill a log, or
// to keep a megabyte alive in a stored error.
func TestErrorsOfHugeInputsAreShort(t *testing.T) {
	huge := strings.Repeat("\x1b", 1<<20)
	_, parse := guard.ParseToken(huge)
	_, join := guard.JoinResource(huge)
	_, joinMany := guard.JoinResource("a", huge)
	_, admit := guard.NewMemory().Admit(t.Context(), guard.Claim{Resource: huge, Token: 1})
	_, lease := guard.NewMemory().Admit(t.Context(), guard.Claim{Resource: "r", Token: 1, LeaseID: huge})
	_, mark := guard.NewMemory().Mark(t.Context(), huge)
	_, token := guard.Extract("r", multi{guard.CarrierToken: {huge}, guard.CarrierResource: {"r"}, guard.CarrierLease: {""}}.Get)
	_, named := guard.Extract("r", multi{guard.CarrierToken: {"1"}, guard.CarrierResource: {huge}, guard.CarrierLease: {""}}.Get)
	for i, err := range []error{
		parse, join, joinMany, admit, lease, mark, token, named,
		guard.ValidateResource(huge), guard.ValidateOwner(huge), guard.ValidateLeaseID(huge), new(guard.Token).UnmarshalText([]byte(huge)),
	} {
		var invalid *guard.InvalidError
		if !errors.As(err, &invalid) {
			t.Fatalf("%d: %v is no InvalidError", i, err)
		}
		if len(err.Error()) > 500 || len(invalid.Value) > 64 {
			t.Errorf("%d: the message has %d bytes, the value %d", i, len(err.Error()), len(invalid.Value))
		}
		if strings.Contains(err.Error(), "\x1b") {
			t.Errorf("%d: the value is not escaped", i)
		}
		if !strings.Contains(err.Error(), `"...`) {
			t.Errorf("%d: %v does not say that the value was cut", i, err)
		}
	}
	whole := guard.Invalid("owner", strings.Repeat("a", 64), "must be shorter")
	if strings.Contains(whole.Error(), "...") {
		t.Errorf("%v says that a whole value was cut", whole)
	}
}

func TestErrorsUnwrap(t *testing.T) {
	cause := errors.New("the driver's")
	claim := guard.Claim{Resource: "r", Token: 10}

	rejected := fmt.Errorf("closing: %w", &guard.RejectedError{Reason: guard.ReasonStale, Claim: claim, Cause: cause})
	var r *guard.RejectedError
	if !errors.As(rejected, &r) || r.Claim != claim || !errors.Is(rejected, guard.ErrStale) || !errors.Is(rejected, cause) {
		t.Errorf("%v lost its facts, its reason or its cause", rejected)
	}
	if errors.Is(rejected, guard.ErrConflict) || errors.Is(rejected, guard.ErrSpent) {
		t.Errorf("%v has more than one reason", rejected)
	}

	for reason, failed := range map[guard.Reason]error{
		guard.ReasonUnavailable:    guard.Unavailable("raise", claim, context.DeadlineExceeded),
		guard.ReasonSetup:          guard.Setup("raise", claim, context.DeadlineExceeded),
		guard.ReasonOutcomeUnknown: guard.OutcomeUnknown("raise", claim, context.DeadlineExceeded),
	} {
		failed = fmt.Errorf("closing: %w", failed)
		var f *guard.FailedError
		if !errors.As(failed, &f) || f.Claim != claim || f.Reason != reason ||
			!errors.Is(failed, reason.Err()) || !errors.Is(failed, context.DeadlineExceeded) {
			t.Errorf("%v lost its facts, its reason or its cause", failed)
		}
	}
	if errors.Is(guard.Unavailable("raise", claim, nil), guard.ErrOutcomeUnknown) || errors.Is(guard.OutcomeUnknown("raise", claim, nil), guard.ErrUnavailable) {
		t.Error("unavailable and unknown are confused")
	}

	// A cause that no retry cures decides, unless a write was sent.
	closed := fmt.Errorf("no bucket: %w", guard.ErrSetup)
	if err := guard.Unavailable("raise", claim, closed); !errors.Is(err, guard.ErrSetup) || errors.Is(err, guard.ErrUnavailable) || guard.ReasonOf(err) != guard.ReasonSetup {
		t.Errorf("%v is called transient", err)
	}
	if err := guard.OutcomeUnknown("raise", claim, closed); errors.Is(err, guard.ErrSetup) {
		t.Errorf("%v promises that nothing was written", err)
	}

	missing, invalid := guard.Missing("token"), guard.Token(math.MaxInt64).Validate()
	if !errors.Is(missing, guard.ErrMissing) || !errors.Is(missing, guard.ErrInvalid) {
		t.Errorf("%v must be both missing and invalid", missing)
	}
	if errors.Is(invalid, guard.ErrMissing) {
		t.Errorf("%v must not be missing", invalid)
	}
}

// TestUnknownOutcomeHidesPromises: an unknown outcome matches no sentinel and no
// type of this package but its own, whatever its cause is. Each of them says that
// nothing was written.
func TestUnknownOutcomeHidesPromises(t *testing.T) {
	claim := guard.Claim{Resource: "r", Token: 10}
	driver := &os.PathError{Op: "read", Path: "x", Err: context.DeadlineExceeded}
	var causes []error
	for _, reason := range guard.Reasons() {
		causes = append(causes, reason.Err(), &guard.RejectedError{Reason: reason, Claim: claim}, &guard.FailedError{Reason: reason})
	}
	causes = append(causes, &guard.LostError{Claim: claim}, guard.Missing("token"), guard.Invalid("token", "x", "is bad"), &guard.MisdirectedError{})
	for _, cause := range causes {
		if cause == guard.ErrOutcomeUnknown {
			continue
		}
		err := fmt.Errorf("closing: %w", guard.OutcomeUnknown("put", claim, errors.Join(cause, driver)))
		if got := guard.ReasonOf(err); got != guard.ReasonOutcomeUnknown {
			t.Errorf("%v has the reason %q", err, got)
		}
		for _, reason := range guard.Reasons() {
			if reason != guard.ReasonOutcomeUnknown && errors.Is(err, reason.Err()) {
				t.Errorf("%v matches %q", err, reason)
			}
		}
		if errors.As(err, new(*guard.RejectedError)) || errors.As(err, new(*guard.LostError)) || errors.As(err, new(*guard.InvalidError)) || errors.As(err, new(*guard.MisdirectedError)) {
			t.Errorf("%v has a type that promises that nothing was written", err)
		}
		// What is not this package's stays visible, and so does the text.
		var path *os.PathError
		var failed *guard.FailedError
		if !errors.Is(err, context.DeadlineExceeded) || !errors.As(err, &path) || path != driver {
			t.Errorf("%v lost the driver's error", err)
		}
		if !errors.As(err, &failed) || failed.Reason != guard.ReasonOutcomeUnknown || !errors.Is(failed.Cause, cause) {
			t.Errorf("%v lost its own facts", err)
		}
		if !strings.Contains(err.Error(), cause.Error()) {
			t.Errorf("%v does not show its cause, %v", err, cause)
		}
	}
	// The control: an unavailable store hides nothing, because nothing was written.
	if err := guard.Unavailable("put", claim, guard.ErrLeaseLost); !errors.Is(err, guard.ErrLeaseLost) {
		t.Errorf("%v lost its cause", err)
	}
}
