package lockclient

import (
	"time"

	"github.com/fencepost-go/fencepost/lockclient/driver"
)

// clock tells the time since some fixed moment. Deadlines are counted on it
// and never on the time of day, which may be set.
type clock func() time.Duration

// maxNap bounds how long a timer is trusted. Timers stand still while a machine
// is suspended, the clock does not, so sleepers look at the clock again at
// least this often.
const maxNap = time.Second

// driftShare is the part of a TTL that the holder gives away for the drift of
// two clocks against each other: a thousandth. NTP slews at half of that.
const driftShare = 1000

// deadline is the moment up to which a holder may rely on a grant of ttl: it
// counts from before the request was sent, since the server counts from later,
// and ends early by the drift.
func deadline(sent, ttl time.Duration) time.Duration {
	// Rounded up, so that a short TTL has a margin, too.
	return sent + ttl - (ttl+driftShare-1)/driftShare
}

// systemClock is the clock of holders whose issuer has none of its own.
func systemClock() clock { return driver.Now }
