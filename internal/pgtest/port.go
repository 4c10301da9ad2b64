package pgtest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
)

// Ports are taken below the ephemeral range (32768 and up on Linux, 49152
// elsewhere). A port from that range could be lost to any other listener of the
// test while a server is down between Kill and Restart, when its URL must not
// change.
const (
	firstPort = 20000
	lastPort  = 32767
)

// freePort returns a loopback port on which nobody listens now. Another process
// can still take it first, so callers must be ready to try another.
func freePort() (int, error) {
	var cause error
	for range 100 {
		port := firstPort + rand.IntN(lastPort-firstPort+1)
		listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			cause = err
			continue
		}
		if err := listener.Close(); err != nil {
			return 0, fmt.Errorf("pgtest: %w", err)
		}
		return port, nil
	}
	return 0, errors.Join(errors.New("pgtest: no free port on 127.0.0.1"), cause)
}
