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
)

const (
	// heartbeat is how often a stream sends something, so that proxies keep it.
	heartbeat = 15 * time.Second
	// followMost is how many resources one stream may follow.
	followMost = 20
	// look is the time after which a watch is restarted, unless the issuer says
	// otherwise.
	look = 2 * time.Second
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
	watching, err = within(ctx, s, "watch", guard.Claim{Resource: w.Resource, LeaseID: w.LeaseID}, func(ctx context.Context) (driver.Watching, error) {
		return s.issuer.Watch(ctx, w, func() {
			select {
			case woken <- struct{}{}:
			default:
			}
		})
	}, func(w driver.Watching, err error) {
		if err == nil {
			w.Stop()
		}
	})
	var failed *guard.FailedError
	if errors.Is(err, guard.ErrOutcomeUnknown) && errors.As(err, &failed) {
		err = guard.Unavailable("watch", guard.Claim{Resource: w.Resource}, failed.Cause) // a watch writes nothing that matters
	}
	return watching, woken, err
}

// until returns how long to wait for a watch to wake before the next look.
func (s *Server) until(held *driver.HeldError) time.Duration {
	d := pause.Jitter(cmp.Or(s.limits.Poll, look), 5)
	if held != nil {
		d = min(d, max(0, held.Remaining)+pause.Jitter(5*time.Millisecond, 1))
	}
	return d
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
// has the lease, a second, "wake", that it is worth asking again.
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
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	var out *stream
	tell := func(held *driver.HeldError) bool {
		out = newStream(w)
		return out.send("holder", holderEvent{asked.Resource, holderOf(held, id.sees()), time.Now()}) == nil
	}
	var place *ticket // a waiter's
	if asked.LeaseID != "" {
		place = s.turns.join(asked.Resource, id.Subject, asked.LeaseID)
		defer place.leave()
	}
	for ended := false; !ended; { // again when another waiter has come back to the first place
		passed, ok := s.takeTurn(ctx, place, beat, func(held *driver.HeldError) bool { return out != nil || tell(held) },
			func() bool { return out.send("", nil) == nil })
		if !ok {
			return nil
		}
		watching, woken, err := s.look(ctx, asked)
		if err != nil && out == nil {
			return err
		}
		if err != nil {
			return nil // the stream ends, and the client asks
		}
		first := watching.Held
		if ended = out == nil && !tell(first); ended {
			watching.Stop()
		}
		for overtaken := false; !ended && !overtaken; {
			if place != nil {
				place.note(watching.Held)
			}
			wake := place != nil && watching.Held == nil
			if !wake {
				timer := time.NewTimer(s.until(watching.Held))
				select {
				case <-woken:
					wake = true
				case <-timer.C:
				case <-beat.C:
					ended = out.send("", nil) != nil
				case <-passed:
					overtaken = true
				case <-ctx.Done():
					ended = true
				case <-s.closed:
					ended = true
				}
				timer.Stop()
			}
			watching.Stop()
			if !wake && !ended && !overtaken {
				if watching, woken, err = s.look(ctx, asked); err != nil {
					return nil // the stream ends, and the client asks
				}
				wake = (watching.Held == nil) != (first == nil) || first != nil && watching.Held.Token != first.Token
				if place != nil {
					wake = watching.Held == nil
				}
			}
			if !wake {
				continue
			}
			watching.Stop()
			if place != nil && !place.call() {
				overtaken = true
				continue
			}
			if out.send("wake", struct{}{}) != nil && place != nil {
				s.turns.asked(asked.Resource, id.Subject, asked.LeaseID)
			}
			return nil
		}
	}
	return nil
}

// takeTurn waits for a waiter's turn and until then sends it who has the lease. passed
// is closed when the turn is over before its time; ok is false if the stream is. An
// watcher, which has no place, needs no turn.
func (s *Server) takeTurn(ctx context.Context, place *ticket, beat *time.Ticker, tell func(*driver.HeldError) bool, alive func() bool) (passed <-chan struct{}, ok bool) {
	if place == nil {
		return nil, true
	}
	turn, passed := place.signals()
	select {
	case <-turn:
		return passed, true
	default:
	}
	if !tell(place.known()) {
		return nil, false
	}
	for {
		select {
		case <-turn:
			return passed, true
		case <-beat.C:
			if !alive() {
				return nil, false
			}
		case <-ctx.Done():
			return nil, false
		case <-s.closed:
			return nil, false
		}
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
		timer := time.NewTimer(s.until(watching.Held))
		select {
		case <-woken:
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
		watching.Stop()
	}
}
