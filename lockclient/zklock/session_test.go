package zklock

import (
	"errors"
	"net"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/testkit"
)

// TestCloseBesideAnExpiry: a session expires, and Close is called at once. Close waits
// for the session's connection too: it used to be closed later, under a wait group that
// Close might already have waited for.
func TestCloseBesideAnExpiry(t *testing.T) {
	i, err := New([]string{"127.0.0.1:1"}, nil)
	testkit.Must(t, err)
	s := &session{i: i, done: make(chan struct{}), up: make(chan struct{})}
	s.conn, _, err = zk.Connect(i.servers, sessionFor, zk.WithLogger(s), zk.WithDialer(func(string, string, time.Duration) (net.Conn, error) {
		return nil, errors.New("nobody is there")
	}))
	testkit.Must(t, err)
	i.latest = s
	s.end()
	i.Close()
	refused := make(chan error, 1)
	go func() {
		_, _, err := s.conn.Exists("/")
		refused <- err
	}()
	if err := testkit.Receive(t, "a request after Close", refused); !errors.Is(err, zk.ErrConnectionClosed) && !errors.Is(err, zk.ErrClosing) {
		t.Errorf("Close has returned, and a request gets: %v", err)
	}
}

// TestP3BaseOnlyGrows: whichever of two readers of the base comes last, the higher one is
// kept, and so is the highest token of a grant.
func TestP3BaseOnlyGrows(t *testing.T) {
	i, err := New([]string{"127.0.0.1:1"}, nil)
	testkit.Must(t, err)
	for _, value := range []int64{5, 7, 6} {
		i.learn(base{value: value})
	}
	for _, token := range []guard.Token{15, 17, 16} {
		testkit.Check(t, i.forward(14, token))
	}
	if seen, known := i.known(); known.value != 7 || seen != 17 {
		t.Errorf("the base is %d and the token %v, want 7 and 17", known.value, seen)
	}
}
