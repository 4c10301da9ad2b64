package servers

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// StartRedis starts a redis-server without persistence; args are added to its
// command line.
func StartRedis(t TB, args ...string) *Process {
	t.Helper()
	addr, dir := FreeAddr(t), t.TempDir()
	p := &Process{t: t, Addr: addr, log: filepath.Join(dir, "log"), ready: func() error { return pong(addr) },
		command: append([]string{program(t, "redis-server"), "--port", port(addr), "--bind", "127.0.0.1", "--save", "", "--dir", dir}, args...)}
	t.Cleanup(p.Kill)
	p.Start()
	return p
}

func pong(addr string) error {
	text, err := ask(addr, "PING\r\n")
	if err == nil && !strings.HasPrefix(text, "+PONG") && !strings.HasPrefix(text, "-NOAUTH") {
		err = fmt.Errorf("PING says %q", text)
	}
	return err
}

// RedisSentinel is a master, its replicas and three Sentinels.
type RedisSentinel struct {
	Nodes     []*Process // the first starts as the master
	Sentinels []*Process
}

// SentinelName is the Sentinels' name of the master.
const SentinelName = "locks"

// Addrs returns the Sentinels' addresses.
func (r *RedisSentinel) Addrs() []string {
	var out []string
	for _, s := range r.Sentinels {
		out = append(out, s.Addr)
	}
	return out
}

// StartRedisSentinel starts a master, that many replicas, and three Sentinels
// that take a master for dead after a second. args go to every redis-server.
func StartRedisSentinel(t TB, replicas int, args ...string) *RedisSentinel {
	t.Helper()
	args = append([]string{"--repl-diskless-sync-delay", "0"}, args...)
	r := &RedisSentinel{Nodes: []*Process{StartRedis(t, args...)}}
	master := r.Nodes[0].Addr
	for range replicas {
		r.Nodes = append(r.Nodes, StartRedis(t, append(args, "--replicaof", "127.0.0.1 "+port(master))...))
	}
	for range 3 {
		addr, dir := FreeAddr(t), t.TempDir()
		config := filepath.Join(dir, "sentinel.conf")
		text := fmt.Sprintf("port %s\nbind 127.0.0.1\ndir %s\nsentinel monitor %s 127.0.0.1 %s 2\nsentinel down-after-milliseconds %[3]s 1000\nsentinel failover-timeout %[3]s 5000\n",
			port(addr), dir, SentinelName, port(master))
		if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		p := &Process{t: t, Addr: addr, log: filepath.Join(dir, "log"), ready: func() error { return pong(addr) },
			command: []string{program(t, "redis-sentinel"), config}}
		t.Cleanup(p.Kill)
		p.Start()
		r.Sentinels = append(r.Sentinels, p)
	}
	return r
}

// Master returns the number of the node that at least two Sentinels take for
// the master; -1 if there is none.
func (r *RedisSentinel) Master() int {
	votes := map[string]int{}
	for _, s := range r.Sentinels {
		text, err := ask(s.Addr, "SENTINEL GET-MASTER-ADDR-BY-NAME "+SentinelName+"\r\n")
		if parts := strings.Split(text, "\r\n"); err == nil && len(parts) > 4 {
			votes[parts[2]+":"+parts[4]]++
		}
	}
	for n, p := range r.Nodes {
		if votes[p.Addr] > 1 {
			return n
		}
	}
	return -1
}

// Role returns "master" or "slave", as the node reports it.
func (r *RedisSentinel) Role(n int) string {
	text, err := ask(r.Nodes[n].Addr, "INFO replication\r\n")
	if err != nil {
		return ""
	}
	_, role, _ := strings.Cut(text, "role:")
	role, _, _ = strings.Cut(role, "\r\n")
	return role
}
