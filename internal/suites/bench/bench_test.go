package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

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
			{"told", 1, 4000, time.Hour, nil},
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
	e := &env{}
	defer e.Close()
	url, err := e.database(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	pool, err := e.pool(t.Context(), url, 1, 40*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		start := time.Now()
		if err := pool.Ping(t.Context()); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took < 40*time.Millisecond {
			t.Errorf("a round trip of 40 ms took %v", took)
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
	s.add("durable, 1 client", figures)
	*r.section("statement") = s
	*r.section("statement") = s
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

// TestPeersFigures compares the pairs a second in the table of PEERS.md with the
// stored results, rounded to two digits.
func TestPeersFigures(t *testing.T) {
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
	page, err := os.ReadFile("PEERS.md")
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
		_, row, there := strings.Cut(string(page), "\n| "+first+" |")
		row, _, _ = strings.Cut(row, "\n")
		cells := strings.Split(strings.TrimSuffix(row, " |"), " | ")
		if got := cells[len(cells)-1]; !there || got != strings.Join(want, ", ") {
			t.Errorf("%s: PEERS.md says %q, measured is %q", first, got, want)
		}
	}
}
