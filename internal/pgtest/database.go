package pgtest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost-go/fencepost/internal/faultproxy"
)

// databaseURLVariable names the environment variable that names a server to
// create scratch databases on.
const databaseURLVariable = "FENCEPOST_DATABASE_URL"

// TB is the part of testing.TB that this package needs, so that its own tests can see a
// test that fails.
type TB interface {
	Helper()
	Name() string
	Fatalf(format string, args ...any)
	Cleanup(func())
}

// sharedServer starts the server that all tests of this process share, once. It
// is never stopped: it ends with the process.
var sharedServer = sync.OnceValues(func() (*Server, error) {
	return Start(context.Background(), nil)
})

// serverURL returns where to create databases.
func serverURL() (string, error) {
	if server := os.Getenv(databaseURLVariable); server != "" {
		return server, nil
	}
	server, err := sharedServer()
	if err != nil {
		return "", err
	}
	if os.Getenv(slowVariable) != "" {
		return slowURL()
	}
	return server.URL(), nil
}

// slowVariable names the environment variable that, if it is not empty, makes each
// connection to the shared private server take 100 to 300 ms.
const slowVariable = "FENCEPOST_SLOW_CONNECTIONS"

// slowURL returns the URL of a proxy before the shared server, which runs as long as the
// process does.
var slowURL = sync.OnceValues(func() (string, error) {
	server, err := sharedServer()
	if err != nil {
		return "", err
	}
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(server.Port()))
	proxy, err := faultproxy.New("tcp", address, nil)
	if err != nil {
		return "", fmt.Errorf("pgtest: %w", err)
	}
	proxy.OnConnect(func() bool {
		time.Sleep(100*time.Millisecond + rand.N(200*time.Millisecond))
		return true
	})
	return strings.Replace(server.URL(), "@"+address+"/", "@"+proxy.Addr()+"/", 1), nil
})

// Database returns the connection URL of a fresh, empty database for this test,
// on a server shared by the tests of this process. It is dropped when the test
// ends, with its connections.
func Database(t TB) string {
	t.Helper()
	return copied(t, "", func(string) (string, error) { return "template0", nil })
}

// Pool is [Connect] to a fresh, empty database as from [Database].
func Pool(t TB) *pgxpool.Pool {
	t.Helper()
	return Connect(t, Database(t))
}

// copied gives a test a copy of the database that template names, on a server or
// on the one that the tests share.
func copied(t TB, server string, template func(server string) (string, error)) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	if server == "" {
		var err error
		if server, err = serverURL(); err != nil {
			t.Fatalf("%v", err)
		}
	}
	original, err := template(server)
	if err != nil {
		t.Fatalf("%v", err)
	}
	database, drop, err := newScratch(ctx, server, t.Name(), original)
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(drop)
	return database
}

// Connect returns a pool of connections to a test's database. It is closed when
// the test ends; a test that has not released a connection by then fails.
func Connect(t TB, database string) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(context.Background(), database)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	t.Cleanup(func() {
		closed := make(chan struct{})
		go func() {
			pool.Close()
			close(closed)
		}()
		select {
		case <-closed:
		case <-time.After(patience):
			t.Fatalf("pgtest: %d connections of the pool were not released", pool.Stat().AcquiredConns())
		}
	})
	return pool
}

// Provide returns the connection URL of an empty database for a program, and a
// function to call when it is no longer needed: a scratch database if
// FENCEPOST_DATABASE_URL is set, otherwise the database of a private server.
func Provide(ctx context.Context) (url string, cleanup func(), err error) {
	if server := os.Getenv(databaseURLVariable); server != "" {
		return newScratch(ctx, server, "", "template0")
	}
	server, err := Start(ctx, nil)
	if err != nil {
		return "", nil, err
	}
	return server.URL(), func() { _ = server.Stop() }, nil
}
