package pglease

import (
	"context"
	"time"

	"github.com/fencepost-go/fencepost/lockclient/driver"

	"github.com/jackc/pgx/v5"
)

// Statements, for tests that carry them out step by step.
const (
	ReleaseSQL = releaseSQL
	KeepFor    = keepFor
	StayInLine = stayInLine
)

// Process names the issuer in the line of waiters.
func (i *Issuer) Process() string { return i.process }

// Listening reports whether the issuer is notified of releases.
func (i *Issuer) Listening() bool { return i.listener.listening(context.Background(), 0) }

// Subscribe is the first step of Watch.
func (i *Issuer) Subscribe(resource string, wake func()) (stop func()) {
	sub := i.listener.subscribe(context.Background(), resource, "a waiter", wake)
	i.listener.join(sub, true)
	return func() { i.listener.unsubscribe(sub) }
}

// Mark is the last step of Watch.
func (i *Issuer) Mark(ctx context.Context, w driver.Watch) (held *driver.HeldError, err error) {
	return i.watch(ctx, i.Pool, w, "60000")
}

// Look returns who has the lease, and sets no mark.
func (i *Issuer) Look(ctx context.Context, w driver.Watch) (held *driver.HeldError, err error) {
	return i.watch(ctx, i.Pool, driver.Watch{Resource: w.Resource}, "60000")
}

// Listener sets how long the listening connection stays when nobody waits. It is called
// before the first watch.
func (i *Issuer) Listener(idle time.Duration) { i.listener.idle = idle }

// BeforeListen makes f be called before every listening connection is opened;
// its error is that of opening it. It is called before the first watch.
func (i *Issuer) BeforeListen(f func() error) {
	connect := i.listener.connect
	i.listener.connect = func(ctx context.Context) (*pgx.Conn, error) {
		if err := f(); err != nil {
			return nil, err
		}
		return connect(ctx)
	}
}

// Together makes acquires wait until n of them do, and sends them in one
// statement then.
func (i *Issuer) Together(n int) (sent <-chan struct{}) {
	b, done := &i.acquires, make(chan struct{})
	b.inFlight()
	go func() {
		defer close(done)
		b.arrived(n)
		b.end(b.turn)
	}()
	return done
}

// SetBack makes the issuer believe that the server's clock is behind by d more.
func (i *Issuer) SetBack(d time.Duration) {
	i.time.mu.Lock()
	defer i.time.mu.Unlock()
	i.time.ahead -= d
}
