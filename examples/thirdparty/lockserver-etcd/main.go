// Command etcd is a lock server whose leases are etcd's. See
// examples/lockserver, with PostgreSQL, for what is left out here: tenants in a
// file, certificates, signed claims. It is a module of its own because of
// etcd's client.
//
//	go -C examples/thirdparty/lockserver-etcd run . -demo
//	LOCKSERVER_TOKEN=... go -C examples/thirdparty/lockserver-etcd run . -endpoints http://a:2379,http://b:2379,http://c:2379 -tenant acme
//
// With -demo it starts a private etcd and makes a token. The first line of its
// output is {"url": ..., "token": ...}. Lists, force unlocks and the audit are
// PostgreSQL's (lockadmin): with etcd these requests get 501.
package main

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/suites/issuers/etcdnode"
	"github.com/fencepost-go/fencepost/internal/suites/issuers/servers"
	"github.com/fencepost-go/fencepost/internal/suites/process"
	"github.com/fencepost-go/fencepost/lockclient/etcdlock"
	"github.com/fencepost-go/fencepost/lockclient/lockhttp"
)

var templates = []*guard.Template{guard.Must(guard.NewTemplate("{tenant}:billing-close:{period}"))}

type flags struct {
	demo                             bool
	endpoints, tenant, listen, token string
}

func main() {
	etcdnode.Main()
	f := flags{token: os.Getenv("LOCKSERVER_TOKEN")}
	flag.BoolVar(&f.demo, "demo", false, "serve a private etcd, with a token that is printed")
	flag.StringVar(&f.endpoints, "endpoints", "", "the cluster's client URLs, with commas between them")
	flag.StringVar(&f.tenant, "tenant", "demo", "whose resources who has $LOCKSERVER_TOKEN may lease")
	flag.StringVar(&f.listen, "listen", "127.0.0.1:0", "the address to listen on, behind a proxy that has TLS")
	flag.Parse()
	ctx, _ := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	if err := run(ctx, f, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "lockserver:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, f flags, out io.Writer) error {
	endpoints := strings.Split(f.endpoints, ",")
	switch {
	case f.demo:
		started := &process.Run{}
		defer started.Close()
		endpoints = servers.StartEtcd(started, 1).Addrs()
		f.token = rand.Text()
	case f.endpoints == "" || f.token == "":
		return errors.New("either -demo, or -endpoints with LOCKSERVER_TOKEN in the environment")
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: endpoints, Logger: zap.NewNop()})
	if err != nil {
		return err
	}
	defer client.Close()
	issuer, err := etcdlock.New(client, nil)
	if err != nil {
		return err
	}
	locks, err := lockhttp.New(issuer, bearer(f.token, f.tenant), nil)
	if err != nil {
		return errors.Join(err, issuer.Close())
	}
	listener, err := net.Listen("tcp", f.listen)
	if err != nil {
		return errors.Join(err, locks.Close(ctx), issuer.Close())
	}
	first := map[string]string{"url": "http://" + listener.Addr().String()}
	if f.demo {
		first["token"] = f.token
	}
	text, err := json.Marshal(first)
	fmt.Fprintf(out, "%s\n", text)
	return errors.Join(err, serve(ctx, listener, locks), issuer.Close())
}

// bearer takes one token.
func bearer(token, tenant string) lockhttp.Authenticate {
	want := sha256.Sum256([]byte("Bearer " + token))
	return func(r *http.Request) (*lockhttp.Identity, error) {
		got := sha256.Sum256([]byte(strings.Join(r.Header.Values("Authorization"), ",")))
		if subtle.ConstantTimeCompare(got[:], want[:]) != 1 {
			return nil, errors.New("the bearer token is unknown")
		}
		return &lockhttp.Identity{Subject: tenant, Tenant: tenant, Templates: templates}, nil
	}
}

// serve serves until ctx ends; requests in progress then have ten seconds.
func serve(ctx context.Context, listener net.Listener, locks *lockhttp.Server) error {
	web := &http.Server{Handler: locks, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: 2 * time.Minute}
	served := make(chan error, 1)
	go func() { served <- web.Serve(listener) }()
	var err error
	select {
	case err = <-served:
	case <-ctx.Done():
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	closed := make(chan error, 1)
	go func() { closed <- locks.Close(end) }()
	shut := web.Shutdown(end)
	return errors.Join(err, shut, <-closed)
}
