package sqlfence

import (
	"errors"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost-go/fencepost/guard"
)

// TestErrorFromInAnyLanguage (P6): what a function of the schema says of malformed input is
// recognised whatever the server's language, and a statement of the caller's that fails beside
// a call of one is not.
func TestErrorFromInAnyLanguage(t *testing.T) {
	for where, want := range map[string]guard.Reason{
		"JSON data, line 1: {\nPL/pgSQL function fencepost.presented(text,text) line 7 at SQL statement": guard.ReasonInvalid,
		"PL/pgSQL-Funktion fencepost.presented(text,text) Zeile 7 bei SQL-Anweisung":                     guard.ReasonInvalid,
		"fonction PL/pgSQL fencepost.guard_invoices_1(), ligne 7, à instruction SQL":                     guard.ReasonInvalid,
		"PL/pgSQL関数fencepost.present(text,bigint,text)の7行目 - SQL文":                                       guard.ReasonInvalid,
		"SQL statement \"SELECT fencepost.present($1, 'x'::bigint, '')\"":                                guard.ReasonOther,
		"PL/pgSQL function public.presented(text,text) line 7 at SQL statement":                          guard.ReasonOther,
		"": guard.ReasonOther,
	} {
		err := &pgconn.PgError{Severity: "ERROR", Code: "22P02", Message: "m", Where: where}
		if got := ErrorFrom(err); guard.ReasonOf(got) != want || !errors.Is(got, err) {
			t.Errorf("%q: got %v, want %s", where, got, want)
		}
	}
}
