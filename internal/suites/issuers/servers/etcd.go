package servers

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// EtcdVariable makes a process a node. A program that calls [StartEtcd] must
// first call Main of package etcdnode.
const EtcdVariable = "FENCEPOST_ETCD_NODE"

// Etcd is a cluster.
type Etcd struct {
	Nodes []*Process
	links []*Link  // to each node's peer address; nil unless [StartEtcdLinked]
	names []string // the nodes' own names
}

// Addrs returns the nodes' addresses.
func (e *Etcd) Addrs() []string {
	var out []string
	for _, n := range e.Nodes {
		out = append(out, n.Addr)
	}
	return out
}

// StartEtcd starts a cluster of n nodes.
func StartEtcd(t TB, n int) *Etcd { t.Helper(); return startEtcd(t, n, false, false) }

// StartEtcdDurable starts one node whose commits wait for the disk.
func StartEtcdDurable(t TB) *Etcd { t.Helper(); return startEtcd(t, 1, false, true) }

// StartEtcdLinked starts a cluster whose nodes can be cut off from each other.
func StartEtcdLinked(t TB, n int) *Etcd { t.Helper(); return startEtcd(t, n, true, false) }

func startEtcd(t TB, n int, linked, durable bool) *Etcd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	e := &Etcd{}
	var members, clients, peers, told []string
	for id := range n {
		clients, peers = append(clients, FreeAddr(t)), append(peers, FreeAddr(t))
		told = append(told, peers[id])
		if linked {
			e.links = append(e.links, NewLink(t, peers[id]))
			told[id] = e.links[id].Addr()
		}
		members = append(members, fmt.Sprintf("n%d=http://%s", id, told[id]))
	}
	for id := range n {
		addr, dir := clients[id], t.TempDir()
		p := &Process{t: t, Addr: addr, log: filepath.Join(dir, "log"), command: []string{self},
			env:   []string{EtcdVariable + "=" + strings.Join([]string{fmt.Sprint("n", id), filepath.Join(dir, "data"), addr, peers[id], told[id], strings.Join(members, ","), strconv.FormatBool(durable)}, "\n")},
			ready: func() error { return healthy(addr) }}
		e.Nodes = append(e.Nodes, p)
		p.launch()
		t.Cleanup(p.Kill)
	}
	for _, p := range e.Nodes {
		p.Await()
		if linked {
			e.names = append(e.names, memberID(t, p.Addr))
		}
	}
	return e
}

// Cut cuts a node off from the others, or heals it. Its clients still reach it.
func (e *Etcd) Cut(n int, cut bool) {
	for k, l := range e.links {
		switch {
		case k == n:
			l.Cut(cut)
		case cut:
			l.CutFrom(e.names[n])
		default:
			l.CutFrom("")
		}
	}
}

// memberID returns a node's ID in its requests to others.
func memberID(t TB, addr string) string {
	t.Helper()
	resp, err := http.Post("http://"+addr+"/v3/maintenance/status", "application/json", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var status struct {
		Header struct {
			ID uint64 `json:"member_id,string"`
		} `json:"header"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&status); err != nil || status.Header.ID == 0 {
		t.Fatalf("a node's ID: %+v, %v", status, err)
	}
	return strconv.FormatUint(status.Header.ID, 16)
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
