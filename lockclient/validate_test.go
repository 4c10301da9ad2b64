package lockclient

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient/driver"
)

// TestInvalidInput: each is refused with its field and value, and no row is
// made.
func TestInvalidInput(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	client := newTestClient(t, pool, nil)
	mustTry(t, client, "checks the schema", time.Minute).Release(t.Context())
	mustExec(t, pool, "TRUNCATE fencepost.leases")
	good := &AcquireOptions{TTL: time.Second}
	for _, test := range []struct {
		name, resource string
		opts           *AcquireOptions
		field, value   string
	}{
		{"TTL negative", "r", &AcquireOptions{TTL: -time.Second}, "TTL", "-1s"},
		{"TTL 1 ns", "r", &AcquireOptions{TTL: 1}, "TTL", "1ns"},
		{"TTL below the least", "r", &AcquireOptions{TTL: MinTTL - 1}, "TTL", "99.999999ms"},
		{"TTL 10 years", "r", &AcquireOptions{TTL: 87600 * time.Hour}, "TTL", "87600h0m0s"},
		{"resource empty", "", good, "resource", ""},
		{"resource 513 bytes", strings.Repeat("x", 513), good, "resource", strings.Repeat("x", 64)},
		{"resource 1 MiB", strings.Repeat("y", 1<<20), good, "resource", strings.Repeat("y", 64)},
		{"resource control", "a\x00b", good, "resource", "a\x00b"},
		{"resource C1 control", "a\u0085b", good, "resource", "a\u0085b"},
		{"resource not UTF-8", "a\xffb", good, "resource", "a\xffb"},
		{"lease ID control", "r", &AcquireOptions{TTL: time.Second, LeaseID: "a\nb"}, "lease ID", "a\nb"},
		{"lease ID 129 bytes", "r", &AcquireOptions{TTL: time.Second, LeaseID: strings.Repeat("z", 129)}, "lease ID", strings.Repeat("z", 64)},
		{"metadata 1,001 bytes", "r", &AcquireOptions{TTL: time.Second, Metadata: strings.Repeat("m", 1001)}, "Metadata", strings.Repeat("m", 64)},
		{"metadata control", "r", &AcquireOptions{TTL: time.Second, Metadata: "a\nb"}, "Metadata", "a\nb"},
	} {
		t.Run(test.name, func(t *testing.T) {
			check := func(how string, err error) {
				t.Helper()
				var invalid *guard.InvalidError
				if !errors.Is(err, guard.ErrInvalid) || !errors.As(err, &invalid) || invalid.Field != test.field || invalid.Value != test.value {
					t.Errorf("%s: got %#v, want field %q, value %q", how, err, test.field, test.value)
				}
			}
			_, err := client.TryAcquire(t.Context(), test.resource, test.opts)
			check("TryAcquire", err)
			_, err = client.Acquire(t.Context(), test.resource, test.opts)
			check("Acquire", err)
			var hold *AcquireOptions
			if test.opts != nil {
				hold = &AcquireOptions{TTL: test.opts.TTL, LeaseID: test.opts.LeaseID, Metadata: test.opts.Metadata}
			}
			check("Hold", client.Hold(t.Context(), test.resource, hold, func(context.Context) error {
				t.Error("fn was called")
				return nil
			}))
		})
	}
	for name, err := range map[string]error{
		"RenewInterval": client.Hold(t.Context(), "r", &AcquireOptions{TTL: time.Second, RenewInterval: 334 * time.Millisecond}, func(context.Context) error { return nil }),
		"fn":            client.Hold(t.Context(), "r", &AcquireOptions{TTL: time.Second}, nil),
	} {
		if !errors.Is(err, guard.ErrInvalid) || !strings.Contains(err.Error(), name) {
			t.Errorf("Hold with a bad %s: %v", name, err)
		}
	}
	if n := countRows(t, pool); n != 0 {
		t.Errorf("%d rows were made", n)
	}
}

// TestUnusable: nothing is sent under a context that has ended, on a closed
// pool or by a closed client, and the error wraps the cause.
func TestUnusable(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	mine := errors.New("mine")
	ended, cancel := context.WithCancelCause(t.Context())
	cancel(mine)
	closedPool := pgtest.Pool(t)
	rec := &recorder{}
	ofClosedPool := newTestClient(t, closedPool, &Options{Logger: slog.New(slog.NewJSONHandler(rec, nil))})
	closedPool.Close()
	closedClient := newTestClient(t, pool, nil)
	closedClient.Close(t.Context())
	closedClient.Close(t.Context())
	for _, test := range []struct {
		name   string
		client *Client
		ctx    context.Context
		says   string
	}{
		{"context", newTestClient(t, pool, nil), ended, "mine"},
		{"pool", ofClosedPool, t.Context(), "closed pool"},
		{"client", closedClient, t.Context(), "the client is closed"},
	} {
		t.Run(test.name, func(t *testing.T) {
			// A wait goes on until its context ends.
			retried := func() context.Context {
				if test.client != ofClosedPool {
					return test.ctx
				}
				ctx, cancel := context.WithCancel(test.ctx)
				before := rec.Count("lock_acquire_retried")
				go func() {
					defer cancel()
					testkit.Eventually(t, "a retry", func() bool { return rec.Count("lock_acquire_retried") > before })
				}()
				return ctx
			}
			_, tried := test.client.TryAcquire(test.ctx, "r", nil)
			_, waited := test.client.Acquire(retried(), "r", nil)
			held := test.client.Hold(retried(), "r", nil, func(context.Context) error { return nil })
			for how, err := range map[string]error{"TryAcquire": tried, "Acquire": waited, "Hold": held} {
				want := guard.ErrUnavailable
				if test.client == closedClient {
					want = guard.ErrSetup
				}
				if guard.ReasonOf(err).Err() != want || !strings.Contains(err.Error(), test.says) {
					t.Errorf("%s: %v", how, err)
				}
				if test.ctx == ended && !errors.Is(err, mine) {
					t.Errorf("%s: the cause is not in %v", how, err)
				}
			}
		})
	}
	if n := countRows(t, pool); n != 0 {
		t.Errorf("%d rows were made", n)
	}
}

// TestNewInvalid: each is refused with its field, value and problem.
func TestNewInvalid(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		field, value, owner string
		opts                *Options
		says                string
	}{
		{"owner", "", "", nil, ""},
		{"owner", strings.Repeat("o", 64), strings.Repeat("o", 129), nil, ""},
		{"owner", "a\tb", "a\tb", nil, ""},
		{"owner", "a\xff", "a\xff", nil, ""},
		{"Options.OpTimeout", "-1ns", "o", &Options{OpTimeout: -1}, "must be 1ms to 1h0m0s"},
		{"Options.OpTimeout", "2h0m0s", "o", &Options{OpTimeout: 2 * time.Hour}, "must be 1ms to 1h0m0s"},
		{"Options.Namespace", "a\x00", "o", &Options{Namespace: "a\x00"}, ""},
	} {
		made, err := New(&answering{}, test.owner, test.opts)
		var invalid *guard.InvalidError
		if made != nil || !errors.As(err, &invalid) || invalid.Field != test.field || invalid.Value != test.value || !strings.Contains(invalid.Problem, test.says) {
			t.Errorf("%q, %+v: got %v, %v", test.owner, test.opts, made, err)
		}
	}
	for _, opts := range []*Options{
		{OpTimeout: time.Hour}, {OpTimeout: time.Millisecond},
	} {
		if c, err := New(&answering{}, "o", opts); err != nil {
			t.Errorf("%+v: %v", opts, err)
		} else {
			c.Close(t.Context())
		}
	}
	var invalid *guard.InvalidError
	if _, err := New(nil, "o", nil); !errors.As(err, &invalid) || invalid.Field != "issuer" || invalid.Value != "nil" {
		t.Errorf("no issuer: %v", err)
	}
	for _, opts := range []*Options{nil, {}, {OpTimeout: time.Second}} {
		op := 5 * time.Second
		if opts != nil && opts.OpTimeout > 0 {
			op = opts.OpTimeout
		}
		set, _, err := opts.withDefaults()
		if err != nil || set.OpTimeout != op {
			t.Errorf("%+v: %+v, %v", opts, set, err)
		}
	}
}

// FuzzResource: a name that is accepted is stored and found again byte by byte,
// and guard decides which names are refused.
func FuzzResource(f *testing.F) {
	pool := migrated(f)
	client := newTestClient(f, pool, nil)
	for _, s := range []string{"r", "", " r", "R", "r ", "a%b", "ä", "a\u0308", "\x7f", "\xff", "' OR 1=1 --", "🔒", "\u202e"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, resource string) {
		lease, err := client.TryAcquire(t.Context(), resource, &AcquireOptions{TTL: time.Minute})
		if valid := guard.ValidateResource(resource) == nil; valid != (err == nil) {
			t.Fatalf("valid %t, error %v", valid, err)
		}
		if err != nil {
			return
		}
		if r := rowOf(t, pool, resource); r.Resource != resource || r.Token != int64(lease.Token()) {
			t.Errorf("%q is stored as %+v", resource, r)
		}
		testkit.Check(t, lease.Release(t.Context()))
	})
}

// TestWhereabouts: a lease without metadata says where its holder runs, if the issuer
// has room for it.
func TestWhereabouts(t *testing.T) {
	host, err := os.Hostname()
	testkit.Must(t, err)
	here := "host " + host + ", process " + strconv.Itoa(os.Getpid())
	for _, test := range []struct {
		room       int
		says, want string
	}{{1000, "", here}, {1000, "closes April", "closes April"}, {len(here), "", here}, {len(here) - 1, "", ""}, {0, "", ""}} {
		i := &answering{limits: driver.Limits{MetadataBytes: test.room}}
		i.acquire = func(context.Context, driver.Request) (driver.Grant, error) {
			return driver.Grant{Token: 7, From: i.clock()}, nil
		}
		lease, err := i.client(t, nil).TryAcquire(t.Context(), "r", &AcquireOptions{TTL: time.Minute, Metadata: test.says})
		if err != nil || i.acquired[0].Metadata != test.want {
			t.Errorf("room for %d, %q: %q, %v, want %q", test.room, test.says, i.acquired[0].Metadata, err, test.want)
			continue
		}
		lease.Release(t.Context())
	}
}
