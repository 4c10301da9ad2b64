// Command issuers shows that other engines than PostgreSQL can grant the leases. A worker holds one
// and stands still for longer than it lasts, a node of the issuer is killed, another worker takes
// over and closes the period, and the first continues and writes.
//
//	cd examples/thirdparty/issuers
//	go run . -issuer etcd       or zookeeper, or redis (a master, two replicas, three Sentinels)
//	go run . -issuer etcd -unfenced
//
// The exit status is 0 exactly when the flags' promise held: the first worker's write was refused
// or, with -unfenced, was not. The code to copy is connect. jwt.go puts a lock server behind an
// identity provider; the tests have one whose leases are etcd's, and show why
// Redlock issues no tokens.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/fencepost-go/fencepost/examples/internal/demo"
	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/process"
	"github.com/fencepost-go/fencepost/internal/suites/issuers/etcdnode"
	"github.com/fencepost-go/fencepost/internal/suites/issuers/servers"
	"github.com/fencepost-go/fencepost/lockclient"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/etcdlock"
	"github.com/fencepost-go/fencepost/lockclient/redislock"
	"github.com/fencepost-go/fencepost/lockclient/zklock"
	"github.com/fencepost-go/fencepost/sqlfence/sqlrow"
)

func main() {
	etcdnode.Main()
	kind := flag.String("issuer", "", "`who` grants the leases: etcd, redis, zookeeper")
	unfenced := flag.Bool("unfenced", false, "write without a fence and show the damage")
	flag.Parse()
	demo.Main(5*time.Minute, func(ctx context.Context, out io.Writer) error { return run(ctx, *kind, !*unfenced, out) })
}

func run(ctx context.Context, kind string, fenced bool, out io.Writer) error {
	redis.SetLogger(silent{})
	started := &process.Run{}
	defer started.Close()
	if kind != "etcd" && kind != "redis" && kind != "zookeeper" {
		return fmt.Errorf("-issuer must be etcd, redis or zookeeper, not %q", kind)
	}
	pool, cleanup, err := demo.Pool(ctx)
	if err != nil {
		return err
	}
	defer cleanup()
	if _, err := pool.Exec(ctx, `CREATE TABLE closes (tenant text PRIMARY KEY, closed_by text NOT NULL DEFAULT '',
		times int NOT NULL DEFAULT 0, last_fencing_token bigint NOT NULL DEFAULT 0); INSERT INTO closes VALUES ('tenant_123')`); err != nil {
		return err
	}
	addrs, ttl, kill := startNodes(started, kind)
	a, err := acquire(ctx, kind, addrs, "worker-a", ttl)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "worker a: granted, token %v; it stands still and renews nothing\n", a.Token())
	fmt.Fprintf(out, "%s: kill -9 of %s\n", kind, kill())
	b, err := acquire(ctx, kind, addrs, "worker-b", ttl)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "worker b: granted, token %v\n", b.Token())
	first := closePeriod(ctx, pool, b.Claim(), "b", fenced)
	late := closePeriod(ctx, pool, a.Claim(), "a", fenced)
	fmt.Fprintf(out, "worker b writes: %v\nworker a continues and writes: %v\n", first, late)

	var by string
	var times int
	if err := pool.QueryRow(ctx, "SELECT closed_by, times FROM closes").Scan(&by, &times); err != nil {
		return err
	}
	fmt.Fprintf(out, "the period was closed %d times, last by worker %s\n", times, by)
	if first != nil || fenced != errors.Is(late, guard.ErrStale) || fenced != (by == "b" && times == 1) {
		return demo.ErrUnexpected
	}
	return nil
}

// startNodes starts an issuer and returns what kills one of its nodes.
func startNodes(t *process.Run, kind string) (addrs []string, ttl time.Duration, kill func() string) {
	switch kind {
	case "etcd":
		cluster := servers.StartEtcd(t, 3)
		return cluster.Addrs(), 3 * time.Second, func() string { cluster.Nodes[0].Kill(); return "a node" }
	case "zookeeper":
		ensemble := servers.StartZooKeeper(t, 3)
		return ensemble.Addrs(), 6 * servers.ZooKeeperTick, func() string { ensemble.Nodes[ensemble.Leader(t)].Kill(); return "the leader" }
	}
	redis := servers.StartRedisSentinel(t, 2)
	return redis.Addrs(), 2 * time.Second, func() string { redis.Nodes[0].Kill(); return "the master" }
}

// connect makes the issuer. This is the code to copy.
func connect(kind string, addrs []string) (driver.Issuer, error) {
	switch kind {
	case "etcd":
		client, err := clientv3.New(clientv3.Config{Endpoints: addrs, Logger: zap.NewNop()})
		if err != nil {
			return nil, err
		}
		return etcdlock.New(client, nil)
	case "zookeeper":
		return zklock.New(addrs, nil)
	}
	client := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: servers.SentinelName, SentinelAddrs: addrs, MaxRetries: -1})
	return redislock.New(func(ctx context.Context, args ...any) (any, error) { return client.Do(ctx, args...).Result() }, nil)
}

// acquire waits for the lease; it repeats what fails while a node is down.
func acquire(ctx context.Context, kind string, addrs []string, owner string, ttl time.Duration) (*lockclient.Lease, error) {
	issuer, err := connect(kind, addrs)
	if err != nil {
		return nil, err
	}
	client, err := lockclient.New(issuer, owner, &lockclient.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	for {
		lease, err := client.Acquire(ctx, "tenant_123:close", &lockclient.AcquireOptions{TTL: ttl})
		if err == nil || ctx.Err() != nil {
			return lease, err
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// closePeriod writes even if the lease was lost: then the fence stops it.
func closePeriod(ctx context.Context, pool *pgxpool.Pool, claim guard.Claim, by string, fenced bool) error {
	if !fenced {
		_, err := pool.Exec(ctx, "UPDATE closes SET closed_by = $1, times = times + 1", by)
		return err
	}
	closes, err := sqlrow.NewTable([]string{"closes"}, []string{"tenant"}, guard.Must(guard.NewTemplate("{tenant}:close")), nil)
	if err != nil {
		return err
	}
	return closes.Update(ctx, sqlrow.Pgx(pool), claim, sqlrow.Key{"tenant_123"}, sqlrow.Set{"closed_by": by, "times": sqlrow.Raw("times + 1")})
}

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}
