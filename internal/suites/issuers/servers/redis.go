package servers

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/fencepost-go/fencepost/internal/process"
)

// StartRedis starts a redis-server without persistence; args are added to its
// command line.
func StartRedis(t process.TB, args ...string) *process.Server {
	t.Helper()
	addr, dir := process.FreeAddr(t), t.TempDir()
	return startRedis(t, addr, dir, append([]string{process.Find(t, "redis-server"), "--port", port(addr), "--bind", "127.0.0.1", "--save", "", "--dir", dir}, args...))
}

func startRedis(t process.TB, addr, dir string, command []string) *process.Server {
	t.Helper()
	return process.Serve(t, &process.Server{Addr: addr, Dir: dir, Command: command, Ready: func() error {
		text, err := ask(addr, "PING\r\n")
		if err == nil && !strings.HasPrefix(text, "+PONG") && !strings.HasPrefix(text, "-NOAUTH") {
			err = fmt.Errorf("PING says %q", text)
		}
		return err
	}}).Await()
}

// RedisSentinel is a master, its replicas and three Sentinels.
type RedisSentinel struct {
	Nodes     []*process.Server // the first starts as the master
	Sentinels []*process.Server
}

// SentinelName is the Sentinels' name of the master.
const SentinelName = "locks"

// Addrs returns the Sentinels' addresses.
func (r *RedisSentinel) Addrs() []string { return addrs(r.Sentinels) }

// StartRedisSentinel starts a master, that many replicas, and three Sentinels
// that take a master for dead after a second.
func StartRedisSentinel(t process.TB, replicas int) *RedisSentinel {
	t.Helper()
	r := &RedisSentinel{}
	for range 1 + replicas {
		args := []string{"--repl-diskless-sync-delay", "0"}
		if len(r.Nodes) > 0 {
			args = append(args, "--replicaof", "127.0.0.1 "+port(r.Nodes[0].Addr))
		}
		r.Nodes = append(r.Nodes, StartRedis(t, args...))
	}
	for range 3 {
		addr, dir := process.FreeAddr(t), t.TempDir()
		config := filepath.Join(dir, "sentinel.conf")
		text := fmt.Sprintf("port %s\nbind 127.0.0.1\ndir %s\nsentinel monitor %s 127.0.0.1 %s 2\nsentinel down-after-milliseconds %[3]s 1000\nsentinel failover-timeout %[3]s 5000\n",
			port(addr), dir, SentinelName, port(r.Nodes[0].Addr))
		if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		r.Sentinels = append(r.Sentinels, startRedis(t, addr, dir, []string{process.Find(t, "redis-sentinel"), config}))
	}
	return r
}
