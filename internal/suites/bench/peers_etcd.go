package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"github.com/fencepost-go/fencepost/lockclient"
	"github.com/fencepost-go/fencepost/lockclient/etcdlock"
)

// startEtcd runs one node in a process of its own, so that its work is not
// counted as the client's.
func startEtcd(ctx context.Context, e *env, durable bool) (*service, error) {
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	p, err := startChild("etcd", tb{e: e, ctx: ctx}.TempDir(), addr, fmt.Sprint(durable))
	if err != nil {
		return nil, err
	}
	e.later(p.kill)
	return &service{address: addr, processes: p.pids}, nil
}

// serveEtcd is the child.
func serveEtcd(dir, addr string, durable bool) error {
	peer, err := freeAddr()
	if err != nil {
		return err
	}
	cfg := embed.NewConfig()
	cfg.Dir, cfg.UnsafeNoFsync = dir, !durable
	cfg.LogLevel, cfg.ZapLoggerBuilder = "panic", embed.NewZapLoggerBuilder(zap.NewNop())
	clients, peers := url.URL{Scheme: "http", Host: addr}, url.URL{Scheme: "http", Host: peer}
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{clients}, []url.URL{clients}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{peers}, []url.URL{peers}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	server, err := embed.StartEtcd(cfg)
	if err != nil {
		return err
	}
	<-server.Server.ReadyNotify()
	fmt.Println("ready")
	return <-server.Err()
}

func dialClient(addr string) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{Endpoints: []string{addr}, DialTimeout: time.Minute, Logger: zap.NewNop()})
}

// etcdMutex is client/v3/concurrency: a session that is kept alive, and keys
// that live as long as it does.
type etcdMutex struct {
	client  *clientv3.Client
	session *concurrency.Session
	owns    bool // the client
}

func dialEtcdMutex(ctx context.Context, addr, _ string, ttl time.Duration, _ int) (locker, error) {
	client, err := dialClient(addr)
	if err != nil {
		return nil, err
	}
	l, err := session(client, ttl)
	if err != nil {
		client.Close()
		return nil, err
	}
	l.owns = true
	return l, nil
}

func session(client *clientv3.Client, ttl time.Duration) (*etcdMutex, error) {
	s, err := concurrency.NewSession(client, concurrency.WithTTL(int(ttl/time.Second)))
	return &etcdMutex{client: client, session: s}, err
}

func anotherSession(_ context.Context, l locker, ttl time.Duration) (locker, error) {
	return session(l.(*etcdMutex).client, ttl)
}

func (l *etcdMutex) lock(ctx context.Context, key string) (held, error) {
	m := concurrency.NewMutex(l.session, "mutex/"+key)
	if err := m.Lock(ctx); err != nil {
		return held{}, err
	}
	return held{unlock: m.Unlock}, nil
}

func (l *etcdMutex) close() {
	l.session.Close()
	if l.owns {
		l.client.Close()
	}
}

func dialEtcd(_ context.Context, addr, owner string, ttl time.Duration, _ int) (locker, error) {
	client, err := dialClient(addr)
	if err != nil {
		return nil, err
	}
	issuer, err := etcdlock.New(client, nil)
	if err != nil {
		client.Close()
		return nil, err
	}
	locks, err := lockclient.NewWith(issuer, owner, nil)
	return &fencepost{client: locks, ttl: ttl, cleanup: []func(){func() { client.Close() }}}, err
}

var errNotThere = errors.New("not installed here; see .ci/setup servers")
