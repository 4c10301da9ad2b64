package pgtest

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

func start(t *testing.T, opts *Options) *Server {
	t.Helper()
	server, err := Start(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	})
	return server
}

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

func TestSettings(t *testing.T) {
	t.Parallel()
	server := start(t, &Options{Settings: map[string]string{
		"fencepost.quoted":              `it's a \ here`,
		"default_transaction_isolation": "repeatable read",
		"Max_Connections":               "17",
	}})
	for setting, want := range map[string]string{
		"fencepost.quoted":              `it's a \ here`,
		"default_transaction_isolation": "repeatable read",
		"max_connections":               "17",
		"fsync":                         "off",
		"synchronous_commit":            "on",
		"listen_addresses":              "127.0.0.1",
	} {
		if got := query[string](t, server.URL(), "SELECT current_setting($1)", setting); got != want {
			t.Errorf("%s is %q, want %q", setting, got, want)
		}
	}
	for _, settings := range []map[string]string{
		{"port": "1"},
		{"Cluster_Name": "mine"},
		{"a b": "1"},
		{"": "1"},
		{"work_mem": "1\nport = 1"},
	} {
		server, err := Start(t.Context(), &Options{Settings: settings})
		if err == nil {
			server.Stop()
			t.Errorf("Start accepts the settings %q", settings)
		}
	}
}

func TestDurable(t *testing.T) {
	t.Parallel()
	server := start(t, &Options{Durable: true})
	if got := query[string](t, server.URL(), "SHOW fsync"); got != "on" {
		t.Errorf("fsync is %s", got)
	}
	if strings.HasPrefix(server.Dir(), "/dev/shm") {
		t.Errorf("the server is in %s", server.Dir())
	}
}

// An error has the message from postgres, and nothing is left behind.
func TestStartReportsTheLog(t *testing.T) {
	t.Parallel()
	_, err := Start(t.Context(), &Options{Settings: map[string]string{"work_mem": "plenty"}})
	if err == nil || !strings.Contains(err.Error(), `invalid value for parameter "work_mem"`) {
		t.Errorf("error %v does not quote the log", err)
	}
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
