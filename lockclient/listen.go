package lockclient

import (
	"context"
	"errors"
	"fmt"
	"github.com/fencepost-go/fencepost/lockclient/internal/pause"
	"github.com/fencepost-go/fencepost/lockclient/internal/pglease"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// listener is a client's one listening connection and the waiters that it
// serves. It is opened when somebody waits, closed when nobody has for a while,
// and opened again when it breaks.
type listener struct {
	// connect opens a connection, notify sends a notification by another one.
	connect func(ctx context.Context) (*pgx.Conn, error)
	notify  func(ctx context.Context, payload string) error
	// failed is told once that notifications do not arrive, and restored that
	// they do again.
	failed   func(error)
	restored func()
	timeout  time.Duration // of connecting

	idle  time.Duration // how long to stay when nobody waits
	quiet time.Duration // how long to trust a connection that says nothing
	test  time.Duration // how long a notification to oneself may take

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu      sync.Mutex
	subs    map[*subscription]struct{}
	running bool
	closed  bool
	used    time.Time     // when somebody waited last
	down    chan struct{} // not nil while notifications arrive; closed when they may not
	told    bool          // failed was called
}

const (
	listenIdle  = 30 * time.Second
	listenQuiet = 10 * time.Second
	listenTest  = 2 * time.Second
	// lastListenPause is the longest pause between two tries to listen. A pooler
	// that delivers nothing costs a connection each.
	lastListenPause = 30 * time.Second
)

// errUndelivered: what a pooler in transaction mode makes of LISTEN, which it
// answers as if it had worked.
var errUndelivered = errors.New("LISTEN was accepted, but a notification to oneself does not arrive; waiters poll (a pooler in transaction mode?)")

func newListener(l *listener) *listener {
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.subs = map[*subscription]struct{}{}
	l.idle, l.quiet, l.test = listenIdle, listenQuiet, listenTest
	return l
}

func (l *listener) subscribe(topic string) *subscription {
	s := &subscription{topic: topic, rung: make(chan struct{}, 1)}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.subs[s] = struct{}{}
	if !l.running && !l.closed {
		l.running = true
		l.wg.Go(l.run)
	}
	return s
}

func (l *listener) unsubscribe(s *subscription) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.subs, s)
	l.used = time.Now()
}

func (l *listener) listening() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.down
}

func (l *listener) close() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.cancel()
	l.wg.Wait()
}

// run keeps a connection until nobody needs it.
func (l *listener) run() {
	for attempt := 0; !l.stop(); attempt++ {
		worked, err := l.session()
		if worked {
			attempt = 0
		}
		if err == nil || l.ctx.Err() != nil {
			continue
		}
		l.tell(err)
		pause.For(l.ctx, pause.Jitter(min(lastListenPause, 20*time.Millisecond<<min(attempt, 12)), 2), nil)
	}
}

// stop ends run if nobody waits, in one step with saying so: a waiter that
// comes after starts another run.
func (l *listener) stop() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ctx.Err() == nil && (len(l.subs) > 0 || time.Since(l.used) < l.idle) {
		return false
	}
	l.running = false
	return true
}

func (l *listener) unused() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.subs) == 0 && time.Since(l.used) >= l.idle
}

func (l *listener) tell(err error) {
	l.mu.Lock()
	again := l.told
	l.told = true
	l.mu.Unlock()
	if !again {
		l.failed(err)
	}
}

// session listens on one connection until it breaks, nobody needs it (no error)
// or the client is closed.
func (l *listener) session() (worked bool, err error) {
	connecting, cancel := context.WithTimeout(l.ctx, l.timeout)
	defer cancel()
	conn, err := l.connect(connecting)
	if err != nil {
		return false, fmt.Errorf("connecting in order to listen: %w", err)
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		conn.Close(closing)
	}()
	if _, err := conn.PgConn().Exec(connecting, `LISTEN "`+pglease.Channel+`"`).ReadAll(); err != nil {
		return false, fmt.Errorf("listening: %w", err)
	}
	if err := l.selfTest(conn); err != nil {
		return false, err
	}
	l.up()
	defer l.lost()
	for {
		heard, err := l.receive(conn, l.quiet, "")
		switch {
		case err != nil:
			return true, err
		case l.unused():
			return true, nil
		case heard:
			continue
		}
		// Silence: of a server with nothing to say, or of a connection that is
		// dead and does not know it.
		if err := l.selfTest(conn); err != nil {
			return true, err
		}
	}
}

func (l *listener) up() {
	l.mu.Lock()
	l.down = make(chan struct{})
	again := l.told
	l.told = false
	l.mu.Unlock()
	if again {
		l.restored()
	}
}

func (l *listener) lost() {
	l.mu.Lock()
	close(l.down)
	l.down = nil
	l.mu.Unlock()
}

// selfTest has another connection notify this one. It must be another one: to
// the connection that sends it, a notification comes with the answer, which even
// a pooler in transaction mode passes on.
func (l *listener) selfTest(conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(l.ctx, l.timeout)
	defer cancel()
	nonce := "test " + pglease.NewLeaseID()
	if err := l.notify(ctx, nonce); err != nil {
		return fmt.Errorf("notifying oneself: %w", err)
	}
	heard, err := l.receive(conn, l.test, nonce)
	if err == nil && !heard {
		err = errUndelivered
	}
	return err
}

// receive passes on one notification, or all up to the payload until; heard is
// false if the time passed first.
func (l *listener) receive(conn *pgx.Conn, atMost time.Duration, until string) (heard bool, err error) {
	ctx, cancel := context.WithTimeout(l.ctx, atMost)
	defer cancel()
	for {
		n, err := conn.WaitForNotification(ctx)
		switch {
		case err == nil:
		case l.ctx.Err() != nil:
			return false, l.ctx.Err()
		case ctx.Err() != nil && !conn.IsClosed():
			return false, nil
		default:
			return false, fmt.Errorf("the listening connection: %w", err)
		}
		if n.Payload == until {
			return true, nil
		}
		l.ring(n.Payload)
		if until == "" {
			return true, nil
		}
	}
}

// ring wakes the waiters for a topic; one per client, unless a failure broke
// the line.
func (l *listener) ring(topic string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for s := range l.subs {
		if s.topic == topic {
			s.ring()
		}
	}
}
