package guard

import (
	"context"
	"fmt"
	"strconv"
	"strings"
)

// Place is where a resource has a mark: a database, a row, an object, another
// service. Raise raises that mark to a claim, as DB.Raise of package sqlfence does.
type Place struct {
	// Name is what errors call the place; it must not be empty.
	Name string
	// Raise must be safe to repeat: a raise to the claim that is the mark changes
	// nothing.
	Raise func(ctx context.Context, claim Claim) error
}

// RaiseAll raises the mark of every place to a claim, in the order given, as a new
// holder does before it reads. Only after a nil error has the claim taken over
// everywhere.
//
// After a failure it goes on with the later places, so that the error says all that is wrong. After
// a refusal ([ErrStale], [ErrConflict], [ErrMarkAhead]) or a lost lease ([ErrLeaseLost]) the work is
// over, and the later places are not tried. To try again, call it again.
//
// Errors:
//   - [*RaiseAllError]: it names each place, and matches the sentinel of every failure.
//   - [ErrInvalid]: there is no place, or one without a name or a function.
func RaiseAll(ctx context.Context, claim Claim, places ...Place) error {
	if err := claim.Validate(); err != nil {
		return err
	}
	if len(places) == 0 {
		return Invalid("places", "", "must have at least one")
	}
	for i, p := range places {
		switch field := "places[" + strconv.Itoa(i) + "]"; {
		case p.Name == "":
			return Invalid(field+".Name", "", "must not be empty")
		case p.Raise == nil:
			return Invalid(field+".Raise", "nil", "must not be nil")
		}
	}
	e := &RaiseAllError{Claim: claim}
	for i, p := range places {
		err := p.Raise(ctx, claim)
		if err == nil {
			e.Raised = append(e.Raised, p.Name)
			continue
		}
		e.Failed = append(e.Failed, PlaceError{p.Name, err})
		switch ReasonOf(err) {
		case ReasonStale, ReasonConflict, ReasonMarkAhead, ReasonLeaseLost:
			for _, later := range places[i+1:] {
				e.NotTried = append(e.NotTried, later.Name)
			}
			return e
		}
	}
	if len(e.Failed) > 0 {
		return e
	}
	return nil
}

// PlaceError is why the mark of one place was not raised, or may not have been.
type PlaceError struct {
	Name string
	Err  error
}

// RaiseAllError says in which places a claim has taken over. It unwraps to the error
// of each place that failed.
type RaiseAllError struct {
	Claim Claim
	// Raised has the names of the places whose mark is the claim.
	Raised []string
	// Failed has the others that were tried. It is not empty.
	Failed []PlaceError
	// NotTried has those that come after a refusal.
	NotTried []string
}

// Error names each place and what became of it.
func (e *RaiseAllError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "fencepost: raise token %v for %q everywhere", e.Claim.Token, e.Claim.Resource)
	for _, f := range e.Failed {
		fmt.Fprintf(&b, "; %q failed: %v", f.Name, f.Err)
	}
	for _, names := range []struct {
		what string
		of   []string
	}{{"raised", e.Raised}, {"not tried", e.NotTried}} {
		for i, name := range names.of {
			if i == 0 {
				b.WriteString("; " + names.what + ": ")
			} else {
				b.WriteString(", ")
			}
			b.WriteString(strconv.Quote(name))
		}
	}
	return b.String()
}

// Unwrap returns the errors of the places that failed.
func (e *RaiseAllError) Unwrap() []error {
	errs := make([]error, len(e.Failed))
	for i, f := range e.Failed {
		errs[i] = f.Err
	}
	return errs
}
