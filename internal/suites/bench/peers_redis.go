package main

import (
	"context"
	"time"

	bsm "github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"

	"github.com/fencepost-go/fencepost/internal/suites/issuers/servers"
	"github.com/fencepost-go/fencepost/lockclient"
	"github.com/fencepost-go/fencepost/lockclient/redislock"
)

func startRedis(_ context.Context, e *env, durable bool) (string, error) {
	sync := "everysec"
	if durable {
		sync = "always"
	}
	return servers.StartRedis(e, "--appendonly", "yes", "--appendfsync", sync).Addr, nil
}

func redisClient(addr string, conns int) *redis.Client {
	return redis.NewClient(&redis.Options{Addr: addr, PoolSize: conns, MaxRetries: -1, ContextTimeoutEnabled: true, ReadTimeout: time.Minute, WriteTimeout: time.Minute})
}

// bsmLock is bsm/redislock as its README shows it.
type bsmLock struct {
	redis  *redis.Client
	client *bsm.Client
	ttl    time.Duration
}

func dialRedislock(_ context.Context, addr, _ string, ttl time.Duration, conns int) (locker, error) {
	r := redisClient(addr, conns)
	return &bsmLock{r, bsm.New(r), ttl}, nil
}

func (l *bsmLock) lock(ctx context.Context, key string) (func(context.Context) error, error) {
	lock, err := l.client.Obtain(ctx, "bsm:"+key, l.ttl, &bsm.Options{RetryStrategy: bsm.LinearBackoff(100 * time.Millisecond)})
	if err != nil {
		return nil, err
	}
	return lock.Release, nil
}

func (l *bsmLock) close() { l.redis.Close() }

// redsyncLock is go-redsync with one server and its default delays.
type redsyncLock struct {
	redis *redis.Client
	sync  *redsync.Redsync
	ttl   time.Duration
}

func dialRedsync(_ context.Context, addr, _ string, ttl time.Duration, conns int) (locker, error) {
	r := redisClient(addr, conns)
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

func dialRedis(_ context.Context, addr, owner string, ttl time.Duration, conns int) (locker, error) {
	r := redisClient(addr, conns+1) // one is for the subscription
	issuer, err := redislock.New(func(ctx context.Context, args ...any) (any, error) { return r.Do(ctx, args...).Result() },
		&redislock.Options{Subscribe: func(ctx context.Context, channel string, message func(string)) (func(), error) {
			sub := r.Subscribe(ctx, channel)
			if _, err := sub.Receive(ctx); err != nil {
				sub.Close()
				return nil, err
			}
			go func() {
				for m := range sub.Channel() {
					message(m.Payload)
				}
			}()
			return func() { sub.Close() }, nil
		}})
	if err != nil {
		return nil, err
	}
	locks, err := lockclient.NewWith(issuer, owner, nil)
	return &fencepost{client: locks, ttl: ttl, cleanup: func() { r.Close() }}, err
}
