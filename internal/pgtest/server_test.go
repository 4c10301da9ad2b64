package pgtest

import (
	"context"
	"errors"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

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

func TestStartContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	server, err := Start(ctx, nil)
	if err == nil {
		server.Stop()
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v, want that of the context", err)
	}
}

func TestManyServers(t *testing.T) {
	t.Parallel()
	var group sync.WaitGroup
	servers := make([]*Server, 3)
	for i := range servers {
		group.Go(func() {
			server, err := Start(t.Context(), nil)
			if err != nil {
				t.Error(err)
				return
			}
			servers[i] = server
		})
	}
	group.Wait()
	ports := map[int]bool{}
	for _, server := range servers {
		if server == nil {
			continue
		}
		ports[server.Port()] = true
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	}
	if len(ports) != len(servers) {
		t.Errorf("%d ports for %d servers", len(ports), len(servers))
	}
}

func TestStop(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	conn := connect(t, server.URL())
	go conn.Exec(t.Context(), "SELECT pg_sleep(600)")
	for range 3 {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(server.Dir()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory after Stop: %v", err)
	}
	if pid := server.PID(); pid != 0 {
		t.Errorf("PID is %d after Stop", pid)
	}
	for name, call := range map[string]func() error{
		"Kill":          server.Kill,
		"StopImmediate": server.StopImmediate,
		"StopFast":      server.StopFast,
		"Restart":       func() error { return server.Restart(t.Context()) },
	} {
		if err := call(); !errors.Is(err, ErrStopped) {
			t.Errorf("%s after Stop: %v", name, err)
		}
	}
}

// Every way to go down and come back keeps the URL and the rows.
func TestRestart(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	url := server.URL()
	execAll(t, url, "CREATE TABLE kept (n int)")
	ways := []struct {
		name string
		down func() error
	}{
		{"running", func() error { return nil }},
		{"StopFast", server.StopFast},
		{"StopImmediate", server.StopImmediate},
		{"Kill", server.Kill},
		{"Kill twice", func() error { return errors.Join(server.Kill(), server.Kill()) }},
		{"StopImmediate after Kill", func() error { return errors.Join(server.Kill(), server.StopImmediate()) }},
	}
	for i, way := range ways {
		execAll(t, url, "INSERT INTO kept VALUES (1)")
		if err := way.down(); err != nil {
			t.Fatalf("%s: %v", way.name, err)
		}
		if conn, err := pgx.Connect(t.Context(), url); way.name != "running" && err == nil {
			conn.Close(t.Context())
			t.Errorf("%s: the server still answers", way.name)
		}
		if err := server.Restart(t.Context()); err != nil {
			t.Fatalf("%s: %v", way.name, err)
		}
		if server.URL() != url {
			t.Errorf("%s: the URL has changed", way.name)
		}
		if n := queryInt(t, url, "SELECT count(*)::int FROM kept"); n != i+1 {
			t.Errorf("%s: %d rows, want %d", way.name, n, i+1)
		}
	}
}

// Restart waits for its port, because the URL is already in use.
func TestRestartWaitsForPort(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	if err := server.StopFast(); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(server.Port())))
	if err != nil {
		t.Fatal(err)
	}
	if err := server.launch(t.Context()); !errors.Is(err, errPortTaken) {
		t.Errorf("error %v, want that the port is taken", err)
	}
	time.AfterFunc(200*time.Millisecond, func() { listener.Close() })
	if err := server.Restart(t.Context()); err != nil {
		t.Error(err)
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
