package main

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost-go/fencepost/internal/faultproxy"
	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/internal/process"
)

// env is what a part of an experiment uses: servers and connections, which end
// with it.
type env struct {
	process.Run
	short   bool   // one setting, which shows that all works
	version string // of PostgreSQL
}

// rounds is how many turns each way has.
func (e *env) rounds(n int) int {
	if e.short {
		return 2
	}
	return n
}

// clients returns the numbers of clients to measure with; in a short run the middle
// one.
func (e *env) clients(all ...int) []int {
	if e.short {
		middle := (len(all) - 1) / 2
		return all[middle : middle+1]
	}
	return all
}

// part runs a part of an experiment, and then ends what it started.
func (e *env) part(f func(*env) error) error {
	p := &env{short: e.short}
	defer p.Close()
	err := f(p)
	e.version = p.version
	return err
}

// settings are those of every server: more connections than the default, and no
// checkpoint in the middle of a short measurement.
var settings = map[string]string{"max_connections": "600", "max_wal_size": "4GB", "checkpoint_timeout": "1h", "shared_buffers": "512MB"}

// database starts a server whose commits wait for the disk (fsync on, data on a
// disk), or one in memory that waits for nothing, and returns its URL.
func (e *env) database(ctx context.Context, durable bool) (string, error) {
	s, err := pgtest.Start(ctx, &pgtest.Options{Durable: durable, Settings: settings})
	if err != nil {
		return "", err
	}
	e.Cleanup(func() { s.Stop() })
	conn, err := pgx.Connect(ctx, s.URL())
	if err != nil {
		return "", err
	}
	e.version, _, _ = strings.Cut(conn.PgConn().ParameterStatus("server_version"), " ")
	return s.URL(), conn.Close(ctx)
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
		e.Cleanup(proxy.Close)
		proxy.Set(func(m *faultproxy.Message) { m.Delay = roundTrip / 2 })
		host, port, _ := net.SplitHostPort(proxy.Addr())
		n, _ := strconv.Atoi(port)
		config.ConnConfig.Host, config.ConnConfig.Port = host, uint16(n)
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	e.Cleanup(pool.Close)
	return pool, nil
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
