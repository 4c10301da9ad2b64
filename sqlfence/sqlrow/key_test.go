package sqlrow

import (
	"database/sql/driver"
	"strings"
	"testing"

	"github.com/DATA-DOG/go-sqlmock"
	"github.com/fencepost-go/fencepost/guard"
)

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
