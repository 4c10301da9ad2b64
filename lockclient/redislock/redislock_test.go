package redislock

import (
	"context"
	"errors"
	"testing"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/testkit"
)

// TestSlots: a resource's server is the slot of its keys; the numbers are what
// CLUSTER KEYSLOT says of the keys.
func TestSlots(t *testing.T) {
	i, err := New(func(context.Context, ...any) (any, error) { return nil, nil }, &Options{Cluster: true})
	testkit.Must(t, err)
	for resource, want := range map[string]uint16{"123456789": 12739, "foo": 12182, "a{b}": 8914} {
		if got := i.server(resource); got != want {
			t.Errorf("%s, as in %s: slot %d; want %d", resource, i.key(resource, "lease"), got, want)
		}
	}
}

// TestRefusals: a definite refusal is told from an unknown outcome, whichever version
// of Redis words it.
func TestRefusals(t *testing.T) {
	for text, want := range map[string]bool{
		"MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.":                      true,
		"ERR Error running script (call to f_05): @user_script:58: -MISCONF Redis is configured to save RDB snapshots, but ...": true,
		"ERR Error running script (call to f_05): @user_script:58: -OOM command not allowed when used memory > 'maxmemory'.":    true,
		"NOREPLICAS Not enough good replicas to write.":                                                                         true,
		"BUSY Redis is busy running a script. You can only call SCRIPT KILL.":                                                   true,
		"OOM command not allowed when used memory > 'maxmemory'. script: 05":                                                    true,
		"READONLY You can't write against a read only replica.":                                                                 true,
		"TRYAGAIN Multiple keys request during rehashing of slot":                                                               true,
		"ASK 3999 127.0.0.1:6381":                                                        true,
		"ERR max number of clients reached":                                              true,
		"UNBLOCKED client unblocked via CLIENT UNBLOCK":                                  false,
		"ERR Error running script (call to f_05): @user_script:58: attempt to index nil": false,
		"read tcp 127.0.0.1:6379: i/o timeout":                                           false,
		context.DeadlineExceeded.Error():                                                 false,
		"MISCONFIGURED":                                                                  false,
	} {
		err := failed("acquire", guard.Claim{Resource: "r"}, errors.New(text))
		if got := errors.Is(err, guard.ErrUnavailable) && !errors.Is(err, guard.ErrOutcomeUnknown); got != want {
			t.Errorf("%q: %v", text, err)
		}
	}
}
