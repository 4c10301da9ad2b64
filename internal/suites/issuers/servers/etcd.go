package servers

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/fencepost-go/fencepost/internal/process"
)

// EtcdVariable makes a process a node. A program that calls [StartEtcd] must
// first call Main of package etcdnode.
const EtcdVariable = "FENCEPOST_ETCD_NODE"

// Etcd is a cluster.
type Etcd struct{ Nodes []*process.Server }

// Addrs returns the nodes' addresses.
func (e *Etcd) Addrs() []string { return addrs(e.Nodes) }

// EtcdOptions are those of a cluster.
type EtcdOptions struct {
	// Durable makes commits wait for the disk.
	Durable bool
	// Via, if not nil, returns the address under which the other nodes reach
	// the one that listens at peer.
	Via func(peer string) string
}

// StartEtcd starts a cluster of n nodes.
func StartEtcd(t process.TB, n int) *Etcd { t.Helper(); return StartEtcdWith(t, n, EtcdOptions{}) }

// StartEtcdWith starts a cluster with options.
func StartEtcdWith(t process.TB, n int, opts EtcdOptions) *Etcd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var members, peers, named []string
	for id := range n {
		peers = append(peers, process.FreeAddr(t))
		named = append(named, peers[id])
		if opts.Via != nil {
			named[id] = opts.Via(peers[id])
		}
		members = append(members, fmt.Sprintf("n%d=http://%s", id, named[id]))
	}
	e := &Etcd{}
	for id := range n {
		addr, dir := process.FreeAddr(t), t.TempDir()
		settings := []string{fmt.Sprint("n", id), filepath.Join(dir, "data"), addr, peers[id], named[id], strings.Join(members, ","), strconv.FormatBool(opts.Durable)}
		e.Nodes = append(e.Nodes, process.Serve(t, &process.Server{Addr: addr, Dir: dir, Command: []string{self},
			Env: []string{EtcdVariable + "=" + strings.Join(settings, "\n")}, Ready: func() error { return healthy(addr) }}))
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
