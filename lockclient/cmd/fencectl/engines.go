package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/http"
	"os"
	"slices"
	"strings"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/etcdlock"
	"github.com/fencepost-go/fencepost/lockclient/lockhttp"
	"github.com/fencepost-go/fencepost/lockclient/redislock"
	"github.com/fencepost-go/fencepost/lockclient/zklock"

	"github.com/redis/go-redis/v9"
	"github.com/urfave/cli/v3"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

const issuerPostgres, issuerHTTP = "postgres", "http"

// engines opens a session by the value of --issuer.
var engines = map[string]func(context.Context, *cli.Command) (*session, error){
	issuerPostgres: openPostgres, "etcd": openEtcd, "zookeeper": openZooKeeper, "redis": openRedis, issuerHTTP: openHTTP,
}

// engineFlags say which issuer there is and how to reach it.
func engineFlags() []cli.Flag {
	text := func(name, env, usage string) cli.Flag {
		return &cli.StringFlag{Name: name, Sources: cli.EnvVars(env), HideDefault: true, Usage: usage}
	}
	return []cli.Flag{
		&cli.StringFlag{
			Name: "issuer", Sources: cli.EnvVars("FENCECTL_ISSUER"), Value: issuerPostgres, HideDefault: true,
			Usage: "`ENGINE` postgres, etcd, zookeeper, redis, http",
			Validator: func(s string) error {
				if engines[s] == nil {
					return errors.New("must be postgres, etcd, zookeeper, redis or http, not " + shown(s))
				}
				return nil
			},
		},
		&cli.StringFlag{
			Name: "database-url", Aliases: []string{"d"}, Sources: cli.EnvVars("DATABASE_URL"), HideDefault: true,
			Usage: "PostgreSQL's `URL` (or key=value string)",
		},
		text("address", "FENCECTL_ADDRESS", "`HOST:PORT` of the others, or http's URL"),
		text("user", "FENCECTL_USER", "`USER:PASSWORD` (zookeeper: scheme:...)"),
		text("bearer", "FENCECTL_BEARER", "http: `TOKEN` of the operator"),
		text("prefix", "FENCECTL_PREFIX", "`PREFIX` of all keys, or ZooKeeper's root"),
		text("cacert", "FENCECTL_CACERT", "`FILE` with the servers' authority"),
		text("cert", "FENCECTL_CERT", "`FILE` with the client's certificate"),
		text("key", "FENCECTL_KEY", "`FILE` with the client's key"),
	}
}

// open returns the session that the flags name.
func open(ctx context.Context, cmd *cli.Command) (*session, error) {
	return engines[cmd.String("issuer")](ctx, cmd)
}

// addresses are those of the servers, or one of this machine.
func addresses(cmd *cli.Command, fallback string) []string {
	return strings.Split(cmp.Or(cmd.String("address"), fallback), ",")
}

// target names the servers, and says that nobody has named them.
func target(cmd *cli.Command, engine string, at []string) string {
	return engine + " " + strings.Join(at, ",") + orNothing(cmd.String("address") == "", " (the default: there is no --address)")
}

// secured is the TLS configuration that the files make; nil without files.
func secured(cmd *cli.Command) (*tls.Config, error) {
	ca, cert, key := cmd.String("cacert"), cmd.String("cert"), cmd.String("key")
	if ca == "" && cert == "" && key == "" {
		return nil, nil
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if ca != "" {
		text, err := os.ReadFile(ca)
		if err != nil {
			return nil, guard.Invalid("cacert", ca, err.Error())
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(text) {
			return nil, guard.Invalid("cacert", ca, "has no certificate in PEM")
		}
	}
	if cert != "" || key != "" {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, guard.Invalid("cert and key", cert+", "+key, err.Error())
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

func openEtcd(_ context.Context, cmd *cli.Command) (*session, error) {
	security, err := secured(cmd)
	if err != nil {
		return nil, err
	}
	at := addresses(cmd, "127.0.0.1:2379")
	config := clientv3.Config{Endpoints: at, DialTimeout: cmd.Duration("timeout"), TLS: security, Logger: zap.NewNop()}
	config.Username, config.Password, _ = strings.Cut(cmd.String("user"), ":")
	client, err := clientv3.New(config)
	if err != nil {
		return nil, guard.Setup("connect", guard.Claim{}, err)
	}
	issuer, err := etcdlock.New(client, &etcdlock.Options{Prefix: cmd.String("prefix")})
	if err != nil {
		client.Close()
		return nil, err
	}
	return &session{op: issuer, issue: keep(issuer), target: target(cmd, "etcd", at), timeout: cmd.Duration("timeout"), close: func() {
		issuer.Close()
		client.Close()
	}}, nil
}

func openZooKeeper(_ context.Context, cmd *cli.Command) (*session, error) {
	at := addresses(cmd, "127.0.0.1:2181")
	scheme, credentials, _ := strings.Cut(cmd.String("user"), ":")
	issuer, err := zklock.New(at, &zklock.Options{Root: cmd.String("prefix"), Scheme: scheme, Auth: credentials})
	if err != nil {
		return nil, err
	}
	return &session{op: issuer, issue: keep(issuer), target: target(cmd, "ZooKeeper", at), timeout: cmd.Duration("timeout"), close: func() { issuer.Close() }}, nil
}

func openRedis(_ context.Context, cmd *cli.Command) (*session, error) {
	security, err := secured(cmd)
	if err != nil {
		return nil, err
	}
	at := addresses(cmd, "127.0.0.1:6379")
	if len(at) > 1 {
		return nil, usage("--address: Redis is one server here: name the master")
	}
	user, password, both := strings.Cut(cmd.String("user"), ":")
	if !both {
		user, password = "", user
	}
	redis.SetLogger(&discard{}) // what it would print itself is in the error of the command
	client := redis.NewClient(&redis.Options{Addr: at[0], Username: user, Password: password, TLSConfig: security, DialTimeout: cmd.Duration("timeout"),
		MaxRetries: -1, ContextTimeoutEnabled: true})
	issuer, err := redislock.New(func(ctx context.Context, args ...any) (any, error) {
		return client.Do(ctx, args...).Result()
	}, &redislock.Options{Prefix: cmd.String("prefix")})
	if err != nil {
		client.Close()
		return nil, err
	}
	return &session{op: issuer, issue: keep(issuer), target: target(cmd, "Redis", at), timeout: cmd.Duration("timeout"), close: func() {
		issuer.Close()
		client.Close()
	}}, nil
}

// discard is a logger of go-redis.
type discard struct{}

func (discard) Printf(context.Context, string, ...any) {}

// bearer adds the operator's credentials.
type bearer struct {
	http.RoundTripper
	token string
}

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+b.token)
	return b.RoundTripper.RoundTrip(r)
}

func openHTTP(_ context.Context, cmd *cli.Command) (*session, error) {
	security, err := secured(cmd)
	if err != nil {
		return nil, err
	}
	url := cmd.String("address")
	if url == "" {
		return nil, usage("--issuer http needs --address (or FENCECTL_ADDRESS), the lock server's URL")
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = security
	client := &http.Client{Transport: transport}
	if token := cmd.String("bearer"); token != "" {
		if slices.ContainsFunc([]byte(token), func(b byte) bool { return b <= ' ' || b > '~' }) {
			return nil, usage("--bearer (or FENCECTL_BEARER) must be printable ASCII without spaces; it is not shown here because it is a secret")
		}
		client.Transport = bearer{transport, token}
	}
	admin, err := lockhttp.NewAdmin(url, client)
	if err != nil {
		return nil, err
	}
	issuer, err := lockhttp.NewIssuer(url, client)
	return &session{op: admin, issue: keep(issuer), target: "the lock server at " + url, timeout: cmd.Duration("timeout"), close: transport.CloseIdleConnections}, err
}

// keep returns the issuer of a session, which closes it.
func keep(issuer driver.Issuer) func() (driver.Issuer, error) {
	return func() (driver.Issuer, error) { return kept{issuer}, nil }
}

// kept is an issuer that its client does not close.
type kept struct{ driver.Issuer }

func (kept) Close() error { return nil }
