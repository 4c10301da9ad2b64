package lockclient

import (
	"context"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

// The worst moments for a release.
const (
	beforeLook         = "before the mark looks"
	betweenLookAndMark = "between the look and the mark"
	whileAsleep        = "while the waiter sleeps"
	beforeListen       = "after the mark and before LISTEN"
	afterBreak         = "after the connection broke"
)

// orders has for each step that a mutant leaves out the moment that shows it.
var orders = map[string]string{
	"no mark":                  whileAsleep,
	"the mark does not look":   beforeLook,
	"looks before it marks":    betweenLookAndMark,
	"marks before it listens":  beforeListen,
	"the break is not noticed": afterBreak,
}

// releaseNow begins the release, once.
func (m *marked) releaseNow() {
	m.began.Do(func() { go m.release(context.Background(), guard.Claim{}, 0) })
}

// story is what the listening connection goes through in an order. By the
// first of its sleeps that are long the waiter has done what it does.
func (m *marked) story() {
	set := func(deaf bool) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.deaf = deaf
		switch {
		case !deaf && m.up == nil:
			m.up = make(chan struct{})
		case deaf && m.flaw != "the break is not noticed":
			close(m.up)
			m.up = nil
		}
	}
	if m.order == beforeListen {
		time.Sleep(100 * time.Millisecond)
		m.releaseNow()
		time.Sleep(100 * time.Millisecond)
	}
	set(false)
	time.Sleep(100 * time.Millisecond)
	if m.order == afterBreak {
		set(true)
		time.Sleep(20 * time.Millisecond)
		m.releaseNow()
		time.Sleep(100 * time.Millisecond)
		set(false)
	}
	if m.order == whileAsleep {
		m.releaseNow()
	}
}

// sleepsThrough reports whether the waiter is granted only when it looks by
// itself, if ever.
func sleepsThrough(t *testing.T, flaw, order string) (slept bool) {
	synctest.Test(t, func(t *testing.T) {
		server := &marked{rng: rand.New(rand.NewPCG(1, 1)), clock: drifting(0), flaw: flaw, order: order, held: true, token: 1}
		set, _ := (&Options{PollInterval: 10 * time.Millisecond}).settings()
		client := newClient(server, "o", set, server.clock, events{})
		ctx, cancel := context.WithTimeout(t.Context(), lookAgain/2)
		defer cancel()
		lease, err := client.Acquire(ctx, "r", &AcquireOptions{TTL: time.Hour})
		if slept = err != nil; !slept {
			lease.end(ErrReleased)
		}
		time.Sleep(time.Second) // let the connection's story end
		client.Close()
	})
	return slept
}
