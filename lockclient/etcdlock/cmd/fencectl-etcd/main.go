// Fencectl-etcd is the operators' command for leases that etcd issues.
//
//	fencectl-etcd --endpoints https://etcd1:2379 epoch raise --yes
//
// It shows who holds a lease, advances the tokens above those of a resource elsewhere, and raises the epoch
// after a restore. The exit codes are fencectl's.
package main

import (
	"crypto/tls"
	"flag"
	"os"
	"strings"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/etcdlock"
	"github.com/fencepost-go/fencepost/lockclient/internal/opcmd"
)

func main() {
	flags := flag.NewFlagSet("fencectl-etcd", flag.ContinueOnError)
	env := func(name, key, fallback, text string) *string {
		if v := os.Getenv(key); v != "" {
			fallback = v
		}
		return flags.String(name, fallback, text+" [$"+key+"]")
	}
	endpoints := env("endpoints", "ETCDCTL_ENDPOINTS", "127.0.0.1:2379", "servers, separated by commas")
	user := env("user", "ETCDCTL_USER", "", "user:password")
	ca := env("cacert", "ETCDCTL_CACERT", "", "file with the servers' certificate authority")
	cert := env("cert", "ETCDCTL_CERT", "", "file with the client's certificate")
	key := env("key", "ETCDCTL_KEY", "", "file with the client's key")
	prefix := flags.String("prefix", "", "what every key begins with, as etcdlock.Options.Prefix")
	opcmd.Main(flags, func() (driver.Issuer, error) {
		config := clientv3.Config{Endpoints: strings.Split(*endpoints, ","), DialTimeout: 5 * time.Second, Logger: zap.NewNop()}
		config.Username, config.Password, _ = strings.Cut(*user, ":")
		secure, err := secured(*ca, *cert, *key)
		if err != nil {
			return nil, err
		}
		config.TLS = secure
		client, err := clientv3.New(config)
		if err != nil {
			return nil, guard.Setup("connect", guard.Claim{}, err)
		}
		return etcdlock.New(client, &etcdlock.Options{Prefix: *prefix})
	})
}

// secured is the TLS configuration of the given files; nil if there are none.
func secured(ca, cert, key string) (*tls.Config, error) {
	if ca == "" && cert == "" && key == "" {
		return nil, nil
	}
	config, err := transport.TLSInfo{TrustedCAFile: ca, CertFile: cert, KeyFile: key}.ClientConfig()
	if err != nil {
		return nil, guard.Invalid("cacert, cert, key", strings.Join([]string{ca, cert, key}, ", "), err.Error())
	}
	return config, nil
}
