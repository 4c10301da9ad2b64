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

// TestRelay: no client has the lock twice in a row.
func TestRelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRelay()
		ctx, stop := context.WithCancel(t.Context())
		if err := r.allow(ctx, 0); err != nil || r.granted(0) >= 0 {
			t.Fatal("the first grant comes after no release")
		}
		r.free()
		time.Sleep(time.Second)
		first := make(chan error, 1)
		go func() { first <- r.allow(ctx, 0) }()
		synctest.Wait()
		if len(first) > 0 {
			t.Fatal("client 0 twice in a row")
		}
		if err := r.allow(ctx, 1); err != nil || r.granted(1) != time.Second {
			t.Fatal("client 1 had to wait, or its hand-over was not a second")
		}
		if err := <-first; err != nil {
			t.Fatal(err)
		}
		r.granted(0)
		stop()
		if err := r.allow(ctx, 0); err == nil {
			t.Fatal("allowed after the end")
		}
	})
}

// mutex is a lock that is handed over in the given time.
type mutex struct {
	held  chan struct{}
	after time.Duration
}

func (m mutex) lock(ctx context.Context, _ string) (func(context.Context) error, error) {
	select {
	case m.held <- struct{}{}:
		time.Sleep(m.after)
		return func(context.Context) error { <-m.held; return nil }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (m mutex) close() {}

// TestContend: hand-overs are counted in the second in which they happen, and an
// error ends the run.
func TestContend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one := mutex{make(chan struct{}, 1), 30 * time.Millisecond}
		c, err := contend(t.Context(), []locker{one, one, one}, time.Second)
		if err != nil {
			t.Fatal(err)
		}
		v := c.values(time.Second)
		if v["3rd to 12th, a second"] < 33 || v["3rd to 12th, a second"] > 34 || v["p50 ms"] != 30 || v["fewest turns"] < 150 {
			t.Errorf("%v, %v", v, c.perStep)
		}
	})
	if _, err := contend(t.Context(), []locker{broken{}, broken{}}, time.Second); err == nil {
		t.Error("a lock that fails is not noticed")
	}
}

type broken struct{ mutex }

func (broken) lock(context.Context, string) (func(context.Context) error, error) {
	return nil, errors.New("broken")
}

// TestCalm: what a busy machine measured is not stored.
func TestCalm(t *testing.T) {
	for _, c := range []struct {
		load string
		bar  float64
		ok   bool
	}{{"0.31", 0.1, true}, {"4.20", 0.1, false}, {"", 0.1, false}, {"0.31", 0.5, false}} {
		s := Section{Name: "transaction", Machine: Machine{Load: c.load, Cores: 2}, Rows: []Row{{Case: "durable", Way: again, Bar: c.bar}}}
		if err := errors.Join(s.Machine.calm(), s.calm()); (err == nil) != c.ok {
			t.Errorf("load %q, bar %v: %v", c.load, c.bar, err)
		}
	}
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
	file := filepath.Join(dir, "plot.svg")
	if err := plotRatios(s, file); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(file); err != nil || len(text) < 1000 {
		t.Errorf("%d bytes, %v", len(text), err)
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
		"Fencepost":       {"Fencepost on PostgreSQL"},
		"etcd's Mutex":    {"etcd's Mutex"},
		"redsync, pglock": {"go-redsync"},
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

// TestReadmeFigures compares what README.md says of the rate of a fenced transaction with
// the stored results: the least and the most, with and without a network.
func TestReadmeFigures(t *testing.T) {
	text, err := os.ReadFile("results/cost.json")
	var cost Report
	if err != nil || json.Unmarshal(text, &cost) != nil {
		t.Fatal(err)
	}
	near, far := [2]float64{math.Inf(1), 0}, [2]float64{math.Inf(1), 0}
	for _, section := range cost.Sections {
		for _, row := range section.Rows {
			of := &near
			if strings.Contains(row.Case, "network") {
				of = &far
			}
			if row.Way == "DB.InTx" && len(row.Ratio) > 1 {
				*of = [2]float64{min(of[0], row.Ratio[1]), max(of[1], row.Ratio[1])}
			}
		}
	}
	if near[1] == 0 || far[1] == 0 {
		t.Fatal("results/cost.json has no rates of DB.InTx")
	}
	want := fmt.Sprintf("has %.0f-%.0f %% of the rate of an unfenced one, %.0f-%.0f %% behind 1 ms of network", near[0]*100, near[1]*100, far[0]*100, far[1]*100)
	quotes := func(page string) bool {
		return !strings.Contains(page, "of the rate of an unfenced") || strings.Contains(page, want)
	}
	page, err := os.ReadFile("../../../README.md")
	if err != nil || !quotes(string(page)) {
		t.Errorf("README.md quotes another rate than that a fenced transaction %s: %v", want, err)
	}
	if quotes("A fenced transaction has 99-100 % of the rate of an unfenced one.") {
		t.Error("the control: a figure that nobody measured passes")
	}
}
