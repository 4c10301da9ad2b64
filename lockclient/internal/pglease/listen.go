package pglease

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/internal/pause"
)

// listener is an issuer's one listening connection and the watches that it
// serves. The connection is opened when somebody waits, closed when nobody has
// for a while, and reopened when it breaks.
//
// No wake-up is lost, whatever the order of a release, the setting of the wake
// mark and the start of listening, because a waiter sleeps only after these two
// steps in this order:
//
//  1. It listens: subscribed, and the connection's LISTEN has committed.
//  2. It has set the wake mark on a lease that was still held then, or has
//     found one that still lasts: [watchSQL].
//
// A release and a mark take the same row's lock, so one is before the other. If
// the mark is first, the release sees it and notifies, and the notification
// reaches step 1's connection. If the release is first, the mark finds nothing
// held, and the waiter asks instead of sleeping. A mark that was found, not
// set, existed before the row version that was read; a release after that
// version saw it. If the connection breaks after step 1, every watch is woken.
// A mark that ran out unnoticed, or a connection that died silently, costs the
// waiter at most the time until it asks again on its own: no notification to oneself is
// sent from time to time to find out earlier.
//
// A named process that does not come, because it has died or no longer wants
// the lease, costs the tenth of a second for which the lease is kept: the next
// in the queue looks then, and the one after it another tenth later. The next three
// are notified of their places.
//
// Nobody else is notified of a release, since each notification takes time from
// the process whose turn it is: each process has a channel of its own, and
// [Channel] wakes everybody when no process is named.
type listener struct {
	issuer *Issuer
	poll   bool // never listens
	// connect opens a connection.
	connect func(ctx context.Context) (*pgx.Conn, error)

	stay time.Duration // how long the place in the queue is kept when nobody waits
	idle time.Duration // how long to stay when nobody waits
	// held returns who has a lease and joins the queue of waiters.
	held func(ctx context.Context, w driver.Watch) (*driver.HeldError, error)

	ctx    context.Context // has the values of the last watch's
	values *borrowed
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu      sync.Mutex
	subs    map[*subscription]struct{}
	leaving map[string]*time.Timer // by topic: until the process leaves the queue that nobody of it needs
	running bool
	closed  bool
	up      bool
	opening chan struct{} // closed when a connection that is being opened listens or failed; nil if none is
	used    time.Time     // when somebody waited last
	told    bool          // of a failure
}

// subscription is one waiter's watch.
type subscription struct {
	resource, topic string
	leaseID         string
	wake            func()
	joined          bool        // its process may be in the queue
	turn            *time.Timer // until those before it in the queue have had their time
}

const (
	stayInLine = 250 * time.Millisecond
	listenIdle = 30 * time.Second
	// lastListenPause is the longest pause between two tries to listen. Behind a
	// pooler each try costs a connection.
	lastListenPause = 30 * time.Second
)

var (
	// errPooler: a pooler may give the connection's server process to another
	// client with its next transaction, which would then be the one that listens.
	errPooler = errors.New("the backend PID differs from the handshake's (a pooler): the connection does not listen, and waiters poll")
)

func newListener(i *Issuer, poll bool) *listener {
	l := &listener{
		issuer: i, poll: poll, subs: map[*subscription]struct{}{}, leaving: map[string]*time.Timer{},
		stay: stayInLine, idle: listenIdle,
	}
	l.values = &borrowed{Context: context.Background()}
	l.ctx, l.cancel = context.WithCancel(l.values)
	l.connect = func(ctx context.Context) (*pgx.Conn, error) {
		config := i.Pool.Config()
		return open(ctx, config, config.ConnConfig, func(settings *pgx.ConnConfig) {
			settings.OnNotification = nil // the driver's own queue, which is read here
		})
	}
	l.held = func(ctx context.Context, w driver.Watch) (held *driver.HeldError, err error) {
		err = i.aside(ctx, func(ctx context.Context, conn *pgx.Conn, lockTimeout string) (err error) {
			held, err = i.watch(ctx, conn, w, lockTimeout)
			return err
		})
		return held, err
	}
	return l
}

func (l *listener) subscribe(ctx context.Context, resource, leaseID string, wake func()) *subscription {
	l.values.lend(ctx)
	s := &subscription{resource: resource, topic: Topic(resource), leaseID: leaseID, wake: wake}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.subs[s] = struct{}{}
	if !l.running && !l.closed && !l.poll {
		l.running, l.opening = true, make(chan struct{})
		l.wg.Go(l.run)
	}
	return s
}

// join records whether the subscription's process may be in the queue. A waiter that
// polls is not, and has no place to give up.
func (l *listener) join(s *subscription, joined bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s.joined = joined
}

func (l *listener) unsubscribe(s *subscription) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, waits := l.subs[s]; waits && s.joined {
		l.left(s)
	}
	delete(l.subs, s)
	s.wait(0, nil)
	l.used = time.Now()
}

// left gives up the place in the queue unless a waiter of this process comes back soon, as
// one does that only looks or asks. Otherwise each place that was abandoned would cost
// the others the time for which a lease is kept. The mutex is held.
func (l *listener) left(s *subscription) {
	if l.leaving[s.topic] != nil || l.closed {
		return
	}
	var timer *time.Timer
	timer = time.AfterFunc(l.stay, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.leaving[s.topic] != timer {
			return
		}
		delete(l.leaving, s.topic)
		if !l.closed && !l.waits(s.topic) {
			l.wg.Go(func() { l.unwatch(s) })
		}
	})
	l.leaving[s.topic] = timer
}

// unwatch takes the process out of the queue. Who has come back by then may have been
// taken out as well, and looks again.
func (l *listener) unwatch(s *subscription) {
	l.issuer.aside(l.ctx, func(ctx context.Context, conn *pgx.Conn, lockTimeout string) error {
		_, err := conn.Exec(ctx, unwatchSQL, s.resource, l.issuer.process, lockTimeout)
		return err
	}) // if it fails, the mark runs out soon
	l.mu.Lock()
	defer l.mu.Unlock()
	for other := range l.subs {
		if other.topic == s.topic {
			other.wake()
		}
	}
}

// waits reports whether this process watches the topic; the mutex is held.
func (l *listener) waits(topic string) bool {
	for s := range l.subs {
		if s.topic == topic {
			return true
		}
	}
	return false
}

// granted forgets a place: who is granted the lease has left the queue.
func (l *listener) granted(resource string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.leaving) > 0 {
		delete(l.leaving, Topic(resource))
	}
}

// listening reports whether notifications arrive. While the connection is being
// opened it waits, at most for atMost: polling during that time would slow down the
// opening, above all if many processes start at the same time. It does not wait
// for a connection that follows a failed one.
func (l *listener) listening(ctx context.Context, atMost time.Duration) bool {
	l.mu.Lock()
	up, opening := l.up, l.opening
	l.mu.Unlock()
	if up || opening == nil || atMost <= 0 {
		return up
	}
	timer := time.NewTimer(atMost)
	defer timer.Stop()
	select {
	case <-opening:
	case <-timer.C:
	case <-ctx.Done():
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.up
}

// settle records how the opening ended; l.mu is held.
func (l *listener) settle(up bool) {
	l.up = up
	if l.opening != nil {
		close(l.opening)
		l.opening = nil
	}
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
		} else {
			l.mu.Lock()
			l.settle(false)
			l.mu.Unlock()
		}
		if err == nil || l.ctx.Err() != nil {
			continue
		}
		l.report(err)
		pause.For(l.ctx, pause.Jitter(min(lastListenPause, 20*time.Millisecond<<min(attempt, 12)), 2), nil)
	}
}

// stop ends run if nobody waits, and records that in the same step: a waiter
// that comes later starts another run.
func (l *listener) stop() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ctx.Err() == nil && (len(l.subs) > 0 || time.Since(l.used) < l.idle) {
		return false
	}
	l.running = false
	l.settle(false)
	return true
}

func (l *listener) unused() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.subs) == 0 && time.Since(l.used) >= l.idle
}

// report reports a failure, or with a nil error its end, when that is new.
func (l *listener) report(err error) {
	l.mu.Lock()
	news := l.told != (err != nil)
	l.told = err != nil
	l.mu.Unlock()
	switch {
	case news && err != nil:
		l.issuer.log(l.ctx, slog.LevelWarn, "lock_listen_failed", slog.String("error", err.Error()))
	case news:
		l.issuer.log(l.ctx, slog.LevelInfo, "lock_listen_restored")
	}
}

// session listens on one connection until it breaks, nobody needs it (no error)
// or the issuer is closed.
func (l *listener) session() (worked bool, err error) {
	connecting, cancel := context.WithTimeout(l.ctx, l.issuer.OpTimeout)
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
	pooled, err := isPooled(connecting, conn)
	if err != nil {
		return false, err
	}
	if pooled {
		return false, errPooler
	}
	listen := fmt.Sprintf("LISTEN %q; LISTEN %q", Channel, processChannel(l.issuer.process))
	if _, err := conn.PgConn().Exec(connecting, listen).ReadAll(); err != nil {
		return false, fmt.Errorf("listening: %w", err)
	}
	l.mu.Lock()
	l.settle(true)
	l.mu.Unlock()
	l.report(nil)
	defer l.lost()
	for !l.unused() {
		ctx, cancel := context.WithTimeout(l.ctx, l.idle) // then it looks whether somebody waits
		n, err := conn.WaitForNotification(ctx)
		late := ctx.Err() != nil && l.ctx.Err() == nil && !conn.IsClosed()
		cancel()
		switch {
		case err == nil:
			l.heard(n.Payload)
		case !late:
			return true, fmt.Errorf("the listening connection: %w", err)
		}
	}
	return true, nil
}

// isPooled compares the server process with the one that the handshake named,
// which a pooler invents.
func isPooled(ctx context.Context, conn *pgx.Conn) (bool, error) {
	results, err := conn.PgConn().Exec(ctx, "SELECT pg_catalog.pg_backend_pid()").ReadAll()
	if err != nil || len(results) != 1 || len(results[0].Rows) != 1 {
		return false, fmt.Errorf("asking for the server process: %w", err)
	}
	return string(results[0].Rows[0][0]) != fmt.Sprint(conn.PgConn().PID()), nil
}

// lost wakes everybody: from now on releases may be missed. The next connection
// is about to be opened.
func (l *listener) lost() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.up, l.opening = false, make(chan struct{})
	for s := range l.subs {
		s.wake()
	}
}

// heard wakes those that watch a topic. If other processes are before this one in
// the queue, its waiters look after the lease has been kept for each of those.
func (l *listener) heard(payload string) {
	topic, line, _ := strings.Cut(payload, " ")
	turn := max(0, slices.Index(strings.Fields(line), l.issuer.process))
	l.mu.Lock()
	defer l.mu.Unlock()
	for s := range l.subs {
		switch {
		case s.topic != topic:
		case turn > 0:
			s.wait(time.Duration(turn)*keepFor, func() { l.look(s) })
		default:
			s.wait(0, nil)
			s.wake()
		}
	}
}

// look wakes a waiter if the lease is still free, or that is not known. If somebody has
// it, the waiter is in the queue again: the process that was granted removed those
// before it.
func (l *listener) look(s *subscription) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, waits := l.subs[s]; !waits || l.closed {
		return
	}
	l.wg.Go(func() {
		held, err := l.held(l.ctx, driver.Watch{Resource: s.resource, LeaseID: s.leaseID})
		if held == nil || err != nil {
			s.wake()
		}
	})
}

// wait arranges for f to be called after d in place of the call set before;
// with a nil f, nothing is called. The listener's mutex is held.
func (s *subscription) wait(d time.Duration, f func()) {
	if s.turn != nil {
		s.turn.Stop()
	}
	if s.turn = nil; f != nil {
		s.turn = time.AfterFunc(d, f)
	}
}
