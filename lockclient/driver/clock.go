package driver

import "time"

// never is what a failing clock reads: a time past every deadline.
const never = time.Duration(1<<63 - 1)

// started is where Go's clock counts from, where the system has no better one.
var started = time.Now()

// monotonic is the clock of Go's time package. It may stop while the machine is
// suspended.
func monotonic() time.Duration { return 1 + time.Since(started) }
