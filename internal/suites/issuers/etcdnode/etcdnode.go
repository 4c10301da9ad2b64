// Package etcdnode runs an etcd node as a process: a program that needs nodes
// calls [Main] first and starts itself again, through package servers.
package etcdnode

import (
	"fmt"
	"net/url"
	"os"
	"strings"

	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"github.com/fencepost-go/fencepost/internal/suites/issuers/servers"
)

// Main runs a node and does not return if this process is to be one.
func Main() {
	settings := os.Getenv(servers.EtcdVariable)
	if settings == "" {
		return
	}
	if err := run(strings.Split(settings, "\n")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func run(s []string) error {
	cfg := embed.NewConfig()
	cfg.Name, cfg.Dir = s[0], s[1]
	cfg.LogLevel, cfg.ZapLoggerBuilder = "panic", embed.NewZapLoggerBuilder(zap.NewNop())
	client, peer := url.URL{Scheme: "http", Host: s[2]}, url.URL{Scheme: "http", Host: s[3]}
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{peer}, []url.URL{{Scheme: "http", Host: s[4]}}
	cfg.InitialCluster = s[5]
	cfg.UnsafeNoFsync = s[6] == "false" // only the process fails, not the machine
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		return err
	}
	return <-e.Err()
}
