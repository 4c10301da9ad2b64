package guard_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/testkit"
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

// pairs is the table of the documentation, written a second time.
var pairs = map[guard.Reason]error{
	guard.ReasonStale:          guard.ErrStale,
	guard.ReasonSpent:          guard.ErrSpent,
	guard.ReasonConflict:       guard.ErrConflict,
	guard.ReasonNotFound:       guard.ErrNotFound,
	guard.ReasonMarkAhead:      guard.ErrMarkAhead,
	guard.ReasonUnfenced:       guard.ErrUnfenced,
	guard.ReasonInvalid:        guard.ErrInvalid,
	guard.ReasonMissing:        guard.ErrMissing,
	guard.ReasonMisdirected:    guard.ErrMisdirected,
	guard.ReasonSetup:          guard.ErrSetup,
	guard.ReasonUnavailable:    guard.ErrUnavailable,
	guard.ReasonOutcomeUnknown: guard.ErrOutcomeUnknown,
	guard.ReasonLeaseLost:      guard.ErrLeaseLost,
}

func TestReasonsAreTotalAndSymmetric(t *testing.T) {
	all := guard.Reasons()
	if len(all) != len(pairs) {
		t.Errorf("Reasons has %d entries, the table %d", len(all), len(pairs))
	}
	for _, r := range all {
		want, ok := pairs[r]
		if !ok {
			t.Errorf("%s is not in the table", r)
		}
		if r.Err() != want {
			t.Errorf("%s.Err() = %v; want %v", r, r.Err(), want)
		}
		for _, err := range []error{r.Err(), fmt.Errorf("saving: %w", r.Err()), errors.Join(errors.New("x"), r.Err())} {
			if got := guard.ReasonOf(err); got != r {
				t.Errorf("ReasonOf(%v) = %s; want %s", err, got, r)
			}
		}
	}
	// What Reasons returns is a copy.
	all[0] = "spoilt"
	if slices.Contains(guard.Reasons(), "spoilt") {
		t.Error("a caller can change the table")
	}
}

func TestReasonsWithoutSentinel(t *testing.T) {
	for _, r := range []guard.Reason{guard.ReasonNone, guard.ReasonOther, "no reason"} {
		if err := r.Err(); err != nil {
			t.Errorf("%q.Err() = %v; want nil", r, err)
		}
	}
	if r := guard.ReasonOf(nil); r != guard.ReasonNone {
		t.Errorf("ReasonOf(nil) = %s", r)
	}
	for _, err := range []error{errors.New("stale fencing token"), context.Canceled, &guard.RejectedError{}, &guard.FailedError{}} {
		if r := guard.ReasonOf(err); r != guard.ReasonOther {
			t.Errorf("ReasonOf(%v) = %s; want %s", err, r, guard.ReasonOther)
		}
	}
}

// TestUnknownOutcomeWins: an error that wraps several sentinels is reported as
// the one that promises least, in whichever order they were wrapped.
func TestUnknownOutcomeWins(t *testing.T) {
	for r, err := range pairs {
		for _, joined := range []error{errors.Join(err, guard.ErrOutcomeUnknown), errors.Join(guard.ErrOutcomeUnknown, err)} {
			if got := guard.ReasonOf(joined); got != guard.ReasonOutcomeUnknown {
				t.Errorf("ReasonOf(unknown outcome and %s) = %s", r, got)
			}
		}
		// Unavailable promises that nothing was written: any other reason says
		// more than that.
		if got := guard.ReasonOf(errors.Join(guard.ErrUnavailable, err)); got != r {
			t.Errorf("ReasonOf(unavailable and %s) = %s", r, got)
		}
	}
	if got := guard.ReasonOf(errors.Join(guard.ErrStale, guard.ErrConflict)); got != guard.ReasonConflict {
		t.Errorf("ReasonOf(stale and conflict) = %s; the alarm must not be lost", got)
	}
	if got := guard.ReasonOf(guard.Missing("token")); got != guard.ReasonMissing {
		t.Errorf("ReasonOf(missing) = %s", got)
	}
	if got := guard.ReasonOf(guard.OutcomeUnknown("raise", guard.Claim{}, guard.ErrStale)); got != guard.ReasonOutcomeUnknown {
		t.Errorf("ReasonOf(unknown outcome because of stale) = %s", got)
	}
}

// TestReasonFor: an error counts as far as it speaks of the claim at hand. ReasonOf, which
// does not ask, is the control.
func TestReasonFor(t *testing.T) {
	own := guard.Claim{Resource: "r", Token: 5, LeaseID: "l"}
	for _, other := range []guard.Claim{own, {Resource: "other", Token: 5, LeaseID: "l"}, {Resource: "r", Token: 6, LeaseID: "l"}, {Resource: "r", Token: 5}, {}} {
		for _, reason := range guard.Reasons() {
			said := map[string]error{"rejected": &guard.RejectedError{Reason: reason, Claim: other}, "failed": &guard.FailedError{Reason: reason, Claim: other}}
			if reason == guard.ReasonLeaseLost {
				said = map[string]error{"lost": &guard.LostError{Claim: other}}
			}
			want := guard.ReasonOther
			if other == own && reason != guard.ReasonMissing && reason != guard.ReasonMisdirected {
				want = reason
			}
			for kind, err := range said {
				for _, err := range []error{err, fmt.Errorf("saving: %w", err), errors.Join(errors.New("x"), err)} {
					if got := guard.ReasonFor(own, err); got != want || guard.ReasonOf(err) != reason {
						t.Errorf("%s as %s of %+v is %s, want %s; control %s", reason, kind, other, got, want, guard.ReasonOf(err))
					}
				}
				elsewhere := fmt.Errorf("saving: %w", &guard.ElsewhereError{Err: err})
				if got := guard.ReasonFor(own, elsewhere); got != guard.ReasonOther || guard.ReasonOf(elsewhere) != reason {
					t.Errorf("%s, said elsewhere, is %s; control %s", reason, got, guard.ReasonOf(elsewhere))
				}
			}
		}
	}
	for err, want := range map[error]guard.Reason{
		nil: guard.ReasonNone, guard.ErrStale: guard.ReasonStale, guard.ErrNotFound: guard.ReasonNotFound, guard.Missing("tenant"): guard.ReasonOther,
		guard.Unavailable("read mark", guard.Claim{Resource: "r"}, nil):                                             guard.ReasonUnavailable,
		guard.OutcomeUnknown("commit", own, &guard.ElsewhereError{Err: guard.ErrStale}):                             guard.ReasonOutcomeUnknown,
		guard.Unavailable("admit", own, &guard.LostError{Claim: own, Cause: errors.New("the deadline has passed")}): guard.ReasonLeaseLost,
	} {
		if got := guard.ReasonFor(own, err); got != want {
			t.Errorf("%v is %q, want %q", err, got, want)
		}
	}
	// A lease that was over before anything was sent has one text.
	lost := &guard.LostError{Claim: own}
	if err := guard.Unavailable("admit", own, fmt.Errorf("context: %w", lost)); err != error(lost) {
		t.Errorf("%v", err)
	}
}

// TestOutcomesAreTotal: every reason has one outcome, and only success is admitted.
func TestOutcomesAreTotal(t *testing.T) {
	counts := map[guard.Outcome]int{}
	for _, reason := range append(guard.Reasons(), guard.ReasonOther, guard.ReasonNone, "novel") {
		counts[reason.Outcome()]++
	}
	if counts[guard.Admitted] != 1 || counts[guard.LostLease] != 1 || counts[guard.Rejected] != 9 || counts[guard.Failed] != 5 {
		t.Errorf("%v", counts)
	}
}

// TestCurrentClaim: a context's claim may change, and be none.
func TestCurrentClaim(t *testing.T) {
	claim, ok := guard.Claim{}, false
	ctx := guard.WithCurrentClaim(guard.WithClaim(t.Context(), guard.Claim{Resource: "outer", Token: 1}), func() (guard.Claim, bool) { return claim, ok })
	if got, found := guard.ClaimFrom(ctx); found || got != (guard.Claim{}) {
		t.Errorf("before the first: %+v, %v", got, found)
	}
	claim, ok = guard.Claim{Resource: "r", Token: 5}, true
	if got, found := guard.ClaimFrom(ctx); !found || got != claim {
		t.Errorf("%+v, %v", got, found)
	}
}

func TestValidators(t *testing.T) {
	validators := []struct {
		field    string
		validate func(string) error
		low      int
		high     int
	}{
		{"resource", guard.ValidateResource, 1, 512},
		{"owner", guard.ValidateOwner, 1, 128},
		{"lease ID", guard.ValidateLeaseID, 0, 128},
	}
	for _, v := range validators {
		check := func(s string, want bool) {
			t.Helper()
			err := v.validate(s)
			var invalid *guard.InvalidError
			switch {
			case want && err != nil:
				t.Errorf("%s %.40q (%d bytes): %v", v.field, s, len(s), err)
			case !want && !(errors.Is(err, guard.ErrInvalid) && errors.As(err, &invalid) && invalid.Field == v.field):
				t.Errorf("%s %.40q (%d bytes) = %v; want an InvalidError for the field", v.field, s, len(s), err)
			case !want && errors.Is(err, guard.ErrMissing):
				t.Errorf("%s %.40q: %v is ErrMissing; an empty value is not a missing one", v.field, s, err)
			}
		}
		check("", v.low == 0)
		for _, n := range []int{1, v.high - 1, v.high} {
			check(strings.Repeat("a", n), true)
		}
		check(strings.Repeat("a", v.high+1), false)
		check(strings.Repeat("a", 1<<20), false)
		check(strings.Repeat("é", v.high/2), true)
		check(strings.Repeat("é", v.high/2)+"é", false) // the limit is in bytes

		for _, s := range []string{
			" ", "a b", "~", "!", `"'\`, "%_*?", "a:b/c", "日本語", "😀", "é", "e\u0301", "\u200b", "\u202e", "\u2028", "\ufeff", "\ufffd",
		} {
			check(s, true)
		}
		for c := rune(0); c < 0xa0; c++ {
			if c < ' ' || c >= 0x7f { // C0, DEL and C1
				check("a"+string(c)+"b", false)
				check(string(c), false)
			} else {
				check(string(c), true)
			}
		}
		for _, s := range []string{"\xff", "a\xc3", "\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "é\x80"} {
			check(s, false)
		}
	}
}

func TestClaimValidateNamesTheField(t *testing.T) {
	good := guard.Claim{Resource: "r", Token: 1, LeaseID: "a"}
	testkit.Must(t, good.Validate())
	for field, spoil := range map[string]func(*guard.Claim){
		"resource": func(c *guard.Claim) { c.Resource = "" },
		"token":    func(c *guard.Claim) { c.Token = 0 },
		"lease ID": func(c *guard.Claim) { c.LeaseID = "\x00" },
	} {
		c := good
		spoil(&c)
		var invalid *guard.InvalidError
		if err := c.Validate(); !errors.As(err, &invalid) || invalid.Field != field {
			t.Errorf("%+v: %v; want the field %s", c, err, field)
		}
	}
}
