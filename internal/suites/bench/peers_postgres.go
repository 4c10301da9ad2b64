package main

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient"
	"github.com/fencepost-go/fencepost/lockclient/pglock"
)

func startPostgres(ctx context.Context, e *env, durable bool) (string, error) {
	url, err := e.database(ctx, durable)
	if err != nil {
		return "", err
	}
	pool, err := e.pool(ctx, url, 2, 0)
	if err != nil {
		return "", err
	}
	if err := pglock.Migrate(ctx, pool); err != nil {
		return "", err
	}
	return url, execute(ctx, pool,
		"CREATE TABLE plain (name text PRIMARY KEY, n bigint, at timestamptz) WITH (fillfactor = 50)",
		"INSERT INTO plain SELECT 'key ' || i, 0, now() FROM generate_series(0, 63) i")
}

func connect(ctx context.Context, url string, conns int) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	config.MaxConns, config.MaxConnIdleTime = int32(conns), time.Hour
	return pgxpool.NewWithConfig(ctx, config)
}

// updates does not lock: it is two statements that commit.
type updates struct{ pool *pgxpool.Pool }

func dialUpdates(ctx context.Context, url, _ string, _ time.Duration, conns int) (locker, error) {
	pool, err := connect(ctx, url, conns)
	return &updates{pool}, err
}

func (l *updates) lock(ctx context.Context, key string) (func(context.Context) error, error) {
	one := func(ctx context.Context) error {
		_, err := l.pool.Exec(ctx, "UPDATE plain SET n = n + 1, at = clock_timestamp() WHERE name = $1", key)
		return err
	}
	return one, one(ctx)
}

func (l *updates) close() { l.pool.Close() }

// advisory takes session advisory locks, each on a connection that it keeps.
type advisory struct{ pool *pgxpool.Pool }

func dialAdvisory(ctx context.Context, url, _ string, _ time.Duration, conns int) (locker, error) {
	pool, err := connect(ctx, url, conns)
	return &advisory{pool}, err
}

func (l *advisory) lock(ctx context.Context, key string) (func(context.Context) error, error) {
	conn, err := l.pool.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := conn.Exec(ctx, "SELECT pg_advisory_lock(hashtextextended($1, 0))", key); err != nil {
		conn.Release()
		return nil, err
	}
	return func(ctx context.Context) error {
		defer conn.Release()
		_, err := conn.Exec(ctx, "SELECT pg_advisory_unlock(hashtextextended($1, 0))", key)
		return err
	}, nil
}

func (l *advisory) close() { l.pool.Close() }

// fencepost is our client.
type fencepost struct {
	client *lockclient.Client
	pool   *pgxpool.Pool
	ttl    time.Duration
}

func dialPostgres(ctx context.Context, url, owner string, ttl time.Duration, conns int) (locker, error) {
	pool, err := connect(ctx, url, conns)
	if err != nil {
		return nil, err
	}
	issuer, err := pglock.New(pool, &pglock.Options{RenewConns: min(4, conns)})
	if err != nil {
		pool.Close()
		return nil, err
	}
	client, err := lockclient.New(issuer, owner, nil)
	if err != nil {
		pool.Close()
		return nil, err
	}
	return &fencepost{client, pool, ttl}, nil
}

func (l *fencepost) lock(ctx context.Context, key string) (func(context.Context) error, error) {
	lease, err := l.client.Acquire(ctx, key, &lockclient.AcquireOptions{TTL: l.ttl})
	for errors.Is(err, guard.ErrUnavailable) && ctx.Err() == nil {
		lease, err = l.client.Acquire(ctx, key, &lockclient.AcquireOptions{TTL: l.ttl})
	}
	if err != nil {
		return nil, err
	}
	return lease.Release, nil
}

func (l *fencepost) close() {
	ctx, stop := context.WithTimeout(context.Background(), 10*time.Second)
	defer stop()
	l.client.Close(ctx)
	l.pool.Close()
}
