package sqlrow

import (
	"database/sql"
	"database/sql/driver"
	"strings"
	"testing"

	"github.com/DATA-DOG/go-sqlmock"
	"github.com/fencepost-go/fencepost/guard"
)

// TestKeyNames (P9): a key's value is named as it is sent, whatever its type.
func TestKeyNames(t *testing.T) {
	for _, c := range []struct {
		kind  string
		value any
		want  string
		sent  any
	}{
		{"", "x", "x", "x"}, {"", textual("x"), "x", "x"}, {"", sql.NullString{String: "y", Valid: true}, "y", "y"},
		{":int", 7, "7", 7}, {":int", int64(-7), "-7", int64(-7)}, {":int", int8(-7), "-7", int64(-7)}, {":int", uint16(7), "7", int64(7)},
		{":int", uint64(1<<63 - 1), "9223372036854775807", int64(1<<63 - 1)}, {":int", sql.NullInt64{Int64: 8, Valid: true}, "8", int64(8)},
	} {
		table, err := NewTable([]string{"jobs"}, []string{"id"}, guard.Must(guard.NewTemplate("job:{id"+c.kind+"}")), nil)
		if err != nil {
			t.Fatal(err)
		}
		key := Key{c.value}
		if name, sent, err := table.resourceOf(key); err != nil || name != "job:"+c.want || sent[0] != c.sent || key[0] != c.value {
			t.Errorf("%T %v: named %s, sent as %T %v, %v; the caller's is %v", c.value, c.value, name, sent[0], sent[0], err, key[0])
		}
	}
}

// TestKeyValueErrors: the error of a key's value that has no text says why.
func TestKeyValueErrors(t *testing.T) {
	table, err := NewTable([]string{"jobs"}, []string{"id"}, guard.Must(guard.NewTemplate("job:{id}")), nil)
	if err != nil {
		t.Fatal(err)
	}
	db := mocked(t, func(sqlmock.Sqlmock) {})
	for why, v := range map[string]any{"injected": unvalued{}, "is not a type whose text": [16]byte{1}} {
		err := table.Update(t.Context(), db, claimOf("job:x", 5), Key{v}, Set{"v": 1})
		if guard.ReasonOf(err) != guard.ReasonInvalid || !strings.Contains(err.Error(), "key column id") || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v", why, err)
		}
	}
}

// unvalued is a value that the driver cannot get.
type unvalued struct{}

func (unvalued) Value() (driver.Value, error) { return nil, errInjected }

type textual string

// BenchmarkUpdateSQL: what building the statement costs, beside some tens of
// microseconds for sending it.
func BenchmarkUpdateSQL(b *testing.B) {
	table, err := anyTable([]string{"billing", "closes"}, []string{"tenant", "period"}, &TableOptions{LeaseColumn: "last_lease_id"})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		s, err := table.statement(updates, claimOf("r", 5), Key{1, "2026-04"}, Set{"total": 12, "closed_by": "x", "version": Raw("version + $1", 1)}, nil)
		if err != nil || !strings.HasPrefix(s.sql, "UPDATE") {
			b.Fatal(err)
		}
	}
}
