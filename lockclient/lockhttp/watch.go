package lockhttp

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/internal/waiting"
)

// heartbeat is how often a stream sends something, so that proxies keep it.
const heartbeat = 15 * time.Second

// send writes one server-sent event, or a comment if it has no name. An error means that
// the reader has gone.
func send(w http.ResponseWriter, name string, data any) error {
	control := http.NewResponseController(w)
	writeInTime(w)
	// HTTP/2 resets a stream whose deadline passes even if nothing is written.
	defer func() { _ = control.SetWriteDeadline(time.Time{}) }()
	text := []byte(": still here\n\n")
	if name != "" {
		body, err := json.Marshal(data)
		if err != nil {
			return err
		}
		text = fmt.Appendf(nil, "event: %s\ndata: %s\n\n", name, body)
	}
	if _, err := w.Write(text); err != nil {
		return err
	}
	return control.Flush()
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
	return watching, readOnly(err) // it writes nothing that matters
}

// watch serves Watch of [driver.Issuer] to the Go client: one event says who
// has the lease, a second, "wake", that it is worth asking again. A waiter, which
// names its lease ID, queues with the others of this server; a watcher does not.
func (s *Server) watch(w http.ResponseWriter, q *request) error {
	asked := driver.Watch{Resource: q.claim.Resource, LeaseID: q.claim.LeaseID}
	done, ok := s.waits.begin(q.id.key(), cmp.Or(q.id.Limits.Waiting, defaultWaiting))
	if !ok {
		return &httpError{kind: &kindTooMany}
	}
	defer done()
	ctx, cancel := context.WithTimeout(q.Context(), s.opts.MaxWait)
	defer cancel()
	told := false
	tell := func(held *driver.HeldError) bool {
		if told {
			return true
		}
		told = true
		h := w.Header()
		h.Set("Content-Type", "text/event-stream")
		h.Set("Cache-Control", "no-store")
		h.Set("X-Accel-Buffering", "no") // nginx would buffer events
		return send(w, "holder", holderEvent{asked.Resource, s.holderOf(held, q.id), time.Now()}) == nil
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
				if send(w, "", nil) != nil {
					return false, false
				}
			case <-ctx.Done():
				return false, false
			case <-s.closed:
				return false, false
			}
		}
	}
	name := waiting.Name{Subject: q.id.key(), LeaseID: asked.LeaseID}
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
		woken := make(chan struct{})
		watching, err := s.watchIssuer(ctx, asked, sync.OnceFunc(func() { close(woken) }))
		if err != nil {
			if place != nil && ctx.Err() == nil {
				place.Fail()
			}
			if told {
				return nil // the stream ends, and the client asks
			}
			return err
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
		if send(w, "wake", struct{}{}) != nil && place != nil {
			s.waiters.Asked(asked.Resource, name)
		}
		return nil
	}
}
