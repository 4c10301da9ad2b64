package sqlfence

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgerr"
)

// isolationLevels are the levels of the torture: named in the transaction, and
// as the server's default.
var isolationLevels = []string{"read committed", "repeatable read", "serializable"}

// byTrigger is an application's own transaction on guarded tables: raise,
// begin, present, work. The tables are guarded, or broken on purpose, before
// the first. What fails with 40001 is started again, as an application would
// do.
func (e *env) byTrigger(db fence, level string, install func()) work {
	var once sync.Once
	return func(ctx context.Context, claim guard.Claim, fn func(ctx context.Context, tx testTx) error) error {
		once.Do(install)
		if err := db.Raise(ctx, claim); err != nil {
			return err
		}
		for {
			err := ErrorFrom(db.plain(guard.WithClaim(ctx, claim), func(ctx context.Context, tx testTx) error {
				if level != "" {
					if _, err := tx.exec(ctx, "SET TRANSACTION ISOLATION LEVEL "+level); err != nil {
						return err
					}
				}
				if err := tx.present(ctx, claim); err != nil {
					return err
				}
				return fn(ctx, tx)
			}))
			if pgerr.State(err) != "40001" {
				return err
			}
		}
	}
}

// ledger is a guarded counter and a guarded set of rows. Each entry says which
// token added it and how many entries of lower tokens it saw.
const ledger = `CREATE TABLE counter (v bigint NOT NULL); INSERT INTO counter VALUES (0);
	CREATE TABLE entries (n bigserial PRIMARY KEY, token bigint NOT NULL, seen bigint NOT NULL)`

func (e *env) guardLedger() {
	e.freshLedger()
	e.guardBy("counter", `ledger`)
	e.guardBy("entries", `ledger`)
}

// ledgerDamage is what a torture found: additions that were acknowledged and are
// missing, entries that a newer holder did not see, and entries that came in behind
// a newer holder's.
type ledgerDamage struct{ acked, lost, stale, backwards int64 }

// ledgerTorture is torturedLedger where there must be no damage.
func (e *env) ledgerTorture(what string, in work, rounds int) {
	e.Helper()
	d := e.torturedLedger(in, rounds)
	if d.lost != 0 || d.stale != 0 || d.backwards != 0 || d.acked == 0 {
		e.Errorf("%s: %+v", what, d)
	}
}

// torturedLedger lets a crowd of clients, most of them former holders, read, write and
// commit. It is targeted: a holder pauses before its write or before its COMMIT
// until a newer one has read, or for as long as nothing should prevent a newer
// one from reading.
func (e *env) torturedLedger(in work, rounds int) (d ledgerDamage) {
	var next, read, entries, additions atomic.Int64
	var wg sync.WaitGroup
	for range crowd {
		wg.Go(func() {
			token := next.Add(1)
			for range rounds {
				// The next takeover once the newest holder is between its read
				// and its end; the others come back under their old claims.
				if newest := next.Load(); read.Load() >= newest && rand.IntN(3) == 0 && next.CompareAndSwap(newest, newest+1) {
					token = newest + 1
				}
				aim, adds := rand.IntN(3), rand.IntN(2) == 0
				succeeded := func() {
					for end := time.Now().Add(15 * time.Millisecond); read.Load() <= token && time.Now().Before(end); {
						time.Sleep(100 * time.Microsecond)
					}
				}
				err := in(e.Context(), claimOf("ledger", guard.Token(token)), func(ctx context.Context, tx testTx) error {
					seen, err := tx.int(ctx, "SELECT count(*) FROM entries WHERE token < $1::bigint", token)
					if err != nil {
						return err
					}
					v, err := tx.int(ctx, "SELECT v FROM counter")
					if err != nil {
						return err
					}
					for old := read.Load(); old < token && !read.CompareAndSwap(old, token); old = read.Load() {
					}
					if aim == 0 {
						succeeded()
					}
					if adds {
						if _, err := tx.exec(ctx, "UPDATE counter SET v = $1", v+1); err != nil {
							return err
						}
					}
					_, err = tx.exec(ctx, "INSERT INTO entries (token, seen) VALUES ($1::bigint, $2::bigint)", token, seen)
					if err == nil && aim == 1 {
						succeeded()
					}
					return err
				})
				switch guard.ReasonOf(err) {
				case guard.ReasonNone:
					entries.Add(1)
					if adds {
						additions.Add(1)
					}
				case guard.ReasonStale:
					time.Sleep(time.Duration(rand.IntN(10)) * time.Millisecond)
				default:
					e.Errorf("token %d: %v", token, err)
					return
				}
			}
		})
	}
	wg.Wait()
	d.acked = entries.Load()
	d.lost = additions.Load() - e.int("SELECT v FROM counter")
	d.stale = e.int(staleEntries)
	d.backwards = e.int("SELECT count(*) FROM entries a WHERE EXISTS (SELECT FROM entries b WHERE b.n < a.n AND b.token > a.token)")
	e.wantInt(d.acked, "entries that are there, of those acknowledged", "SELECT count(*) FROM entries") // a false verdict
	return d
}

// TestTriggersUnderTorture (P1, P2): clients that take over from each other
// through triggers alone lose no acknowledged update, get no stale row and no
// false verdict, whatever the isolation level.
func TestTriggersUnderTorture(t *testing.T) {
	t.Parallel()
	for i, level := range isolationLevels {
		for j, way := range []string{"named", "the server's default"} {
			t.Run(level+"/"+way, func(t *testing.T) {
				t.Parallel()
				e := newEnv(t, (i+j)%len(openers))
				db, named := e.db, level
				if way != "named" {
					db, named = e.serverDefault("default_transaction_isolation", level), ""
				}
				e.ledgerTorture("by triggers", e.byTrigger(db, named, e.guardLedger), campaign(6))
			})
		}
	}
}

// TestTriggersInterleaved (P1, P2): when the successor comes before the older
// holder's write it is the write that is refused, and when it comes after it
// waits for the older holder's COMMIT. The control: triggers that compare but do
// not lock let it read without seeing what is not yet committed.
func TestTriggersInterleaved(t *testing.T) {
	t.Parallel()
	for i, level := range isolationLevels {
		t.Run(level, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t, i%len(openers))
			run := func(adds, written bool) (acked, lost, stale int64) {
				e.freshLedger()
				return e.interleaved(e.byTrigger(e.db, level, e.guardLedger), adds, written)
			}
			for _, adds := range []bool{false, true} {
				for _, written := range []bool{false, true} {
					want := int64(1)
					if written {
						want = 2
					}
					if acked, lost, stale := run(adds, written); acked != want || lost != 0 || stale != 0 {
						t.Errorf("adds %v, written %v: %d were acknowledged, want %d; %d lost, %d inserts stale", adds, written, acked, want, lost, stale)
					}
				}
			}
			if level == isolationLevels[2] {
				return // SERIALIZABLE refuses such histories by itself
			}
			e.mutate("require", `pg_try_advisory_xact_lock_shared(fencepost.lock_key(p_resource))`, "true")
			e.mutate("enter_snapshot", "PERFORM pg_advisory_xact_lock_shared(", "PERFORM hashtextextended('', ")
			e.mutate("enter_snapshot", "FOR SHARE", "")
			// REPEATABLE READ detects two updates of one row by itself.
			adds := level == isolationLevels[0]
			acked, lost, stale := run(adds, true)
			if acked != 2 || stale != 1 || adds && lost != 1 {
				t.Errorf("without the lock, the control: %d were acknowledged, %d lost, %d inserts stale", acked, lost, stale)
			}
		})
	}
}
