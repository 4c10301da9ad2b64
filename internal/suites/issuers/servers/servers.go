// Package servers starts the engines that the issuers are tested on, as
// separate processes on loopback: redis-server and redis-sentinel, etcd, and
// ZooKeeper. A node can be killed, stopped, continued and started again.
package servers

import (
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/fencepost-go/fencepost/internal/process"
)

func addrs(nodes []*process.Server) (all []string) {
	for _, n := range nodes {
		all = append(all, n.Addr)
	}
	return all
}

func port(addr string) string { return addr[strings.LastIndexByte(addr, ':')+1:] }

// ask sends a line and returns the server's response.
func ask(addr, line string) (string, error) {
	conn, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(2 * time.Second))
	if _, err := fmt.Fprint(conn, line); err != nil {
		return "", err
	}
	buf := make([]byte, 4096)
	n, err := conn.Read(buf)
	if n > 0 {
		err = nil
	}
	return string(buf[:n]), err
}
