package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fencepost-go/fencepost/lockclient"
	"github.com/fencepost-go/fencepost/lockclient/zklock"
)

// startZooKeeper runs one server with Debian's libzookeeper-java.
func startZooKeeper(ctx context.Context, e *env, durable bool) (*service, error) {
	java, err := exec.LookPath("java")
	if err != nil {
		return nil, errNotThere
	}
	const jars = "/usr/share/java/zookeeper.jar:/usr/share/java/slf4j-simple.jar"
	for _, jar := range filepath.SplitList(jars) {
		if _, err := os.Stat(jar); err != nil {
			return nil, errNotThere
		}
	}
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	_, port, _ := net.SplitHostPort(addr)
	dir := tb{e: e, ctx: ctx}.TempDir()
	config := filepath.Join(dir, "zoo.cfg")
	text := fmt.Sprintf("tickTime=%d\ndataDir=%s/data\nclientPort=%s\nclientPortAddress=127.0.0.1\nmaxClientCnxns=0\n4lw.commands.whitelist=srvr\n", zooKeeperTick.Milliseconds(), dir, port)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return nil, err
	}
	force := "no"
	if durable {
		force = "yes"
	}
	p, err := startProcess("", java, "-Xmx512m", "-XX:+UseSerialGC", "-Dzookeeper.admin.enableServer=false", "-Dzookeeper.forceSync="+force,
		"-Dorg.slf4j.simpleLogger.defaultLogLevel=off", "-cp", jars, "org.apache.zookeeper.server.ZooKeeperServerMain", config)
	if err != nil {
		return nil, err
	}
	e.later(p.kill)
	for began := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		err := serves(addr)
		if err == nil {
			return &service{address: addr, processes: p.pids}, nil
		}
		if time.Since(began) > time.Minute {
			return nil, fmt.Errorf("ZooKeeper is not ready after a minute: %w", err)
		}
	}
}

// serves asks a server for its state.
func serves(addr string) error {
	conn, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(2 * time.Second))
	if _, err := fmt.Fprint(conn, "srvr"); err != nil {
		return err
	}
	text, _ := io.ReadAll(conn)
	if !strings.Contains(string(text), "Mode: ") {
		return fmt.Errorf("srvr says %q", text)
	}
	return nil
}

type quiet struct{}

func (quiet) Printf(string, ...any) {}

func zkConn(addr string, ttl time.Duration) (*zk.Conn, error) {
	conn, events, err := zk.Connect([]string{addr}, ttl, zk.WithLogger(quiet{}))
	if err != nil {
		return nil, err
	}
	timeout := time.After(time.Minute)
	for {
		select {
		case ev := <-events:
			if ev.State == zk.StateHasSession {
				return conn, nil
			}
		case <-timeout:
			conn.Close()
			return nil, fmt.Errorf("no session with ZooKeeper after a minute")
		}
	}
}

// zooKeeperLock is the lock of go-zookeeper/zk, which is ZooKeeper's recipe.
type zooKeeperLock struct {
	conn *zk.Conn
	addr string
}

func dialZooKeeperLock(_ context.Context, addr, _ string, ttl time.Duration, _ int) (locker, error) {
	conn, err := zkConn(addr, min(ttl, 20*zooKeeperTick))
	return &zooKeeperLock{conn, addr}, err
}

func anotherConnection(ctx context.Context, l locker, ttl time.Duration) (locker, error) {
	return dialZooKeeperLock(ctx, l.(*zooKeeperLock).addr, "", ttl, 1)
}

// lock returns when ctx ends. The library's Lock does not: it goes on waiting,
// and a lock granted after that is released at once.
func (l *zooKeeperLock) lock(ctx context.Context, key string) (held, error) {
	m := zk.NewLock(l.conn, "/bench/"+url.PathEscape(key), zk.WorldACL(zk.PermAll))
	got := make(chan error, 1)
	go func() { got <- m.Lock() }()
	select {
	case err := <-got:
		return held{unlock: func(context.Context) error { return m.Unlock() }}, err
	case <-ctx.Done():
		go func() {
			if err := <-got; err == nil {
				m.Unlock()
			}
		}()
		return held{}, ctx.Err()
	}
}

func (l *zooKeeperLock) close() { l.conn.Close() }

// zooKeeperTick is the servers' tickTime. A session lasts for two to twenty of
// them.
const zooKeeperTick = 500 * time.Millisecond

func dialZooKeeper(_ context.Context, addr, owner string, ttl time.Duration, _ int) (locker, error) {
	issuer, err := zklock.New([]string{addr}, &zklock.Options{TickTime: zooKeeperTick})
	if err != nil {
		return nil, err
	}
	locks, err := lockclient.NewWith(issuer, owner, nil)
	return &fencepost{client: locks, ttl: min(ttl, 20*zooKeeperTick), keep: ttl > 20*zooKeeperTick}, err
}
