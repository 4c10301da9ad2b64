package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/suites/issuers/servers"
	"github.com/fencepost-go/fencepost/internal/suites/process"
	"github.com/fencepost-go/fencepost/lockclient"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/etcdlock"
	"github.com/fencepost-go/fencepost/lockclient/redislock"
	"github.com/fencepost-go/fencepost/lockclient/zklock"
	"github.com/fencepost-go/fencepost/sqlfence/sqlrow"
)

const roleVariable = "FENCEPOST_ISSUERS_WORKER"

// role is the configuration of a worker process.
type role struct {
	Issuer, Name, Database string
	Addrs                  []string
	TTL                    time.Duration
	Fenced                 bool
}

// startNodes starts the issuer and returns what kills one of its nodes.
func (r *role) startNodes(t *process.Run) (kill func() string) {
	switch r.Issuer {
	case "etcd":
		cluster := servers.StartEtcd(t, 3)
		r.Addrs, r.TTL = cluster.Addrs(), 3*time.Second
		return func() string { cluster.Nodes[0].Kill(); return "a node" }
	case "zookeeper":
		ensemble := servers.StartZooKeeper(t, 3)
		r.Addrs, r.TTL = ensemble.Addrs(), 6*servers.ZooKeeperTick
		return func() string { ensemble.Nodes[ensemble.Leader(t)].Kill(); return "the leader" }
	default:
		redis := servers.StartRedisSentinel(t, 2)
		r.Addrs, r.TTL = redis.Addrs(), 2*time.Second
		return func() string { redis.Nodes[0].Kill(); return "the master" }
	}
}

// connect makes the issuer. This is the code to copy.
func (r *role) connect() (driver.Issuer, error) {
	switch r.Issuer {
	case "etcd":
		client, err := clientv3.New(clientv3.Config{Endpoints: r.Addrs, Logger: zap.NewNop()})
		if err != nil {
			return nil, err
		}
		return etcdlock.New(client, nil)
	case "zookeeper":
		return zklock.New(r.Addrs, nil)
	}
	client := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: servers.SentinelName, SentinelAddrs: r.Addrs, MaxRetries: -1})
	return redislock.New(func(ctx context.Context, args ...any) (any, error) { return client.Do(ctx, args...).Result() }, nil)
}

// work holds the lease, waits for the signal to go on, and closes the period
// even if the lease was lost: then the fence stops it.
func work(ctx context.Context, encoded string) error {
	var r role
	if err := json.Unmarshal([]byte(encoded), &r); err != nil {
		return err
	}
	redis.SetLogger(silent{})
	pool, err := pgxpool.New(ctx, r.Database)
	if err != nil {
		return err
	}
	defer pool.Close()
	rows := sqlrow.Pgx(pool)
	closes, err := sqlrow.NewTable([]string{"closes"}, []string{"tenant"}, guard.Must(guard.NewTemplate("{tenant}:close")), nil)
	if err != nil {
		return err
	}
	issuer, err := r.connect()
	if err != nil {
		return err
	}
	locks, err := lockclient.New(issuer, "worker-"+r.Name, &lockclient.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	var lease *lockclient.Lease
	for lease == nil { // repeat an acquire that fails while a node is down
		if lease, err = locks.Acquire(ctx, "tenant_123:close", &lockclient.AcquireOptions{TTL: r.TTL}); err != nil {
			time.Sleep(50 * time.Millisecond)
		}
	}
	if err := lease.KeepAlive(0); err != nil {
		return err
	}
	fmt.Println("granted", lease.Token())
	bufio.NewReader(os.Stdin).ReadString('\n')
	if r.Fenced {
		err = closes.Update(ctx, rows, lease.Claim(), sqlrow.Key{"tenant_123"}, sqlrow.Set{"closed_by": r.Name, "times": sqlrow.Raw("times + 1")})
	} else {
		_, err = pool.Exec(ctx, "UPDATE closes SET closed_by = $1, times = times + 1", r.Name)
	}
	fmt.Println("wrote", err)
	return nil
}

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}
