package lockhttp

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/internal/pause"
	"github.com/fencepost-go/fencepost/lockclient/internal/waiting"
)

const (
	// heartbeat is how often a stream sends something, so that proxies keep it.
	heartbeat = 15 * time.Second
	// followMost is how many resources one stream may follow.
	followMost = 20
)

// stream is a response of server-sent events.
type stream struct {
	w       http.ResponseWriter
	control *http.ResponseController
}

func newStream(w http.ResponseWriter) *stream {
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no") // nginx would buffer events
	return &stream{w, http.NewResponseController(w)}
}

// send writes one event, or a comment if it has no name. An error means that
// the reader has gone.
func (s *stream) send(name string, data any) error {
	writeInTime(s.w)
	// HTTP/2 resets a stream whose deadline passes even if nothing is written.
	defer func() { _ = s.control.SetWriteDeadline(time.Time{}) }()
	text := []byte(": still here\n\n")
	if name != "" {
		body, err := json.Marshal(data)
		if err != nil {
			return err
		}
		text = fmt.Appendf(nil, "event: %s\ndata: %s\n\n", name, body)
	}
	if _, err := s.w.Write(text); err != nil {
		return err
	}
	return s.control.Flush()
}

// look asks the issuer who has the lease; woken gets a value when to look
// again.
func (s *Server) look(ctx context.Context, w driver.Watch) (watching driver.Watching, woken chan struct{}, err error) {
	woken = make(chan struct{}, 1)
	watching, err = s.watchIssuer(ctx, w, func() {
		select {
		case woken <- struct{}{}:
		default:
		}
	})
	return watching, woken, err
}

// watchIssuer is the issuer's Watch as one exchange.
func (s *Server) watchIssuer(ctx context.Context, w driver.Watch, wake func()) (driver.Watching, error) {
	watching, err := within(ctx, s, "watch", guard.Claim{Resource: w.Resource, LeaseID: w.LeaseID},
		func(ctx context.Context) (driver.Watching, error) { return s.issuer.Watch(ctx, w, wake) },
		func(w driver.Watching, err error) {
			if err == nil {
				w.Stop()
			}
		})
	var failed *guard.FailedError
	if errors.Is(err, guard.ErrOutcomeUnknown) && errors.As(err, &failed) {
		err = guard.Unavailable("watch", guard.Claim{Resource: w.Resource}, failed.Cause) // a watch writes nothing that matters
	}
	return watching, err
}

// blind is a watcher's error. An issuer that cannot report changes at all says so
// with nothing around the error: then it does not help to ask again.
func blind(err error) error {
	if err == driver.ErrNoWatch {
		return &httpError{kind: &kindUnsupported, err: err}
	}
	return err
}

// watch serves Watch of [driver.Issuer] to the Go client: one event says who
// has the lease, a second, "wake", that it is worth asking again. A waiter, which
// names its lease ID, queues with the others of this server; a watcher does not.
func (s *Server) watch(w http.ResponseWriter, r *http.Request, id *Identity) error {
	q := queryOf(r)
	asked := driver.Watch{Resource: q.text("resource"), LeaseID: q.text("leaseId")}
	if err := q.end(); err != nil {
		return err
	}
	if err := allowed(id, asked.Resource); err != nil {
		return err
	}
	if err := renamed(guard.ValidateLeaseID(asked.LeaseID), "leaseId"); err != nil {
		return err
	}
	done, ok := s.usage.wait(id)
	if !ok {
		return &httpError{kind: &kindTooMany}
	}
	defer done()
	ctx, cancel := context.WithTimeout(r.Context(), s.opts.MaxWait)
	defer cancel()
	var out *stream // nil until the first event
	tell := func(held *driver.HeldError) bool {
		if out != nil {
			return true
		}
		out = newStream(w)
		return out.send("holder", holderEvent{asked.Resource, holderOf(held, id.sees()), time.Now()}) == nil
	}
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	rest := func(signal <-chan struct{}, after time.Duration) (signalled, alive bool) {
		timer := time.NewTimer(after)
		defer timer.Stop()
		for {
			select {
			case <-signal:
				return true, true
			case <-timer.C:
				return false, true
			case <-beat.C:
				if out.send("", nil) != nil {
					return false, false
				}
			case <-ctx.Done():
				return false, false
			case <-s.closed:
				return false, false
			}
		}
	}
	name := waiting.Name{Subject: id.Subject, LeaseID: asked.LeaseID}
	var place *waiting.Place // a waiter's
	if asked.LeaseID != "" {
		place, _ = s.waiters.Join(asked.Resource, name)
		defer place.Away()
	}
	var before *driver.HeldError // what a watcher saw first
	for looked := false; ; looked = true {
		for place != nil && place.Yield() {
			if !tell(cmp.Or(s.waiters.Noted(asked.Resource), kept(asked.Resource, waiting.CallFor))) {
				return nil
			}
			if _, alive := rest(place.Turn(), s.opts.MaxWait); !alive {
				return nil
			}
		}
		watching, woken, err := s.look(ctx, asked)
		if err != nil && place != nil && ctx.Err() == nil {
			place.Fail()
		}
		if err != nil && out == nil {
			return err
		}
		if err != nil {
			return nil // the stream ends, and the client asks
		}
		seen := watching.Held
		alive, changed := tell(seen), false
		switch {
		case place != nil:
			place.Note(seen)
			changed = seen == nil
		case !looked:
			before = seen
		default:
			changed = (seen == nil) != (before == nil) || before != nil && seen.Token != before.Token
		}
		if alive && !changed {
			changed, alive = rest(woken, waiting.Until(seen, s.limits.Poll))
		}
		watching.Stop()
		if !alive {
			return nil
		}
		if !changed || place != nil && !place.Call() {
			continue
		}
		if out.send("wake", struct{}{}) != nil && place != nil {
			s.waiters.Asked(asked.Resource, name)
		}
		return nil
	}
}

// follow sends who holds the leases of some resources, and every change seen.
func (s *Server) follow(w http.ResponseWriter, r *http.Request, id *Identity) error {
	q := queryOf(r)
	resources := q.all("resource")
	if err := q.end(); err != nil {
		return err
	}
	if len(resources) == 0 {
		return guard.Missing("resource")
	}
	if len(resources) > followMost {
		return guard.Invalid("resource", resources[followMost], fmt.Sprintf("is one more than the %d that one stream follows", followMost))
	}
	for _, resource := range resources {
		if err := allowed(id, resource); err != nil {
			return err
		}
	}
	done, ok := s.usage.wait(id)
	if !ok {
		return &httpError{kind: &kindTooMany}
	}
	defer done()
	ctx, cancel := context.WithTimeout(r.Context(), s.opts.MaxWait)
	defer cancel()
	changed := make(chan struct{}, 1)
	for _, resource := range resources {
		defer s.feeds.leave(s.feeds.join(s, resource, changed), changed)
	}
	// An issuer that cannot report changes gets a status, which needs its first response.
	for seen, version := s.feeds.now(resources[0]); ; seen, version = s.feeds.now(resources[0]) {
		if seen.err == driver.ErrNoWatch {
			return blind(seen.err)
		}
		if version > 0 {
			break
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		case <-s.closed:
			return errClosing
		}
	}
	out := newStream(w)
	if err := out.send("", nil); err != nil { // so that the reader knows that following has begun
		return nil
	}
	told := map[string]int{}
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	for {
		for _, resource := range resources {
			event, version := s.feeds.now(resource)
			if version == 0 || version == told[resource] {
				continue
			}
			told[resource] = version
			name := "holder"
			if event.err != nil {
				name = "unknown"
			}
			if out.send(name, holderEvent{resource, holderOf(event.held, id.sees()), event.at}) != nil {
				return nil
			}
		}
		select {
		case <-changed:
		case <-beat.C:
			if out.send("", nil) != nil {
				return nil
			}
		case <-ctx.Done():
			return nil
		case <-s.closed:
			return nil
		}
	}
}

// feeds are the resources that are followed. However many clients follow one,
// the issuer is asked once.
type feeds struct {
	mu sync.Mutex
	by map[string]*feed
}

type feed struct {
	resource string
	cancel   context.CancelFunc
	readers  map[chan struct{}]struct{}
	last     sighting
	version  int // of last; 0 before there is one
}

// sighting is what was seen last.
type sighting struct {
	held *driver.HeldError
	err  error
	at   time.Time
}

func (f *feeds) join(s *Server, resource string, changed chan struct{}) *feed {
	f.mu.Lock()
	defer f.mu.Unlock()
	one := f.by[resource]
	if one == nil {
		ctx, cancel := context.WithCancel(s.ctx)
		one = &feed{resource: resource, cancel: cancel, readers: map[chan struct{}]struct{}{}}
		if f.by == nil {
			f.by = map[string]*feed{}
		}
		f.by[resource] = one
		s.work.Go(func() { f.run(ctx, s, one) }) // after Close nobody reads it
	}
	one.readers[changed] = struct{}{}
	return one
}

func (f *feeds) leave(one *feed, changed chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(one.readers, changed)
	if len(one.readers) == 0 && f.by[one.resource] == one {
		one.cancel()
		delete(f.by, one.resource)
	}
}

func (f *feeds) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, one := range f.by {
		one.cancel()
	}
}

func (f *feeds) now(resource string) (sighting, int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if one := f.by[resource]; one != nil {
		return one.last, one.version
	}
	return sighting{}, 0
}

// tell records what was seen, and wakes the readers if it is new.
func (f *feeds) tell(one *feed, seen sighting) {
	f.mu.Lock()
	defer f.mu.Unlock()
	a, b := one.last.held, seen.held
	same := (a == nil) == (b == nil) && (one.last.err == nil) == (seen.err == nil) &&
		(a == nil || a.Token == b.Token && a.LeaseID == b.LeaseID && a.ExpiresAt.Equal(b.ExpiresAt))
	if same && one.version > 0 {
		return
	}
	one.last = seen
	one.version++
	for reader := range one.readers {
		select {
		case reader <- struct{}{}:
		default:
		}
	}
}

func (f *feeds) run(ctx context.Context, s *Server, one *feed) {
	for attempt := 0; ctx.Err() == nil; {
		watching, woken, err := s.look(ctx, driver.Watch{Resource: one.resource})
		if ctx.Err() != nil {
			if err == nil {
				watching.Stop()
			}
			break
		}
		f.tell(one, sighting{watching.Held, err, time.Now()})
		if err != nil {
			pause.For(ctx, pause.Backoff(attempt), s.closed)
			attempt++
			continue
		}
		attempt = 0
		timer := time.NewTimer(waiting.Until(watching.Held, s.limits.Poll))
		select {
		case <-woken:
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
		watching.Stop()
	}
}
