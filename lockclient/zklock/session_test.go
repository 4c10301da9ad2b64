package zklock

import (
	"errors"
	"net"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
)

// TestCloseBesideAnExpiry: a session expires, and Close is called at once. Close waits
// for the session's connection too: it used to be closed later, under a wait group that
// Close might already have waited for.
func TestCloseBesideAnExpiry(t *testing.T) {
	i, err := New([]string{"127.0.0.1:1"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	s := &session{i: i, done: make(chan struct{}), up: make(chan struct{})}
	s.conn, _, err = zk.Connect(i.servers, sessionFor, zk.WithLogger(s), zk.WithDialer(func(string, string, time.Duration) (net.Conn, error) {
		return nil, errors.New("nobody is there")
	}))
	if err != nil {
		t.Fatal(err)
	}
	i.latest = s
	s.end()
	i.Close()
	refused := make(chan error, 1)
	go func() {
		_, _, err := s.conn.Exists("/")
		refused <- err
	}()
	select {
	case err := <-refused:
		if !errors.Is(err, zk.ErrConnectionClosed) && !errors.Is(err, zk.ErrClosing) {
			t.Errorf("Close has returned, and a request gets: %v", err)
		}
	case <-time.After(5 * time.Second):
		t.Error("Close has returned, and the client still waits for a connection")
	}
}
