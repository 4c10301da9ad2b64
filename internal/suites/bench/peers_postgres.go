package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient"
)

func startPostgres(ctx context.Context, e *env, durable bool) (*service, error) {
	server, err := e.postgres(ctx, durable)
	if err != nil {
		return nil, err
	}
	url, err := e.database(ctx, durable)
	if err != nil {
		return nil, err
	}
	pool, err := e.pool(ctx, url, 2, 0)
	if err != nil {
		return nil, err
	}
	if err := lockclient.Migrate(ctx, pool); err != nil {
		return nil, err
	}
	return &service{address: url, processes: func() []int { return family(server.PID()) }}, execute(ctx, pool,
		"CREATE TABLE plain (name text PRIMARY KEY, n bigint, at timestamptz) WITH (fillfactor = 50)",
		"INSERT INTO plain SELECT 'key ' || i, 0, now() FROM generate_series(0, 63) i",
		"CREATE TABLE locks (name varchar(255) PRIMARY KEY, record_version_number bigint, data bytea, owner varchar(255))",
		"CREATE SEQUENCE locks_rvn CYCLE OWNED BY locks.record_version_number",
		"CREATE TABLE shedlock (name varchar(64) PRIMARY KEY, lock_until timestamp NOT NULL, locked_at timestamp NOT NULL, locked_by varchar(255) NOT NULL)")
}

func connect(ctx context.Context, url string, conns int) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	config.MaxConns, config.MaxConnIdleTime = int32(conns), time.Hour
	return pgxpool.NewWithConfig(ctx, config)
}

// updates is no lock: two statements that commit.
type updates struct{ pool *pgxpool.Pool }

func dialUpdates(ctx context.Context, url, _ string, _ time.Duration, conns int) (locker, error) {
	pool, err := connect(ctx, url, conns)
	return &updates{pool}, err
}

func (l *updates) lock(ctx context.Context, key string) (held, error) {
	one := func(ctx context.Context) error {
		_, err := l.pool.Exec(ctx, "UPDATE plain SET n = n + 1, at = clock_timestamp() WHERE name = $1", key)
		return err
	}
	return held{unlock: one}, one(ctx)
}

func (l *updates) close() { l.pool.Close() }

// advisory takes session advisory locks, each on a connection that it keeps.
type advisory struct{ pool *pgxpool.Pool }

func dialAdvisory(ctx context.Context, url, _ string, _ time.Duration, conns int) (locker, error) {
	pool, err := connect(ctx, url, conns)
	return &advisory{pool}, err
}

func (l *advisory) lock(ctx context.Context, key string) (held, error) {
	conn, err := l.pool.Acquire(ctx)
	if err != nil {
		return held{}, err
	}
	if _, err := conn.Exec(ctx, "SELECT pg_advisory_lock(hashtextextended($1, 0))", key); err != nil {
		conn.Release()
		return held{}, err
	}
	return held{unlock: func(ctx context.Context) error {
		defer conn.Release()
		_, err := conn.Exec(ctx, "SELECT pg_advisory_unlock(hashtextextended($1, 0))", key)
		return err
	}}, nil
}

func (l *advisory) close() { l.pool.Close() }

// fencepost is our client, with any issuer.
type fencepost struct {
	client  *lockclient.Client
	ttl     time.Duration
	keep    bool         // the issuer grants no longer TTL, so the client renews
	again   atomic.Int64 // how many acquires failed as unavailable and were retried
	cleanup []func()     // of what the issuer needs, last first
}

func dialPostgres(ctx context.Context, url, owner string, ttl time.Duration, conns int) (locker, error) {
	pool, err := connect(ctx, url, conns)
	if err != nil {
		return nil, err
	}
	client, err := lockclient.New(pool, owner, &lockclient.Options{RenewConns: min(4, conns)})
	if err != nil {
		pool.Close()
		return nil, err
	}
	return &fencepost{client: client, ttl: ttl, cleanup: []func(){pool.Close}}, nil
}

func (l *fencepost) lock(ctx context.Context, key string) (held, error) {
	lease, err := l.client.Acquire(ctx, key, &lockclient.AcquireOptions{TTL: l.ttl})
	for errors.Is(err, guard.ErrUnavailable) && ctx.Err() == nil {
		l.again.Add(1)
		lease, err = l.client.Acquire(ctx, key, &lockclient.AcquireOptions{TTL: l.ttl})
	}
	if err != nil {
		return held{}, err
	}
	if l.keep {
		if err := lease.KeepAlive(0); err != nil {
			return held{}, err
		}
	}
	return held{unlock: lease.Release, renew: lease.Renew}, nil
}

func (l *fencepost) close() {
	ctx, stop := context.WithTimeout(context.Background(), 10*time.Second)
	defer stop()
	l.client.Close(ctx)
	for i := len(l.cleanup) - 1; i >= 0; i-- {
		l.cleanup[i]()
	}
}

// pglock sends what cirello.io/pglock 1.16.1 sends: the next number of a
// sequence, one INSERT that takes a lock whose number has not changed for a
// lease, and a DELETE. Between two attempts it waits for a lease.
type pglock struct {
	pool  *pgxpool.Pool
	owner string
	ttl   time.Duration
}

func dialPglock(ctx context.Context, url, owner string, ttl time.Duration, conns int) (locker, error) {
	pool, err := connect(ctx, url, conns)
	return &pglock{pool, owner, ttl}, err
}

func (l *pglock) next(ctx context.Context) (n int64, err error) {
	err = l.pool.QueryRow(ctx, "SELECT nextval('locks_rvn')").Scan(&n)
	return n, err
}

func (l *pglock) lock(ctx context.Context, key string) (held, error) {
	seen := int64(0)
	for {
		mine, err := l.next(ctx)
		if err != nil {
			return held{}, err
		}
		var is int64
		err = l.pool.QueryRow(ctx, `INSERT INTO locks (name, record_version_number, data, owner) VALUES ($1, $2, NULL, $4)
			ON CONFLICT (name) DO UPDATE SET
				record_version_number = CASE WHEN coalesce(locks.record_version_number = $3, true) THEN $2 ELSE locks.record_version_number END,
				owner = CASE WHEN coalesce(locks.record_version_number = $3, true) THEN $4 ELSE locks.owner END
			RETURNING record_version_number`, key, mine, seen, l.owner).Scan(&is)
		if err != nil {
			return held{}, err
		}
		if is == mine {
			return held{
				unlock: func(ctx context.Context) error {
					_, err := l.pool.Exec(ctx, "DELETE FROM locks WHERE name = $1 AND record_version_number = $2", key, mine)
					return err
				},
				renew: func(ctx context.Context) error {
					next, err := l.next(ctx)
					if err != nil {
						return err
					}
					tag, err := l.pool.Exec(ctx, "UPDATE locks SET record_version_number = $3 WHERE name = $1 AND record_version_number = $2", key, mine, next)
					if err == nil && tag.RowsAffected() == 0 {
						err = errors.New("pglock: the lock was lost")
					}
					mine = next
					return err
				},
			}, nil
		}
		seen = is
		if err := pause(ctx, l.ttl); err != nil {
			return held{}, err
		}
	}
}

func (l *pglock) close() { l.pool.Close() }

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// shedLock sends what ShedLock 7.9 sends with usingDbTime: an INSERT the first
// time it meets a name, later an UPDATE, and an UPDATE that sets the end to now.
type shedLock struct {
	pool  *pgxpool.Pool
	owner string
	ttl   time.Duration
}

func dialShedLock(ctx context.Context, url, owner string, ttl time.Duration, conns int) (locker, error) {
	pool, err := connect(ctx, url, conns)
	return &shedLock{pool, owner, ttl}, err
}

const shedTake = " SET lock_until = timezone('utc', CURRENT_TIMESTAMP) + make_interval(secs => $2), locked_at = timezone('utc', CURRENT_TIMESTAMP), locked_by = $3 " +
	"WHERE shedlock.name = $1 AND shedlock.lock_until <= timezone('utc', CURRENT_TIMESTAMP)"

func (l *shedLock) lock(ctx context.Context, key string) (held, error) {
	for statement := "UPDATE shedlock" + shedTake; ; {
		tag, err := l.pool.Exec(ctx, statement, key, l.ttl.Seconds(), l.owner)
		if err != nil {
			return held{}, err
		}
		if tag.RowsAffected() == 1 {
			break
		}
		var there bool
		if err := l.pool.QueryRow(ctx, "SELECT EXISTS (SELECT FROM shedlock WHERE name = $1)", key).Scan(&there); err != nil {
			return held{}, err
		}
		if !there {
			statement = "INSERT INTO shedlock (name, lock_until, locked_at, locked_by) VALUES ($1, timezone('utc', CURRENT_TIMESTAMP) + make_interval(secs => $2), timezone('utc', CURRENT_TIMESTAMP), $3) ON CONFLICT (name) DO UPDATE" + shedTake
			continue
		}
		statement = "UPDATE shedlock" + shedTake
		if err := pause(ctx, 100*time.Millisecond); err != nil {
			return held{}, err
		}
	}
	return held{
		unlock: func(ctx context.Context) error {
			_, err := l.pool.Exec(ctx, "UPDATE shedlock SET lock_until = timezone('utc', CURRENT_TIMESTAMP) WHERE name = $1 AND locked_by = $2", key, l.owner)
			return err
		},
		renew: func(ctx context.Context) error {
			tag, err := l.pool.Exec(ctx, "UPDATE shedlock SET lock_until = timezone('utc', CURRENT_TIMESTAMP) + make_interval(secs => $2) WHERE name = $1 AND locked_by = $3 AND lock_until > timezone('utc', CURRENT_TIMESTAMP)", key, l.ttl.Seconds(), l.owner)
			if err == nil && tag.RowsAffected() == 0 {
				err = fmt.Errorf("ShedLock: %w", pgx.ErrNoRows)
			}
			return err
		},
	}, nil
}

func (l *shedLock) close() { l.pool.Close() }
