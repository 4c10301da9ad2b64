package lockhttp

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/internal/pause"
)

const (
	// paceDefault is the pause after a proxy's refusal that names none.
	paceDefault = 200 * time.Millisecond
	// paceMost bounds the pause that a proxy can demand: leases are to be renewed.
	paceMost = 5 * time.Second
)

// pace is how long an issuer sends nothing, because a proxy in front of the lock server
// refused a request with 429 or 503. The client repeats what was lost within
// milliseconds, which is what such a proxy does not want. The zero value is ready.
type pace struct {
	mu    sync.Mutex
	until time.Time
	why   string
}

// refused records a proxy's refusal.
func (p *pace) refused(resp *http.Response) {
	if resp.StatusCode != http.StatusTooManyRequests && resp.StatusCode != http.StatusServiceUnavailable {
		return
	}
	now, d := time.Now(), paceDefault
	after := resp.Header.Get("Retry-After")
	if n, err := strconv.ParseUint(after, 10, 31); err == nil {
		d = time.Duration(n) * time.Second
	} else if at, err := http.ParseTime(after); err == nil {
		d = at.Sub(now)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if until := now.Add(min(max(d, paceDefault), paceMost)); until.After(p.until) {
		p.until, p.why = until, resp.Status
	}
}

// wait waits for the end of the pause. If that is after the end of ctx it returns an
// error at once, and nothing was sent.
func (p *pace) wait(ctx context.Context, op string, claim guard.Claim) error {
	p.mu.Lock()
	left, why := time.Until(p.until), p.why
	p.mu.Unlock()
	if left <= 0 {
		return nil
	}
	err := fmt.Errorf("a proxy responded with %s, and nothing is sent for %v", why, left.Round(time.Millisecond))
	if end, ok := ctx.Deadline(); ok && time.Until(end) <= left {
		return guard.Unavailable(op, claim, err)
	}
	if !pause.For(ctx, left+left/4-pause.Jitter(left/4, 1), nil) { // not all at once
		return guard.Unavailable(op, claim, pause.WithCause(ctx, err))
	}
	return nil
}
