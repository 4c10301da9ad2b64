package servers

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// ZooKeeperTick is the tickTime of the servers.
const ZooKeeperTick = 400 * time.Millisecond

// ZooKeeper is an ensemble, or a standalone server.
type ZooKeeper struct {
	Nodes []*Process
	dirs  []string
	links [][]*Link // by follower and leader
}

// Addrs returns the nodes' addresses.
func (z *ZooKeeper) Addrs() []string {
	var out []string
	for _, n := range z.Nodes {
		out = append(out, n.Addr)
	}
	return out
}

// StartZooKeeper starts an ensemble of n servers; one is standalone. The lines
// are added to each server's configuration.
func StartZooKeeper(t TB, n int, lines ...string) *ZooKeeper {
	t.Helper()
	java := program(t, "java")
	var classes []string
	for _, jar := range []string{"zookeeper.jar", "slf4j-simple.jar"} {
		found := ""
		for _, dir := range []string{"/usr/share/java", "/usr/local/share/java"} {
			if _, err := os.Stat(dir + "/" + jar); err == nil {
				found = dir + "/" + jar
			}
		}
		if found == "" {
			t.Fatalf("%s is not installed; run .ci/setup servers to install it", jar)
		}
		classes = append(classes, found)
	}
	z := &ZooKeeper{}
	var addrs, quorum, election []string
	for range n {
		addrs, quorum, election = append(addrs, FreeAddr(t)), append(quorum, FreeAddr(t)), append(election, FreeAddr(t))
	}
	for id, addr := range addrs {
		dir := t.TempDir()
		z.dirs = append(z.dirs, filepath.Join(dir, "data"))
		z.wipe(t, id)
		// A follower reaches each leader through a link of its own.
		members, links := "", make([]*Link, n)
		for k := range n {
			to := quorum[k]
			if k != id {
				links[k] = NewLink(t, quorum[k])
				to = links[k].Addr()
			}
			if n > 1 {
				members += fmt.Sprintf("server.%d=127.0.0.1:%s:%s\n", k+1, port(to), port(election[k]))
			}
		}
		z.links = append(z.links, links)
		config := fmt.Sprintf("tickTime=%d\ninitLimit=50\nsyncLimit=10\ndataDir=%s\nclientPort=%s\nclientPortAddress=127.0.0.1\nmaxClientCnxns=0\n4lw.commands.whitelist=srvr,mntr\n%s%s\n",
			ZooKeeperTick.Milliseconds(), z.dirs[id], port(addr), members, strings.Join(lines, "\n"))
		if err := os.WriteFile(filepath.Join(dir, "zoo.cfg"), []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
		p := &Process{t: t, Addr: addr, log: filepath.Join(dir, "log"), ready: func() error { return zooKeeperReady(addr) },
			command: []string{java, "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dzookeeper.admin.enableServer=false",
				"-Dzookeeper.forceSync=no", "-Dznode.container.checkIntervalMs=3600000", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", strings.Join(classes, ":"),
				"org.apache.zookeeper.server.quorum.QuorumPeerMain", filepath.Join(dir, "zoo.cfg")}}
		z.Nodes = append(z.Nodes, p)
		p.launch()
		t.Cleanup(p.Kill)
	}
	for _, p := range z.Nodes {
		p.Await()
	}
	return z
}

func zooKeeperReady(addr string) error {
	text, err := ask(addr, "srvr")
	if err == nil && !strings.Contains(text, "Mode: ") {
		err = fmt.Errorf("srvr says %q", text)
	}
	return err
}

// Mode returns "leader", "follower", "standalone", or "".
func (z *ZooKeeper) Mode(n int) string {
	text, _ := ask(z.Nodes[n].Addr, "srvr")
	_, mode, _ := strings.Cut(text, "Mode: ")
	mode, _, _ = strings.Cut(mode, "\n")
	return strings.TrimSpace(mode)
}

// Leader waits for a leader and returns its number.
func (z *ZooKeeper) Leader(t TB) int {
	t.Helper()
	for began := time.Now(); time.Since(began) < time.Minute; time.Sleep(20 * time.Millisecond) {
		for n := range z.Nodes {
			if z.Mode(n) == "leader" {
				return n
			}
		}
	}
	t.Fatal("no leader after a minute")
	return -1
}

// Cut cuts a node off from the others, or heals it. Its clients still reach it.
func (z *ZooKeeper) Cut(n int, cut bool) {
	for follower, links := range z.links {
		for leader, l := range links {
			if l != nil && (follower == n || leader == n) {
				l.Cut(cut)
			}
		}
	}
}

// Wipe deletes a node's data; the node must not be running.
func (z *ZooKeeper) Wipe(t TB, n int) { z.wipe(t, n) }

func (z *ZooKeeper) wipe(t TB, n int) {
	t.Helper()
	if err := os.RemoveAll(z.dirs[n]); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(z.dirs[n], 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(z.dirs[n], "myid"), fmt.Append(nil, n+1), 0o600); err != nil {
		t.Fatal(err)
	}
}

// Dir returns a node's data directory.
func (z *ZooKeeper) Dir(n int) string { return z.dirs[n] }
