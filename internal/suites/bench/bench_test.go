package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
)

var store = flag.Bool("store", false, "store the short comparisons' ratios in place of comparing with them")

const storedFile = "results/short.json"

// TestShort fails when a ratio is worse than the stored one by more than its
// error bar, in each of three tries, each longer than the one before. To store
// new ratios: go test -run TestShort -store, on an idle machine.
func TestShort(t *testing.T) {
	slog.SetDefault(slog.New(slog.DiscardHandler))
	e := &env{scale: 1}
	defer e.close()
	var was []stored
	if text, err := os.ReadFile(storedFile); !*store && (err != nil || json.Unmarshal(text, &was) != nil || len(was) != len(shorts)) {
		t.Fatalf("%s: %v, %d ratios", storedFile, err, len(was))
	}
	var now []stored
	for i, s := range shorts {
		var err error
		for try := range 3 {
			var figures []Figure
			rounds := 16 << try
			if *store {
				rounds = 100
			}
			failed := e.try(t.Context(), experiment{run: func(ctx context.Context, e *env, _ *Section) (err error) {
				figures, err = s.run(ctx, e, rounds)
				return err
			}}, nil)
			if failed == nil {
				failed = figures[1].Err
			}
			if failed != nil {
				t.Fatalf("%s: %v", s.name, failed)
			}
			ratio, bar := medians(figures)
			t.Logf("%s: %.3f, error bar %.3f", s.name, ratio, bar)
			if *store {
				now = append(now, stored{s.name, round(ratio, 3), round(bar, 3)})
				break
			}
			if was[i].Name != s.name {
				t.Fatalf("%s has %q where %q is due", storedFile, was[i].Name, s.name)
			}
			if err = worse(was[i], s.slack, figures); err == nil {
				break
			}
		}
		if err != nil {
			t.Error(err)
		}
	}
	if *store {
		text, _ := json.MarshalIndent(now, "", " ")
		if err := os.WriteFile(storedFile, append(text, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// sleeping takes exactly the given time in a bubble.
func sleeping(d time.Duration) func(context.Context, int, int) (time.Duration, error) {
	return timed(func(context.Context, int, int) error { time.Sleep(d); return nil })
}

// TestCompare: ratios, rates and durations are as expected, and a ratio of half
// the stored one is noticed.
func TestCompare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := errors.New("broken")
		figures, err := Compare(t.Context(), Plan{Clients: 4, Block: 120 * time.Millisecond, Rounds: 5},
			Way{Name: "floor", Do: sleeping(time.Millisecond)},
			Way{Name: "half", Do: sleeping(2 * time.Millisecond)},
			Way{Name: "ten at once", Do: sleeping(time.Millisecond), Times: 10},
			Way{Name: "told", Do: func(context.Context, int, int) (time.Duration, error) {
				time.Sleep(time.Millisecond)
				return time.Hour, nil
			}},
			Way{Name: "fails", Do: func(_ context.Context, _, i int) (time.Duration, error) {
				time.Sleep(time.Millisecond)
				if i > 200 {
					return 0, broken
				}
				return 0, nil
			}})
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []struct {
			way         string
			ratio, rate float64
			p99         time.Duration
			err         error
		}{
			{"floor", 1, 4000, time.Millisecond, nil}, {"half", 0.5, 2000, 2 * time.Millisecond, nil},
			{"ten at once", 10, 40000, time.Millisecond / 10, nil}, {"told", 1, 4000, time.Hour, nil},
			{"fails", 0, 0, 0, broken}, {again, 1, 4000, time.Millisecond, nil},
		} {
			f := figures[0]
			figures = figures[1:]
			if f.Way != want.way || !errors.Is(f.Err, want.err) || math.Abs(f.Ratio.Median-want.ratio) > 0.02*want.ratio ||
				math.Abs(f.Rate-want.rate) > 0.02*want.rate || f.P99 != want.p99 {
				t.Errorf("%+v, want %+v", f, want)
			}
		}
	})
}

// TestWorse: a loss beyond all error bars is an error, and nothing else is.
func TestWorse(t *testing.T) {
	figures := func(ratio, noise float64) []Figure {
		at := func(ratio float64) Figure { return Figure{P50: time.Duration(float64(time.Second) / ratio)} }
		return []Figure{at(1), at(ratio), at(1 - noise)}
	}
	was := stored{Name: "x", Ratio: 0.9, Bar: 0.02}
	for _, c := range []struct {
		name         string
		ratio, noise float64
		worse        bool
	}{
		{"the same", 0.9, 0.02, false}, {"better", 1.5, 0.02, false}, {"a little worse", 0.75, 0.02, false},
		{"half", 0.45, 0.02, true}, {"half on a machine that is too busy to tell", 0.45, 0.3, false},
	} {
		if err := worse(was, 0.3, figures(c.ratio, c.noise)); (err != nil) != c.worse {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// TestCut: calls in progress when a block ends are ended, and are no error.
func TestCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		figures, err := Compare(t.Context(), Plan{Clients: 3, Lead: 50 * time.Millisecond, Block: 100 * time.Millisecond, Rounds: 2, Cut: true},
			Way{Name: "waits", Do: timed(func(ctx context.Context, client, _ int) error {
				if client == 0 {
					time.Sleep(10 * time.Millisecond)
					return nil
				}
				<-ctx.Done()
				return ctx.Err()
			})})
		if err != nil || figures[0].Rate != 100 {
			t.Errorf("%+v, %v; want 100 a second", figures, err)
		}
	})
}

// TestRelay: no client has the lock twice in a row.
func TestRelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &relay{}
		ctx, stop := context.WithCancel(t.Context())
		allow := func(client int) error { _, err := r.allow(ctx, client); return err }
		if err := allow(0); err != nil || r.granted(0) >= 0 {
			t.Fatal("the first grant comes after no release")
		}
		r.free()
		time.Sleep(time.Second)
		first := make(chan error, 1)
		go func() { first <- allow(0) }()
		synctest.Wait()
		if len(first) > 0 {
			t.Fatal("client 0 twice in a row")
		}
		if err := allow(1); err != nil || r.granted(1) != time.Second {
			t.Fatal("client 1 had to wait, or its hand-over was not a second")
		}
		if err := <-first; err != nil {
			t.Fatal(err)
		}
		r.granted(0)
		stop()
		if err := allow(0); err == nil {
			t.Fatal("allowed after the block's end")
		}
	})
}

// TestDelayed: the network adds the right delay.
func TestDelayed(t *testing.T) {
	e := &env{scale: 1}
	defer e.close()
	err := e.try(t.Context(), experiment{run: func(ctx context.Context, e *env, _ *Section) error {
		url, err := e.database(ctx, false)
		if err != nil {
			return err
		}
		pool, err := e.pool(ctx, url, 1, 40*time.Millisecond)
		if err != nil {
			return err
		}
		if err := pool.Ping(ctx); err != nil {
			return err
		}
		for range 3 {
			start := time.Now()
			if err := pool.Ping(ctx); err != nil {
				return err
			}
			if took := time.Since(start); took < 40*time.Millisecond {
				t.Errorf("a round trip of 40 ms took %v", took)
			}
		}
		return nil
	}}, nil)
	if err != nil {
		t.Fatal(err)
	}
}

// counting is an issuer that counts its requests.
type counting struct {
	driver.Issuer
	asked map[string]bool
}

func (c *counting) Acquire(_ context.Context, r driver.Request) (driver.Grant, error) {
	c.asked[r.Resource] = true
	return driver.Grant{Token: 1}, nil
}

func (c *counting) Renew(_ context.Context, renewals []driver.Renewal, results []driver.Renewed) {
	for i, r := range renewals {
		if c.asked[r.Claim.Resource] {
			results[i] = driver.Renewed{State: driver.Extended, TTL: r.TTL}
		}
	}
}

func (c *counting) Release(_ context.Context, claim guard.Claim) (bool, error) {
	return c.asked[claim.Resource], nil
}

// TestSharded: a resource has one issuer for all requests, each issuer has its
// part of them, and the results of renewals are in the order of the renewals.
func TestSharded(t *testing.T) {
	parts := []*counting{{asked: map[string]bool{}}, {asked: map[string]bool{}}, {asked: map[string]bool{}}, {asked: map[string]bool{}}}
	s := sharded{parts[0], parts[1], parts[2], parts[3]}
	var renewals []driver.Renewal
	for i := range 400 {
		r := guard.Must(guard.JoinResource("tenant", string(rune('a'+i%26)), time.Duration(i).String()))
		if _, err := s.Acquire(t.Context(), driver.Request{Resource: r}); err != nil {
			t.Fatal(err)
		}
		renewals = append(renewals, driver.Renewal{Claim: guard.Claim{Resource: r, Token: 1}, TTL: time.Duration(i + 1)})
	}
	for i, p := range parts {
		if n := len(p.asked); n < 50 || n > 150 {
			t.Errorf("issuer %d has %d of 400 resources", i, n)
		}
	}
	results := make([]driver.Renewed, len(renewals))
	s.Renew(t.Context(), renewals, results)
	for i, r := range results {
		if r.State != driver.Extended || r.TTL != renewals[i].TTL {
			t.Fatalf("renewal %d: %+v", i, r)
		}
		if freed, err := s.Release(t.Context(), renewals[i].Claim); !freed || err != nil {
			t.Fatalf("release %d: %v, %v", i, freed, err)
		}
	}
}

// TestReport: a written report can be read back, and a section replaces the one
// of its name.
func TestReport(t *testing.T) {
	dir := t.TempDir()
	r := Report{Suite: "cost"}
	s := Section{Name: "statement", Title: "Statements", Columns: perCall, Machine: thisMachine("test")}
	figures := []Figure{
		{Way: "floor", Rate: 1000, P50: time.Millisecond, P99: 2 * time.Millisecond, Ratio: Spread{1, 1, 1}},
		{Way: "fenced", Rate: 12345, P50: time.Millisecond, P99: 2 * time.Millisecond, Ratio: Spread{0.8, 0.9, 0.95}},
		{Way: "broken", Err: errors.New("no")},
		{Way: again, Rate: 1000, Ratio: Spread{0.97, 1, 1.02}},
	}
	s.add("durable, 1 client", figures, nil)
	r.put(s)
	r.put(s)
	if err := r.write(dir); err != nil {
		t.Fatal(err)
	}
	read := load(dir, "cost")
	if len(read.Sections) != 1 || len(read.Sections[0].Rows) != 4 || read.Sections[0].Rows[1].Ratio[1] != 0.9 || read.Sections[0].Rows[1].Bar != 0.03 {
		t.Errorf("read back: %+v", read)
	}
	for _, plot := range []func(Section, string) error{plotRatios, plotRates} {
		file := filepath.Join(dir, "plot.svg")
		if err := plot(s, file); err != nil {
			t.Fatal(err)
		}
		if text, err := os.ReadFile(file); err != nil || len(text) < 1000 {
			t.Errorf("%d bytes, %v", len(text), err)
		}
	}
	if got := number(1234567.8); got != "1,234,568" {
		t.Error(got)
	}
}

// TestReadmeFigures compares the pairs a second in the README's table with the
// stored results, rounded to two digits.
func TestReadmeFigures(t *testing.T) {
	text, err := os.ReadFile("results/peers.json")
	var peers Report
	if err != nil || json.Unmarshal(text, &peers) != nil {
		t.Fatal(err)
	}
	measured := map[string]string{}
	for _, section := range peers.Sections {
		for _, row := range section.Rows {
			if section.Name == "pairs" && row.Case == "durable, 64 clients" {
				v := row.Values["a second"]
				unit := math.Pow(10, math.Floor(math.Log10(v))-1)
				n := int(math.Round(v/unit) * unit)
				measured[row.Way] = fmt.Sprintf("%d,%03d", n/1000, n%1000)
			}
		}
	}
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	for first, ways := range map[string][]string{
		"Fencepost":                  {"Fencepost on PostgreSQL"},
		"etcd's Mutex":               {"etcd's Mutex"},
		"pglock, redislock, redsync": {"pglock's statements", "bsm/redislock", "go-redsync"},
	} {
		var want []string
		for _, way := range ways {
			want = append(want, measured[way])
		}
		_, row, there := strings.Cut(string(readme), "\n| "+first+" |")
		row, _, _ = strings.Cut(row, "\n")
		cells := strings.Split(strings.TrimSuffix(row, " |"), " | ")
		if got := cells[len(cells)-1]; !there || got != strings.Join(want, ", ") {
			t.Errorf("%s: the README says %q, measured is %q", first, got, want)
		}
	}
}
