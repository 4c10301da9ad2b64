package main

import (
	"context"
	"encoding/json"
	"errors"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/sqlfence"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// writer is a holder that writes in a loop and ignores its lease.
type writer struct {
	stop context.CancelFunc
	over sync.WaitGroup

	mu      sync.Mutex
	refused error
}

func write(t *testing.T, pool *pgxpool.Pool, claim guard.Claim) *writer {
	t.Helper()
	exec1(t, pool, "CREATE TABLE IF NOT EXISTS work (token bigint NOT NULL)")
	ctx, cancel := context.WithCancel(context.Background())
	w := &writer{stop: cancel}
	t.Cleanup(func() { cancel(); w.over.Wait() })
	for range 2 { // a holder may have several transactions at once
		db := fenced(t, pool)
		w.over.Go(func() {
			for ctx.Err() == nil {
				if err := w.once(ctx, db, claim); err != nil {
					w.mu.Lock()
					w.refused = err
					w.mu.Unlock()
					return
				}
			}
		})
	}
	return w
}

func (w *writer) once(ctx context.Context, db *sqlfence.DB[pgx.Tx], claim guard.Claim) error {
	return db.InTx(ctx, claim, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "INSERT INTO work SELECT $1", int64(claim.Token))
		return err
	})
}

func (w *writer) err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.refused
}

func written(t *testing.T, pool *pgxpool.Pool) int64 {
	t.Helper()
	return value[int64](t, pool, "SELECT count(*) FROM work")
}

// grows waits until there are more rows than before.
func grows(t *testing.T, pool *pgxpool.Pool, before int64) (now int64) {
	t.Helper()
	testkit.Eventually(t, "a write", func() bool { now = written(t, pool); return now > before })
	return now
}

// P1: once force-unlock --raise has ended, no write of the cut holder takes
// effect, although it is writing all the time.
func TestP1ForceUnlockRaise(t *testing.T) {
	t.Parallel()
	url, pool := database(t)
	lease := hold(t, pool, "worker-1", "billing", time.Hour)
	w := write(t, pool, lease.Claim())
	if grows(t, pool, 50) == 50 {
		t.Fatalf("the holder does not write: %v", w.err())
	}
	out := must(t, url, "force-unlock", "billing", "--actor", "ana", "--reason", "it hangs", "--raise", "--yes", "-o", "json")
	cut := written(t, pool)
	w.over.Wait() // each of its loops is refused
	if !errors.Is(w.err(), guard.ErrStale) {
		t.Errorf("the cut holder was stopped by %v, not as stale", w.err())
	}
	if after := written(t, pool); after != cut {
		t.Errorf("%d writes of the cut holder landed after the command had ended", after-cut)
	}
	var said unlocked
	if err := json.Unmarshal([]byte(out), &said); err != nil {
		t.Fatal(err)
	}
	if !said.Raised || said.Warning != "" || said.Mark == nil || said.Mark.Token != said.Invalidated.Token || said.Invalidated.Token <= lease.Token() ||
		said.Cut.LeaseID != lease.ID() || said.Cut.Owner != "worker-1" {
		t.Errorf("%+v", said)
	}
	// The next holder is above the invalidated token, and works.
	next := hold(t, pool, "worker-2", "billing", time.Hour)
	if next.Token() <= said.Invalidated.Token {
		t.Errorf("token %s was granted after %s was invalidated", next.Token(), said.Invalidated.Token)
	}
	if err := w.once(t.Context(), fenced(t, pool), next.Claim()); err != nil {
		t.Error(err)
	}
}

// The control, which also shows that the warning in the documentation is true:
// without --raise the cut holder writes on, until the command that the warning
// names is run.
func TestP1ForceUnlockWithoutRaiseControl(t *testing.T) {
	t.Parallel()
	url, pool := database(t)
	lease := hold(t, pool, "worker-1", "billing", time.Hour)
	w := write(t, pool, lease.Claim())
	if grows(t, pool, 50) == 50 {
		t.Fatalf("the holder does not write: %v", w.err())
	}
	r := fencectl(t, url, "force-unlock", "billing", "--actor", "ana", "--reason", "it hangs", "--yes")
	if r.code != exitOK || !strings.Contains(r.errOut, "still write") {
		t.Fatalf("%+v", r)
	}
	cut := written(t, pool)
	if grows(t, pool, cut) == cut {
		t.Errorf("the cut holder was stopped without a raise, by %v: the warning is not true", w.err())
	}
	_, command, _ := strings.Cut(strings.TrimSpace(r.errOut), "fencectl marks")
	must(t, url, append(strings.Fields("marks "+command), "--yes")...)
	cut = written(t, pool)
	w.over.Wait()
	if after := written(t, pool); after != cut || !errors.Is(w.err(), guard.ErrStale) {
		t.Errorf("%d writes landed after the raise, the writer ended with %v", after-cut, w.err())
	}
}

// The printed command can be pasted, whatever the names begin with.
func TestPastedRaise(t *testing.T) {
	t.Parallel()
	url, pool := database(t)
	for _, claim := range []guard.Claim{
		{Resource: "plain", LeaseID: "l"}, {Resource: "-y", LeaseID: "l"}, {Resource: "--above-issuer", LeaseID: "-l"}, {Resource: "-", LeaseID: "--yes"},
		{Resource: "it's", LeaseID: "a b"}, {Resource: "r", LeaseID: "-x"},
	} {
		claim.Token = 7
		words, err := exec.Command("sh", "-c", `printf '%s\n' `+strings.TrimPrefix(raiseCommand(claim), "fencectl ")).Output()
		if err != nil {
			t.Fatal(err)
		}
		must(t, url, slices.Insert(strings.Split(strings.TrimSpace(string(words)), "\n"), 2, "--yes", "--above-issuer")...)
		if mark, err := fenced(t, pool).Mark(t.Context(), claim.Resource); err != nil || mark.Token != 7 || mark.LeaseID != claim.LeaseID {
			t.Errorf("%+v: the mark is %+v, %v", claim, mark, err)
		}
	}
}

// A newer holder that has raised the mark already also fences the cut holder:
// that is success, and the mark is printed.
func TestForceUnlockRaiseFindsANewerMark(t *testing.T) {
	t.Parallel()
	url, pool := database(t)
	hold(t, pool, "worker-1", "billing", time.Hour)
	if err := fenced(t, pool).Raise(t.Context(), guard.Claim{Resource: "billing", Token: 1000, LeaseID: "newer"}); err != nil {
		t.Fatal(err)
	}
	var said unlocked
	out := must(t, url, "force-unlock", "billing", "--actor", "ana", "--reason", "it hangs", "--raise", "--yes", "-o", "json")
	if err := json.Unmarshal([]byte(out), &said); err != nil {
		t.Fatal(err)
	}
	if !said.Raised || said.Mark == nil || said.Mark.Token != 1000 || said.Mark.LeaseID != "newer" {
		t.Errorf("%s", out)
	}
}

// If the mark cannot be raised after the cut, the command says so, with an exit
// code of its own, and how to continue; continuing works.
func TestForceUnlockThatCannotRaise(t *testing.T) {
	t.Parallel()
	url, pool := database(t)
	lease := hold(t, pool, "worker-1", "billing", time.Hour)
	entered, leave := make(chan struct{}), make(chan struct{})
	var over sync.WaitGroup
	over.Go(func() {
		_ = fenced(t, pool).InTx(context.Background(), lease.Claim(), func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "SELECT")
			close(entered)
			<-leave
			return err
		})
	})
	<-entered
	unlock := []string{"force-unlock", "billing", "--actor", "ana", "--reason", "it hangs", "--raise", "--raise-timeout", "200ms", "--yes", "--request-id", "INC-1"}
	r := fencectl(t, url, append(unlock, "-o", "json")...)
	close(leave)
	over.Wait()
	var said unlocked
	if err := json.Unmarshal([]byte(r.out), &said); err != nil {
		t.Fatalf("%v: %+v", err, r)
	}
	if r.code != exitPartial || said.Raised || said.Warning == "" || !strings.Contains(r.errOut, `"reason":"partial"`) || !strings.Contains(r.errOut, "go on with") {
		t.Errorf("%+v", r)
	}
	// The same request again: nothing is cut twice, and now it is raised.
	r = fencectl(t, url, append(unlock, "--raise-timeout", "1m")...)
	if r.code != exitOK || !strings.Contains(r.out, "done before") || value[int64](t, pool, "SELECT count(*) FROM fencepost.audit") != 1 {
		t.Errorf("%+v", r)
	}
	mark, err := fenced(t, pool).Mark(t.Context(), "billing")
	if err != nil || mark.Token != said.Invalidated.Token {
		t.Errorf("the mark is %v, %v", mark, err)
	}
}

// UnmarshalJSON reads both parts of the result.
func (u *unlocked) UnmarshalJSON(text []byte) error {
	return errors.Join(json.Unmarshal(text, &u.ForceUnlocked), json.Unmarshal(text, &u.unlockedMark))
}
