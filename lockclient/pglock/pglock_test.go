package pglock

import (
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/testkit"
)

// TestNewInvalid: each option is refused with its field, value and problem, and the
// defaults are what the documentation says.
func TestNewInvalid(t *testing.T) {
	pool, err := pgxpool.New(t.Context(), "postgres://localhost:1/none") // which is never connected
	testkit.Must(t, err)
	defer pool.Close()
	for _, test := range []struct {
		field, value string
		pool         *pgxpool.Pool
		opts         *Options
		says         string
	}{
		{"pool", "nil", nil, nil, "must not be nil"},
		{"Options.RenewConns", "-1", pool, &Options{RenewConns: -1}, "must be 0 to 64"},
		{"Options.RenewConns", "65", pool, &Options{RenewConns: 65}, "must be 0 to 64"},
	} {
		made, err := New(test.pool, test.opts)
		var invalid *guard.InvalidError
		if made != nil || !errors.As(err, &invalid) || invalid.Field != test.field || invalid.Value != test.value || !strings.Contains(invalid.Problem, test.says) {
			t.Errorf("%+v: got %v, %v", test.opts, made, err)
		}
	}
	for _, opts := range []*Options{nil, {}, {Poll: true}, {RenewConns: 64}} {
		set, err := opts.withDefaults()
		if err != nil || opts == nil && set.RenewConns != 4 {
			t.Errorf("%+v: %+v, %v", opts, set, err)
		}
		if issuer, err := New(pool, opts); err != nil {
			t.Errorf("%+v: %v", opts, err)
		} else if err := issuer.Close(); err != nil {
			t.Errorf("%+v: close: %v", opts, err)
		}
	}
}
