package servers

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// EtcdVariable is what makes a process a node; see package etcdnode, whose Main
// the program that calls [StartEtcd] calls first.
const EtcdVariable = "FENCEPOST_ETCD_NODE"

// Etcd is a cluster.
type Etcd struct{ Nodes []*Process }

// Addrs are the nodes'.
func (e *Etcd) Addrs() []string {
	var out []string
	for _, n := range e.Nodes {
		out = append(out, n.Addr)
	}
	return out
}

// StartEtcd starts a cluster of n nodes.
func StartEtcd(t TB, n int) *Etcd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var members, clients, peers []string
	for id := range n {
		clients, peers = append(clients, FreeAddr(t)), append(peers, FreeAddr(t))
		members = append(members, fmt.Sprintf("n%d=http://%s", id, peers[id]))
	}
	e := &Etcd{}
	for id := range n {
		addr, dir := clients[id], t.TempDir()
		p := &Process{t: t, Addr: addr, log: filepath.Join(dir, "log"), command: []string{self},
			env:   []string{EtcdVariable + "=" + strings.Join([]string{fmt.Sprint("n", id), filepath.Join(dir, "data"), addr, peers[id], strings.Join(members, ",")}, "\n")},
			ready: func() error { return healthy(addr) }}
		e.Nodes = append(e.Nodes, p)
		p.launch()
		t.Cleanup(p.Kill)
	}
	for _, p := range e.Nodes {
		p.Await()
	}
	return e
}

func healthy(addr string) error {
	c := http.Client{Timeout: 5 * time.Second}
	resp, err := c.Get("http://" + addr + "/health")
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	if !strings.Contains(string(text), `"true"`) {
		return fmt.Errorf("health says %s", text)
	}
	return nil
}
