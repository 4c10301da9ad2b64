package pgtest

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// shared returns the server of Database, for tests that only look at one.
func shared(t *testing.T) *Server {
	t.Helper()
	server, err := sharedServer()
	if err != nil {
		t.Fatal(err)
	}
	return server
}

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

func execAll(t *testing.T, url string, statements ...string) {
	t.Helper()
	conn := connect(t, url)
	defer conn.Close(t.Context())
	for _, statement := range statements {
		if _, err := conn.Exec(t.Context(), statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
}

func query[T any](t *testing.T, url, sql string, args ...any) T {
	t.Helper()
	conn := connect(t, url)
	defer conn.Close(t.Context())
	var value T
	if err := conn.QueryRow(t.Context(), sql, args...).Scan(&value); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return value
}

func queryInt(t *testing.T, url, sql string, args ...any) int {
	t.Helper()
	return query[int](t, url, sql, args...)
}

// Only clients with the password get in.
func TestPassword(t *testing.T) {
	t.Parallel()
	server := shared(t)
	wrong := strings.Replace(server.URL(), server.password, randomHex(16), 1)
	conn, err := pgx.Connect(t.Context(), wrong)
	if err == nil {
		conn.Close(t.Context())
		t.Error("a wrong password is accepted")
	} else if !strings.Contains(err.Error(), "password authentication failed") {
		t.Error(err)
	}
}
