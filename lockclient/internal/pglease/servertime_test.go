package pglease

import (
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/lockclient/driver"
)

// TestServerTime: what is known of the server's clock is a lower bound that each
// answer may raise, and that a clock that was set back lowers. A slow first answer
// moves no deadline late. (P8)
func TestServerTime(t *testing.T) {
	var s serverTime
	if _, known := s.at(0); known {
		t.Error("it is known before an answer")
	}
	now := driver.Now()
	for _, step := range []struct {
		what       string
		clock, gap time.Duration // the server's clock against the holder's, and how long the answer took
		want       time.Duration
	}{
		{"first", time.Hour, time.Second, time.Hour - time.Second},
		{"sooner answered", time.Hour, time.Millisecond, time.Hour - time.Millisecond},
		{"later answered", time.Hour, time.Minute, time.Hour - time.Millisecond},
		{"set back", 0, time.Millisecond, -time.Millisecond},
		{"set forward", 2 * time.Hour, time.Second, 2*time.Hour - time.Second},
	} {
		sent := driver.Now()
		s.learn(time.Unix(0, int64(sent+step.clock)), sent, sent+step.gap)
		at, known := s.at(now)
		if got := time.Duration(at.UnixNano()) - now; !known || got != step.want {
			t.Errorf("%s: the server is %v ahead at least, want %v", step.what, got, step.want)
		}
	}
}
