package sqlfence

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgerr"
	"github.com/fencepost-go/fencepost/sqlfence/internal/sqlkit"
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
		"Options.TerminateAfter": {TerminateAfter: -time.Second},
	} {
		_, err := Std(&sql.DB{}, &o)
		wantInvalid(t, what, err, what, "must be 1ms to")
	}
	_, err := Pgx(nil, nil)
	wantInvalid(t, "Pgx(nil)", err, "pool", "nil")
	_, err = Std(nil, nil)
	wantInvalid(t, "Std(nil)", err, "db", "nil")
	if o, err := (Options{}).withDefaults(); err != nil || o.LockTimeout != 5*time.Second || o.IdleTimeout != 15*time.Second {
		t.Errorf("the defaults are %+v, %v", o, err)
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
		for what, c := range invalidClaims {
			names := []string{"InTx", "Raise", "Admit", "Update"}
			if guard.ValidateResource(c.claim.Resource) != nil {
				names = append(names, "Mark") // which takes only the resource
			}
			for name, call := range e.calls(closed, c.claim, names...) {
				wantInvalid(t, name+" with "+what, call(t.Context()), c.field, c.shown)
			}
			wantInvalid(t, "InTxAll with "+what, closed.fencedAll(t.Context(), []guard.Claim{claimOf("other", 1), c.claim}, nil, never(t)), c.field, c.shown)
		}
		// The control: a good claim does reach the closed pool, which no other try opens.
		for name, call := range e.calls(closed, claimOf("r", 1)) {
			wantReason(t, call(t.Context()), guard.ReasonSetup, "%s on a closed pool", name)
		}
	})
}

// TestInvalidRows: malformed keys, sets and dests of the statements on rows are refused
// before anything is sent, which a closed pool shows; that good ones do reach it is the
// control of TestInvalidClaims.
func TestInvalidRows(t *testing.T) {
	var nilString *string
	var nilInt, n *int
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
	dests := map[string]struct {
		dest         Dest
		field, shown string
	}{
		"dest is no pointer":    {Dest{"v": 1}, "dest column v", "int"},
		"dest is nil":           {Dest{"v": nil}, "dest column v", "<nil>"},
		"dest is a nil pointer": {Dest{"v": nilInt}, "dest column v", "*int"},
		"dest of an empty name": {Dest{"": &n}, "dest column", `""`},
		"dest of 64 bytes":      {Dest{strings.Repeat("d", 64): &n}, "dest column", "64 bytes"},
		"dest with NUL":         {Dest{"a\x00": &n}, "dest column", `a\x00`},
	}
	eachDriver(t, func(t *testing.T, e *env) {
		closed := e.closed()
		table := e.table("pairs", []string{"a", "b"}, &TableOptions{LeaseColumn: "last_lease_id", Rule: guard.SameOrNewer})
		for what, c := range cases {
			wantInvalid(t, "update, "+what, table.Update(t.Context(), closed, claimOf("r", 1), c.key, c.set), c.field, c.shown)
			if len(c.set) > 0 { // an upsert may set nothing
				wantInvalid(t, "upsert, "+what, table.Upsert(t.Context(), closed, claimOf("r", 1), c.key, c.set), c.field, c.shown)
			}
		}
		for what, c := range dests {
			wantInvalid(t, what, table.Raise(t.Context(), closed, claimOf("r", 1), good, c.dest), c.field, c.shown)
		}
		once := e.table("pairs", []string{"a", "b"}, nil)
		wantInvalid(t, "raise, once per token", once.Raise(t.Context(), closed, claimOf("r", 1), good, nil), "TableOptions.Rule", "once-per-token")
	})
}

// TestRowsClosedAfterUnreadable: a row that the reader refuses ends the reading,
// and the connection accepts the next statement although rows were left.
func TestRowsClosedAfterUnreadable(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		refused, read := errors.New("refused"), 0
		noError(t, e.db.plain(t.Context(), func(ctx context.Context, tx testTx) error {
			err := tx.in().Query(ctx, "SELECT generate_series(1, 3)", nil, func(func(dest ...any) error) error { read++; return refused })
			if misread := (sqlkit.Unreadable{}); !errors.As(err, &misread) || !errors.Is(err, refused) || read != 1 {
				t.Errorf("got %v after %d rows, want the reader's error after one", err, read)
			}
			_, err = tx.exec(ctx, "SELECT 1")
			return err
		}), "the transaction is of no use any more")
	})
}

// TestSessionLost: each way in which a driver says that a session has ended.
func TestSessionLost(t *testing.T) {
	for _, err := range []error{
		state("57P01"), state("25P03"), pgconn.ErrConnClosed, driver.ErrBadConn, sql.ErrConnDone, io.ErrUnexpectedEOF, io.EOF,
		&net.OpError{Op: "read", Err: errInjected},
	} {
		if !sessionLost(fmt.Errorf("wrapped: %w", err)) {
			t.Errorf("%v is not of a lost session", err)
		}
	}
	for _, err := range []error{nil, errInjected, state("57014"), state("40001"), context.Canceled} {
		if sessionLost(err) {
			t.Errorf("%v is of a lost session", err)
		}
	}
}

// TestTimeoutsOfATransaction: a transaction that is fenced, in whatever way, has the
// timeouts of the options, to the millisecond. A guarded write leaves them alone at each
// level.
func TestTimeoutsOfATransaction(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		e.exec("CREATE TABLE kept (tenant text NOT NULL)")
		e.guardBy("kept", "{tenant}")
		must(t, e.db.Raise(t.Context(), claimOf("r", 5)))
		timeout, want := 7001*time.Millisecond, "7001ms 7001ms"
		db := e.open(&Options{LockTimeout: timeout, IdleTimeout: timeout}, func(c *pgx.ConnConfig) {
			c.RuntimeParams["lock_timeout"], c.RuntimeParams["idle_in_transaction_session_timeout"] = "20s", "30s"
		})
		check := func(what string, in work, want string) {
			noError(t, in(t.Context(), claimOf("r", 5), func(ctx context.Context, tx testTx) error {
				n, err := tx.int(ctx, "SELECT count(*) FROM (VALUES (concat(current_setting('lock_timeout'), ' ', current_setting('idle_in_transaction_session_timeout')))) s(timeouts) WHERE timeouts = $1", want)
				if n != 1 {
					t.Errorf("%s: the timeouts are not %s", what, want)
				}
				return err
			}), what)
		}
		for what, in := range map[string]work{"InTx": db.fenced, "snapshot": atLevel(db, RepeatableRead), "Enter": entering(db)} {
			check(what, in, want)
		}
		for _, level := range levels {
			check("a guarded write, "+level, func(ctx context.Context, claim guard.Claim, fn step) error {
				return db.plain(ctx, inTurn(running("SET TRANSACTION ISOLATION LEVEL "+level), presents(claim), running("INSERT INTO kept VALUES ('r')"), fn))
			}, "20s 30s")
		}
	})
}

// TestHolderTimes: the first sight of a transaction is kept from one raise to the
// next, and so is since when it has been idle, which ends when it works; the number
// of those that are kept is bounded.
func TestHolderTimes(t *testing.T) {
	var times holderTimes
	times.see("0", -1)
	times.known["0"] = holderTime{first: time.Now().Add(-time.Hour), idle: time.Now().Add(-time.Minute)}
	if working, idle := times.see("0", 0); working < time.Hour || idle < time.Minute || idle > time.Hour {
		t.Errorf("working for %v, idle for %v", working, idle)
	}
	if _, idle := times.see("0", 30*time.Minute); idle < 30*time.Minute {
		t.Errorf("idle for %v, which is less than the server says", idle)
	}
	// It works between two looks, and is idle at each.
	if _, idle := times.see("0", 20*time.Millisecond); idle > time.Minute {
		t.Errorf("idle for %v, which is more than the server says", idle)
	}
	if working, idle := times.see("0", -1); working < time.Hour || idle != 0 {
		t.Errorf("working again: for %v, idle for %v", working, idle)
	}
	for i := range maxHolders {
		times.see(fmt.Sprint(i), -1)
	}
	if working, _ := times.see("0", -1); working < time.Hour || len(times.known) != maxHolders {
		t.Errorf("working for %v, of %d", working, len(times.known))
	}
	times.see("one more", -1)
	if working, _ := times.see("0", -1); working > time.Minute || len(times.known) != 2 {
		t.Errorf("%d are kept beyond the bound", len(times.known))
	}
}

// TestJSONTextPanics: a value that cannot be encoded is a mistake in this package,
// not an empty text.
func TestJSONTextPanics(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("a channel was encoded")
		}
	}()
	t.Errorf("encoded as %q", sqlkit.JSON(make(chan int)))
}

// TestSessionText: what the log and the error of a raise say of a session.
func TestSessionText(t *testing.T) {
	for _, c := range []struct {
		session
		want string
	}{
		{session{pid: 7, application: "a b", state: "idle", open: 1500, login: "l", mayEnd: true, kind: "entered"}, `pid 7, login "l", application "a b", idle, its transaction open for 1.5s`},
		{session{pid: 7, state: "active", open: 0, mayEnd: true, kind: "entered"}, `pid 7, login "", application "", active, its transaction open for 0s`},
		{session{pid: 7, state: "not visible", open: -1, kind: "entered"}, `pid 7, login "", application "", not visible: grant this login pg_read_all_stats and pg_signal_backend, or have an administrator end it`},
		{session{pid: 7, state: "idle", open: -1, kind: "entered", key: "7@1"}, `pid 7, login "", application "", idle, which this login may not end: grant it pg_signal_backend, or have an administrator end it`},
		{session{pid: 7, state: "idle", open: -1, kind: "raising"}, `pid 7, login "", application "", idle, which raises the mark`},
		{session{pid: 7, state: "idle", open: -1, kind: "stranger"}, `pid 7, login "", application "", idle, which took the advisory lock without entering: pg_terminate_backend ends it`},
	} {
		if got := c.String(); got != c.want {
			t.Errorf("got %s, want %s", got, c.want)
		}
	}
}

// TestFactsOfAnotherVersion: a detail that is not as expected gives no facts at
// all, and not half of them.
func TestFactsOfAnotherVersion(t *testing.T) {
	for detail, want := range map[string]sqlkit.Facts{
		`{"resource": "r", "mark": {"token": "5", "leaseId": "a"}}`: {Resource: "r", Mark: guard.Mark{Token: 5, LeaseID: "a"}},
		`{"resource": "r", "mark": 5}`:                              {},
		"no JSON":                                                   {},
	} {
		if got := sqlkit.FactsOf(&pgconn.PgError{Code: pgerr.Stale, Detail: detail}); got != want {
			t.Errorf("%s: %+v, want %+v", detail, got, want)
		}
	}
	if got := sqlkit.OfferedIn(&pgconn.PgError{Code: pgerr.Stale, Detail: `{"resource": "r", "token": {}}`}); got != (guard.Claim{}) {
		t.Errorf("half a claim: %+v", got)
	}
}
