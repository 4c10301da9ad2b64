package sqlfence

import (
	"context"
	"errors"
	"math"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

// TestRetireIsBounded (P5): a retirement does not raise the floor above the last
// token of the issuer, nor, if that is not known, to where no token is above it;
// it changes nothing, and names the mark if the driver can. The control is one of
// the same marks within the bound, after which every resource without a mark
// refuses what the issuer issues.
func TestRetireIsBounded(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		admin, ok := e.db.(interface {
			ResetFloor(ctx context.Context, from, to, issuersLast guard.Token, actor, reason string) error
		})
		if !ok {
			t.Fatal("no ResetFloor")
		}
		retire := func(last guard.Token) (guard.Retired, error) {
			switch db := e.db.(type) {
			case pgxFence:
				return db.RetireUpTo(t.Context(), time.Now().Add(time.Hour), last)
			case stdFence:
				return db.RetireUpTo(t.Context(), time.Now().Add(time.Hour), last)
			}
			return guard.Retired{}, errors.New("another driver")
		}
		const most = guard.Token(math.MaxInt64 - 1)
		e.exec("INSERT INTO fencepost.marks (resource, token) VALUES ('a', 7), ('b', $1)", int64(most))
		for what, call := range map[string]func() (guard.Retired, error){
			"the highest token": func() (guard.Retired, error) { return e.db.Retire(t.Context(), time.Now().Add(time.Hour)) },
			"above the issuer":  func() (guard.Retired, error) { return retire(8) },
		} {
			_, err := call()
			var rejected *guard.RejectedError
			if !errors.Is(err, guard.ErrMarkAhead) || !errors.As(err, &rejected) || rejected.Claim.Resource != "b" && e.driver == "pgx" {
				t.Errorf("%s: %v", what, err)
			}
		}
		e.wantInt(2, "marks are left", "SELECT count(*) FROM fencepost.marks WHERE resource <> ''")
		if got, err := retire(most); err != nil || got.Count != 2 || got.Floor != most {
			t.Errorf("the control: %+v, %v", got, err)
		}
		wantReason(t, e.db.Raise(t.Context(), claimOf("c", 8)), guard.ReasonStale, "under the highest floor")
		// The repair compares, and is recorded.
		reset := func(from, to, last guard.Token) error {
			return admin.ResetFloor(t.Context(), from, to, last, "ops", "a made-up token")
		}
		for want, err := range map[guard.Reason]error{
			guard.ReasonStale:   reset(most-1, 7, 8),
			guard.ReasonInvalid: reset(most, 9, 8),
		} {
			if guard.ReasonOf(err) != want {
				t.Errorf("got %v, want %s", err, want)
			}
		}
		must(t, reset(most, 7, 8))
		wantReason(t, reset(most, 7, 8), guard.ReasonConflict, "twice")
		wantReason(t, e.db.Raise(t.Context(), claimOf("c", 7)), guard.ReasonStale, "at the new floor")
		noError(t, e.db.Raise(t.Context(), claimOf("c", 8)), "above the new floor")
		n := 0
		for r, err := range e.db.Resets(t.Context(), 0) {
			if n++; err != nil || r.Resource != "" || r.FromToken != most || r.ToToken != 7 || r.Actor != "ops" {
				t.Errorf("recorded: %+v, %v", r, err)
			}
		}
		if n != 1 {
			t.Errorf("%d resets were recorded, want 1", n)
		}
		e.exec("DELETE FROM fencepost.marks WHERE resource = ''")
		wantReason(t, reset(7, 8, 8), guard.ReasonNotFound, "without a floor")
	})
}
