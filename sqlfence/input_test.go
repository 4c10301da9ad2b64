package sqlfence

import (
	"context"
	"database/sql"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/sqlfence/sqlrow"
)

// wantInvalid checks the error of malformed input: ErrInvalid and nothing
// else, and a message that names the field and shows the value escaped.
func wantInvalid(t *testing.T, what string, err error, field, shown string) {
	t.Helper()
	var invalid *guard.InvalidError
	switch {
	case guard.ReasonOf(err) != guard.ReasonInvalid || !errors.As(err, &invalid):
		t.Errorf("%s: got %v, want ErrInvalid", what, err)
	case !strings.Contains(err.Error(), field) || !strings.Contains(err.Error(), shown):
		t.Errorf("%s: %q does not name %q and %q", what, err, field, shown)
	case strings.ContainsFunc(err.Error(), func(r rune) bool { return r < ' ' || r > '~' }):
		t.Errorf("%s: %q is not escaped", what, err)
	}
}

func TestInvalidTables(t *testing.T) {
	id := []string{"id"}
	for what, c := range map[string]struct {
		name, key    []string
		opts         *TableOptions
		field, shown string
	}{
		"no name":               {nil, id, nil, "table name", "1 to 3 parts"},
		"four parts":            {[]string{"a", "b", "c", "d"}, id, nil, "table name", "a.b.c.d"},
		"an empty part":         {[]string{"a", ""}, id, nil, "table name", `""`},
		"64 bytes":              {[]string{strings.Repeat("x", 64)}, id, nil, "table name", "64 bytes"},
		"NUL":                   {[]string{"a\x00b"}, id, nil, "table name", `a\x00b`},
		"not UTF-8":             {[]string{"a\xffb"}, id, nil, "table name", `a\xffb`},
		"no key":                {id, nil, nil, "key", "at least one"},
		"an empty key":          {id, []string{""}, nil, "key column", `""`},
		"a key twice":           {id, []string{"a", "a"}, nil, "key column", `"a"`},
		"a long key":            {id, []string{strings.Repeat("ä", 32)}, nil, "key column", "64 bytes"},
		"the token is the key":  {id, []string{"last_fencing_token"}, nil, "key column", "last_fencing_token"},
		"the lease is the key":  {id, id, &TableOptions{LeaseColumn: "id"}, "key column", `"id"`},
		"the lease is the mark": {id, id, &TableOptions{LeaseColumn: "last_fencing_token"}, "lease column", "last_fencing_token"},
		"a bad token column":    {id, id, &TableOptions{TokenColumn: "a\x00"}, "token column", `a\x00`},
		"a bad lease column":    {id, id, &TableOptions{LeaseColumn: "\xff"}, "lease column", `\xff`},
		"a rule that is none":   {id, id, &TableOptions{Rule: 7}, "TableOptions.Rule", "invalid rule"},
	} {
		table, err := anyTable(c.name, c.key, c.opts)
		wantInvalid(t, what, err, c.field, c.shown)
		if table != nil {
			t.Errorf("%s: a table was returned", what)
		}
	}
}

func TestInvalidOptions(t *testing.T) {
	for what, o := range map[string]Options{
		"Options.LockTimeout":    {LockTimeout: time.Microsecond},
		"Options.IdleTimeout":    {IdleTimeout: 25 * time.Hour},
		"Options.RaiseTimeout":   {RaiseTimeout: -time.Second},
		"Options.CommitTimeout":  {CommitTimeout: -time.Second},
		"Options.TerminateAfter": {TerminateAfter: time.Microsecond},
	} {
		_, err := Std(&sql.DB{}, &o)
		wantInvalid(t, what, err, what, "must be 1ms to")
	}
	_, err := Pgx(nil, nil)
	wantInvalid(t, "Pgx(nil)", err, "pool", "nil")
	_, err = Std(nil, nil)
	wantInvalid(t, "Std(nil)", err, "db", "nil")
	o, err := (Options{LockTimeout: -1, IdleTimeout: -1}).resolve()
	if err != nil || o.LockTimeout != 0 || o.IdleTimeout != 0 || o.RaiseTimeout != defaultLockTimeout+defaultIdleTimeout {
		t.Errorf("negative timeouts resolve to %+v, %v", o, err)
	}
}

// invalidClaims are refused everywhere in the same way.
var invalidClaims = map[string]struct {
	claim        guard.Claim
	field, shown string
}{
	"no token":       {guard.Claim{Resource: "r"}, "token", `"0"`},
	"token -1":       {guard.Claim{Resource: "r", Token: -1}, "token", `"-1"`},
	"token MaxInt64": {guard.Claim{Resource: "r", Token: math.MaxInt64}, "token", "9223372036854775807"},
	"no resource":    {guard.Claim{Token: 1}, "resource", `""`},
	"513 bytes":      {guard.Claim{Resource: strings.Repeat("r", 513), Token: 1}, "resource", "513 bytes"},
	"a line break":   {guard.Claim{Resource: "a\nb", Token: 1}, "resource", `a\nb`},
	"NUL":            {guard.Claim{Resource: "a\x00b", Token: 1}, "resource", `a\x00b`},
	"C1 control":     {guard.Claim{Resource: "a\u0085b", Token: 1}, "resource", `a\u0085b`},
	"not UTF-8":      {guard.Claim{Resource: "a\xc3", Token: 1}, "resource", `a\xc3`},
	"long lease":     {guard.Claim{Resource: "r", Token: 1, LeaseID: strings.Repeat("l", 129)}, "lease ID", "129 bytes"},
	"tab in lease":   {guard.Claim{Resource: "r", Token: 1, LeaseID: "a\tb"}, "lease ID", `a\tb`},
}

// TestInvalidClaims: on a closed pool, where whatever is sent is
// ErrUnavailable, a malformed claim is ErrInvalid: nothing was sent.
func TestInvalidClaims(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		closed := e.closed()
		never := func(context.Context, testTx) error { t.Error("the callback ran"); return nil }
		for what, c := range invalidClaims {
			names := []string{"InTx", "Raise", "Admit", "Update"}
			if guard.ValidateResource(c.claim.Resource) != nil {
				names = append(names, "Mark") // which takes only the resource
			}
			for name, call := range e.calls(closed, c.claim, names...) {
				wantInvalid(t, name+" with "+what, call(t.Context()), c.field, c.shown)
			}
			wantInvalid(t, "InTxAll with "+what, closed.fencedAll(t.Context(), []guard.Claim{claimOf("other", 1), c.claim}, nil, never), c.field, c.shown)
		}
		// The control: a good claim does reach the closed pool.
		for name, call := range e.calls(closed, claimOf("r", 1)) {
			wantReason(t, call(t.Context()), guard.ReasonUnavailable, "%s on a closed pool", name)
		}
	})
}

// TestInvalidUpdates: malformed keys and sets are refused before anything is
// sent, which a closed pool shows.
func TestInvalidUpdates(t *testing.T) {
	var nilString *string
	good, set := Key{1, "x"}, Set{"v": "new"}
	set1 := func(column string, value any) Set { return Set{column: value} }
	cases := map[string]struct {
		key          Key
		set          Set
		field, shown string
	}{
		"one key value":    {Key{1}, set, "key", "2 columns, 1 values"},
		"three key values": {Key{1, "x", 2}, set, "key", "2 columns, 3 values"},
		"a NULL key":       {Key{1, nil}, set, `key column b`, "NULL"},
		"a nil pointer":    {Key{1, nilString}, set, `key column b`, "NULL"},
		"a nil valuer":     {Key{1, (*sql.NullString)(nil)}, set, `key column b`, "NULL"},
		"nil bytes":        {Key{1, []byte(nil)}, set, `key column b`, "NULL"},
		"a valuer's NULL":  {Key{1, sql.NullString{}}, set, `key column b`, "NULL"},
		"an empty set":     {good, Set{}, "set", "no column"},
		"no set":           {good, nil, "set", "no column"},
		"a key column":     {good, set1("a", 1), "set column", "key column"},
		"the token column": {good, set1("last_fencing_token", 1), "set column", "token column"},
		"the lease column": {good, set1("last_lease_id", ""), "set column", "lease column"},
		"an empty column":  {good, set1("", 1), "set column", `""`},
		"64 bytes":         {good, set1(strings.Repeat("c", 64), 1), "set column", "64 bytes"},
		"NUL in a column":  {good, set1("v\x00", 1), "set column", `v\x00`},
		"not UTF-8":        {good, set1("v\xfe", 1), "set column", `v\xfe`},
		"no expression":    {good, set1("n", sqlrow.Expr{}), "set column n", "empty expression"},
		"an expression":    {good, Set{"n": sqlrow.Raw("(1\n")}, "set column n", `\n`}, // the others: sqlrow's TestOneExpression
	}
	eachDriver(t, func(t *testing.T, e *env) {
		closed := e.closed()
		table := e.table("pairs", []string{"a", "b"}, &TableOptions{LeaseColumn: "last_lease_id"})
		for what, c := range cases {
			wantInvalid(t, what, table.Update(t.Context(), closed, claimOf("r", 1), c.key, c.set), c.field, c.shown)
		}
	})
}
