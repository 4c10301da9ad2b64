package main

import (
	"context"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"

	"github.com/fencepost-go/fencepost/internal/suites/issuers/servers"
	"github.com/fencepost-go/fencepost/lockclient"
	"github.com/fencepost-go/fencepost/lockclient/etcdlock"
)

// startEtcd runs one node.
func startEtcd(_ context.Context, e *env, durable bool) (string, error) {
	return servers.StartEtcdWith(e, 1, servers.EtcdOptions{Durable: durable}).Addrs()[0], nil
}

func dialClient(addr string) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{Endpoints: []string{addr}, DialTimeout: time.Minute, Logger: zap.NewNop()})
}

// etcdMutex is client/v3/concurrency: a session that is kept alive, and keys
// that live as long as it does.
type etcdMutex struct {
	client  *clientv3.Client
	session *concurrency.Session
}

func dialEtcdMutex(_ context.Context, addr, _ string, ttl time.Duration, _ int) (locker, error) {
	client, err := dialClient(addr)
	if err != nil {
		return nil, err
	}
	session, err := concurrency.NewSession(client, concurrency.WithTTL(int(ttl/time.Second)))
	if err != nil {
		client.Close()
	}
	return &etcdMutex{client, session}, err
}

func (l *etcdMutex) lock(ctx context.Context, key string) (func(context.Context) error, error) {
	m := concurrency.NewMutex(l.session, "mutex/"+key)
	if err := m.Lock(ctx); err != nil {
		return nil, err
	}
	return m.Unlock, nil
}

func (l *etcdMutex) close() {
	l.session.Close()
	l.client.Close()
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
	return &fencepost{client: locks, ttl: ttl, cleanup: func() { client.Close() }}, err
}
