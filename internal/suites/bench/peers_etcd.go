package main

import (
	"context"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"

	"github.com/fencepost-go/fencepost/internal/suites/issuers/servers"
)

// startEtcd runs one node.
func startEtcd(_ context.Context, e *env, durable bool) (string, error) {
	return servers.StartEtcdWith(e, 1, servers.EtcdOptions{Durable: durable}).Addrs()[0], nil
}

// etcdMutex is client/v3/concurrency: a session that is kept alive, and keys
// that live as long as it does.
type etcdMutex struct {
	client  *clientv3.Client
	session *concurrency.Session
}

func dialEtcdMutex(_ context.Context, addr, _ string, ttl time.Duration, _ int) (locker, error) {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{addr}, DialTimeout: time.Minute, Logger: zap.NewNop()})
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
