package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/fencepost-go/fencepost/lockclient"
	"github.com/fencepost-go/fencepost/lockclient/lockhttp"
)

// startLockServer runs a lock server on PostgreSQL in a process of its own.
func startLockServer(ctx context.Context, e *env, durable bool) (*service, error) {
	database, err := startPostgres(ctx, e, durable)
	if err != nil {
		return nil, err
	}
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	p, err := startChild("locks", database.address, addr)
	if err != nil {
		return nil, err
	}
	e.later(p.kill)
	return &service{address: "http://" + addr, processes: func() []int { return append(database.processes(), p.pids()...) }}, nil
}

// serveLocks is the child.
func serveLocks(url, addr string) error {
	slog.SetDefault(slog.New(slog.DiscardHandler))
	pool, err := connect(context.Background(), url, 16)
	if err != nil {
		return err
	}
	issuer, err := lockclient.NewIssuer(pool, nil)
	if err != nil {
		return err
	}
	anybody := func(*http.Request) (*lockhttp.Identity, error) {
		return &lockhttp.Identity{Subject: "bench", AllResources: true, SeeHolders: true, Limits: lockhttp.Limits{Waiting: 10_000}}, nil
	}
	server, err := lockhttp.New(issuer, anybody, &lockhttp.Options{Timeout: 30 * time.Second})
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	return (&http.Server{Handler: server, ReadHeaderTimeout: time.Minute}).Serve(l)
}

func dialHTTP(_ context.Context, url, owner string, ttl time.Duration, _ int) (locker, error) {
	transport := &http.Transport{MaxIdleConnsPerHost: 1000}
	issuer, err := lockhttp.NewIssuer(url, &http.Client{Transport: transport})
	if err != nil {
		return nil, err
	}
	locks, err := lockclient.NewWith(issuer, owner, nil)
	if err != nil {
		return nil, errors.Join(err, issuer.Close())
	}
	return &fencepost{client: locks, ttl: ttl, cleanup: []func(){transport.CloseIdleConnections}}, nil
}
