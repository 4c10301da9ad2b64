package pgerr

import (
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

// TestExplain: the way out is added to the server's error, which stays inside,
// and to no other.
func TestExplain(t *testing.T) {
	for code, way := range map[string]string{"42501": "RolesSQL", "26000": "QueryExecModeExec", "42P05": "QueryExecModeExec", "40001": ""} {
		pg := &pgconn.PgError{Code: code, Message: "said by the server"}
		err := Explain(pg)
		if !errors.Is(err, pg) || !strings.Contains(err.Error(), way) || (way == "") != (err == error(pg)) {
			t.Errorf("%s: %v", code, err)
		}
	}
	if Explain(nil) != nil {
		t.Error("no error became one")
	}
}
