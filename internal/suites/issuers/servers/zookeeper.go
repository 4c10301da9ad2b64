package servers

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/fencepost-go/fencepost/internal/process"
)

// ZooKeeperTick is the tickTime of the servers.
const ZooKeeperTick = 400 * time.Millisecond

// ZooKeeper is an ensemble, or a standalone server.
type ZooKeeper struct {
	Nodes []*process.Server
	// Dirs are the nodes' data directories.
	Dirs []string
}

// Addrs returns the nodes' addresses.
func (z *ZooKeeper) Addrs() []string { return addrs(z.Nodes) }

// StartZooKeeper starts an ensemble of n servers; one is standalone. The lines
// are added to each server's configuration.
func StartZooKeeper(t process.TB, n int, lines ...string) *ZooKeeper {
	t.Helper()
	return StartZooKeeperVia(t, n, nil, lines...)
}

// StartZooKeeperVia starts an ensemble in which a follower reaches the leader,
// which listens at addr, under the address that via returns.
func StartZooKeeperVia(t process.TB, n int, via func(follower, leader int, addr string) string, lines ...string) *ZooKeeper {
	t.Helper()
	java, classes := process.Find(t, "java"), jar(t, "zookeeper.jar")+":"+jar(t, "slf4j-simple.jar")
	z := &ZooKeeper{}
	var quorum, election []string
	for range n {
		quorum, election = append(quorum, process.FreeAddr(t)), append(election, process.FreeAddr(t))
	}
	for id := range n {
		addr, dir := process.FreeAddr(t), t.TempDir()
		z.Dirs = append(z.Dirs, filepath.Join(dir, "data"))
		z.Wipe(t, id)
		members := ""
		for k := 0; k < n && n > 1; k++ {
			to := quorum[k]
			if via != nil && k != id {
				to = via(id, k, to)
			}
			members += fmt.Sprintf("server.%d=127.0.0.1:%s:%s\n", k+1, port(to), port(election[k]))
		}
		config := fmt.Sprintf("tickTime=%d\ninitLimit=50\nsyncLimit=10\ndataDir=%s\nclientPort=%s\nclientPortAddress=127.0.0.1\nmaxClientCnxns=0\n4lw.commands.whitelist=srvr,mntr\n%s%s\n",
			ZooKeeperTick.Milliseconds(), z.Dirs[id], port(addr), members, strings.Join(lines, "\n"))
		if err := os.WriteFile(filepath.Join(dir, "zoo.cfg"), []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
		z.Nodes = append(z.Nodes, process.Serve(t, &process.Server{Addr: addr, Dir: dir, Ready: func() error { return zooKeeperReady(addr) },
			Command: []string{java, "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dzookeeper.admin.enableServer=false",
				"-Dzookeeper.forceSync=no", "-Dznode.container.checkIntervalMs=3600000", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", classes,
				"org.apache.zookeeper.server.quorum.QuorumPeerMain", filepath.Join(dir, "zoo.cfg")}}))
	}
	for _, p := range z.Nodes {
		p.Await()
	}
	return z
}

// jar finds a Java archive, or says how to install it.
func jar(t process.TB, name string) string {
	t.Helper()
	for _, dir := range []string{"/usr/share/java/", "/usr/local/share/java/"} {
		if _, err := os.Stat(dir + name); err == nil {
			return dir + name
		}
	}
	t.Fatalf("%s is not installed; run .ci/setup servers to install it", name)
	return ""
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
func (z *ZooKeeper) Leader(t process.TB) int {
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

// Wipe deletes a node's data; the node must not be running.
func (z *ZooKeeper) Wipe(t process.TB, n int) {
	t.Helper()
	err := os.RemoveAll(z.Dirs[n])
	if err == nil {
		err = os.MkdirAll(z.Dirs[n], 0o700)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(z.Dirs[n], "myid"), fmt.Append(nil, n+1), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}
