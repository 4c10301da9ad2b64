// Fencectl-zookeeper is the operators' command for leases that ZooKeeper issues.
//
//	fencectl-zookeeper --servers zk1:2181,zk2:2181,zk3:2181 epoch raise --yes
//
// It shows who holds a lease, advances the tokens above those of a resource elsewhere, and raises the epoch
// after a restore. The exit codes are fencectl's.
package main

import (
	"flag"
	"strings"

	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/internal/opcmd"
	"github.com/fencepost-go/fencepost/lockclient/zklock"
)

func main() {
	flags := flag.NewFlagSet("fencectl-zookeeper", flag.ContinueOnError)
	servers := flags.String("servers", "127.0.0.1:2181", "servers, separated by commas")
	root := flags.String("root", "", "node that all others are below, as zklock.Options.Root")
	auth := flags.String("auth", "", "scheme:credentials, such as digest:user:password")
	opcmd.Main(flags, func() (driver.Issuer, error) {
		scheme, credentials, _ := strings.Cut(*auth, ":")
		return zklock.New(strings.Split(*servers, ","), &zklock.Options{Root: *root, Scheme: scheme, Auth: credentials})
	})
}
