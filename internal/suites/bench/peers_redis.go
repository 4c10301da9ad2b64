package main

import (
	"context"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"

	"github.com/fencepost-go/fencepost/internal/suites/issuers/servers"
)

func startRedis(_ context.Context, e *env, durable bool) (string, error) {
	sync := "everysec"
	if durable {
		sync = "always"
	}
	return servers.StartRedis(e, "--appendonly", "yes", "--appendfsync", sync).Addr, nil
}

// redsyncLock is go-redsync with one server and its default delays.
type redsyncLock struct {
	redis *redis.Client
	sync  *redsync.Redsync
	ttl   time.Duration
}

func dialRedsync(_ context.Context, addr, _ string, ttl time.Duration, conns int) (locker, error) {
	r := redis.NewClient(&redis.Options{Addr: addr, PoolSize: conns, MaxRetries: -1, ContextTimeoutEnabled: true, ReadTimeout: time.Minute, WriteTimeout: time.Minute})
	return &redsyncLock{r, redsync.New(goredis.NewPool(r)), ttl}, nil
}

func (l *redsyncLock) lock(ctx context.Context, key string) (func(context.Context) error, error) {
	m := l.sync.NewMutex("redsync:"+key, redsync.WithExpiry(l.ttl), redsync.WithTries(1<<30))
	if err := m.LockContext(ctx); err != nil {
		return nil, err
	}
	return func(ctx context.Context) error { _, err := m.UnlockContext(ctx); return err }, nil
}

func (l *redsyncLock) close() { l.redis.Close() }
