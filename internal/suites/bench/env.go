package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost-go/fencepost/internal/faultproxy"
	"github.com/fencepost-go/fencepost/internal/pgtest"
)

// env is what the experiments of one run share: servers, started on first use,
// and how long to measure.
type env struct {
	scale   float64
	short   bool   // one setting of each kind, which shows that all works
	version string // of PostgreSQL

	servers map[bool]*pgtest.Server // by durable
	cleanup []func()                // of the run
	undo    []func()                // of the part in progress; see part
}

// rounds scales how many turns each way has.
func (e *env) rounds(n int) int { return max(2, int(float64(n)*e.scale+0.5)) }

// failure is what tb.Fatal panics with.
type failure struct{ error }

// try runs an experiment, and then ends what it started.
func (e *env) try(ctx context.Context, x experiment, s *Section) (err error) {
	ctx, stop := context.WithCancel(ctx)
	defer func() {
		stop()
		switch f := recover().(type) {
		case nil:
		case failure:
			err = f.error
		default:
			panic(f)
		}
	}()
	return e.part(func() error { return x.run(ctx, e, s) })
}

// part runs a part of an experiment, and then ends what it started.
func (e *env) part(f func() error) error {
	before := len(e.undo)
	defer func() {
		for len(e.undo) > before {
			last := e.undo[len(e.undo)-1]
			e.undo = e.undo[:len(e.undo)-1]
			last()
		}
	}()
	return f()
}

func (e *env) close() {
	for i := len(e.cleanup) - 1; i >= 0; i-- {
		e.cleanup[i]()
	}
}

// later runs f when the current part has ended.
func (e *env) later(f func()) { e.undo = append(e.undo, f) }

// settings are those of every server: more connections than the default, and no
// checkpoint in the middle of a short measurement.
var settings = map[string]string{"max_connections": "600", "max_wal_size": "4GB", "checkpoint_timeout": "1h", "shared_buffers": "512MB"}

// postgres is a server whose commits wait for the disk (fsync on, data on a
// disk), or one in memory that waits for nothing.
func (e *env) postgres(ctx context.Context, durable bool) (*pgtest.Server, error) {
	if s := e.servers[durable]; s != nil {
		return s, nil
	}
	s, err := pgtest.Start(ctx, &pgtest.Options{Durable: durable, Settings: settings})
	if err != nil {
		return nil, err
	}
	if e.servers == nil {
		e.servers = map[bool]*pgtest.Server{}
	}
	e.servers[durable], e.version = s, s.Version()
	e.cleanup = append(e.cleanup, func() { s.Stop() })
	return s, nil
}

// database returns the URL of an empty database, which lasts until the
// experiment ends.
func (e *env) database(ctx context.Context, durable bool) (string, error) {
	s, err := e.postgres(ctx, durable)
	if err != nil {
		return "", err
	}
	url, drop, err := s.NewDatabase(ctx)
	if err != nil {
		return "", err
	}
	e.later(drop)
	return url, nil
}

// pool connects to a database, through a network with the given round trip.
func (e *env) pool(ctx context.Context, url string, conns int, roundTrip time.Duration) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	config.MaxConns, config.MaxConnIdleTime = int32(conns), time.Hour
	if roundTrip > 0 {
		proxy, err := faultproxy.New("tcp", net.JoinHostPort(config.ConnConfig.Host, strconv.Itoa(int(config.ConnConfig.Port))), nil)
		if err != nil {
			return nil, err
		}
		e.later(proxy.Close)
		proxy.Set(func(m *faultproxy.Message) { m.Delay = roundTrip / 2 })
		host, port, _ := net.SplitHostPort(proxy.Addr())
		n, _ := strconv.Atoi(port)
		config.ConnConfig.Host, config.ConnConfig.Port = host, uint16(n)
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	e.later(pool.Close)
	return pool, nil
}

// tb makes test helpers work outside of a test.
type tb struct {
	testing.TB
	e   *env
	ctx context.Context
}

func (t tb) Helper()                  {}
func (t tb) Failed() bool             { return false }
func (t tb) Name() string             { return "bench" }
func (t tb) Context() context.Context { return t.ctx }
func (t tb) Cleanup(f func())         { t.e.later(f) }
func (t tb) Logf(string, ...any)      {}
func (t tb) Log(...any)               {}
func (t tb) Error(args ...any)        { fmt.Fprintln(os.Stderr, args...) }
func (t tb) Fatal(args ...any)        { panic(failure{fmt.Errorf("%s", fmt.Sprint(args...))}) }
func (t tb) Fatalf(format string, args ...any) {
	panic(failure{fmt.Errorf(format, args...)})
}
func (t tb) TempDir() string {
	dir, err := os.MkdirTemp("", "fencepost-bench")
	if err != nil {
		t.Fatal(err)
	}
	t.e.later(func() { os.RemoveAll(dir) })
	return dir
}

// execute runs statements, each on its own.
func execute(ctx context.Context, pool *pgxpool.Pool, statements ...string) error {
	for _, s := range statements {
		if _, err := pool.Exec(ctx, s); err != nil {
			return fmt.Errorf("%.60s: %w", s, err)
		}
	}
	return nil
}
