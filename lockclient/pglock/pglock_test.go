package pglock

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost-go/fencepost/guard"
)

// TestNewInvalid: each option is refused with its field, value and problem, and the
// defaults are what the documentation says.
func TestNewInvalid(t *testing.T) {
	pool, err := pgxpool.New(t.Context(), "postgres://localhost:1/none") // which is never connected
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	for _, test := range []struct {
		field, value string
		pool         *pgxpool.Pool
		opts         *Options
		says         string
	}{
		{"pool", "nil", nil, nil, "must not be nil"},
		{"Options.OpTimeout", "-1ns", pool, &Options{OpTimeout: -1}, "must be 1ms to 1h0m0s"},
		{"Options.OpTimeout", "2h0m0s", pool, &Options{OpTimeout: 2 * time.Hour}, "must be 1ms to 1h0m0s"},
		{"Options.LockTimeout", "-1ns", pool, &Options{LockTimeout: -1}, "must be 1ms to 1h0m0s"},
		{"Options.LockTimeout", "5s", pool, &Options{LockTimeout: 5 * time.Second}, "must be less than Options.OpTimeout, which is 5s"},
		{"Options.LockTimeout", "1s", pool, &Options{OpTimeout: time.Second, LockTimeout: time.Second}, "must be less than Options.OpTimeout, which is 1s"},
		{"Options.RenewConns", "-1", pool, &Options{RenewConns: -1}, "must be 0 to 64"},
		{"Options.RenewConns", "65", pool, &Options{RenewConns: 65}, "must be 0 to 64"},
		{"Options.Wake", "never", pool, &Options{Wake: "never"}, "must be auto, notify or poll"},
	} {
		made, err := New(test.pool, test.opts)
		var invalid *guard.InvalidError
		if made != nil || !errors.As(err, &invalid) || invalid.Field != test.field || invalid.Value != test.value || !strings.Contains(invalid.Problem, test.says) {
			t.Errorf("%+v: got %v, %v", test.opts, made, err)
		}
	}
	for _, opts := range []*Options{
		{Wake: WakeAuto}, {Wake: WakeNotify}, {Wake: WakePoll}, {RenewConns: 64}, {OpTimeout: time.Hour},
		{LockTimeout: time.Millisecond}, {LockTimeout: 5*time.Second - 1},
	} {
		if issuer, err := New(pool, opts); err != nil {
			t.Errorf("%+v: %v", opts, err)
		} else if err := issuer.Close(); err != nil {
			t.Errorf("%+v: close: %v", opts, err)
		}
	}
	for _, test := range []struct {
		opts     *Options
		op, lock time.Duration
	}{
		{nil, 5 * time.Second, 2 * time.Second},
		{&Options{}, 5 * time.Second, 2 * time.Second},
		{&Options{OpTimeout: time.Millisecond}, time.Millisecond, time.Millisecond},
		{&Options{OpTimeout: time.Second}, time.Second, 750 * time.Millisecond},
		{&Options{OpTimeout: time.Minute}, time.Minute, 2 * time.Second},
	} {
		set, err := test.opts.withDefaults()
		if err != nil || set.OpTimeout != test.op || set.LockTimeout != test.lock || set.RenewConns != 4 || set.Wake != WakeAuto {
			t.Errorf("%+v: %+v, %v", test.opts, set, err)
		}
	}
}
