package pglease

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/internal/pause"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// carryOut answers each operation with its question.
func carryOut(_ context.Context, ops []*operation[int, int]) {
	for _, o := range taken(ops) {
		o.done(o.question, nil)
	}
}

// inFlight makes it look as if a statement were in flight that is never slow.
func (b *batcher[Q, A]) inFlight() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.busy, b.slow = true, time.NewTimer(testkit.Patience)
}

// arrived returns when that many operations wait.
func (b *batcher[Q, A]) arrived(n int) {
	for there := -1; there != n; time.Sleep(time.Millisecond) {
		b.mu.Lock()
		there = len(b.waiting)
		b.mu.Unlock()
	}
}

func batching(send func(context.Context, []*operation[int, int])) *batcher[int, int] {
	return &batcher[int, int]{send: send}
}

// TestTakenOnce: an operation that was answered, or whose caller has gone, is
// not sent again.
func TestTakenOnce(t *testing.T) {
	op := func() *operation[int, int] {
		return &operation[int, int]{ctx: t.Context(), answered: make(chan struct{})}
	}
	waiting, answered, gone := op(), op(), op()
	if n := len(taken([]*operation[int, int]{waiting, answered})); n != 2 {
		t.Errorf("%d of 2 are sent", n)
	}
	answered.done(1, nil)
	answered.done(2, errors.New("later")) // the first answer counts
	gone.state.Store(left)
	if again := taken([]*operation[int, int]{waiting, answered, gone}); len(again) != 1 || again[0] != waiting {
		t.Errorf("%d of 3 are sent again", len(again))
	}
	if answered.answer != 1 || answered.err != nil {
		t.Errorf("answered %d, %v", answered.answer, answered.err)
	}
}

// TestUnsent: an operation that was not sent before its caller left is
// known not to be written.
func TestUnsent(t *testing.T) {
	b := batching(carryOut)
	b.inFlight()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := b.do(ctx, "r", 2, pause.Grace); !NothingWritten(err) || !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	b.end(0)
	if got, err := b.do(t.Context(), "r", 3, pause.Grace); got != 3 || err != nil {
		t.Errorf("got %d, %v", got, err)
	}
	b.close()
	if _, err := b.do(t.Context(), "r", 4, pause.Grace); !errors.Is(err, errClosed) {
		t.Errorf("closed: %v", err)
	}
}

// TestEachOnce: of many operations at once each is sent once, and answered with its own
// response.
func TestEachOnce(t *testing.T) {
	var mu sync.Mutex
	times := map[int]int{}
	b := batching(func(ctx context.Context, ops []*operation[int, int]) {
		mu.Lock()
		for _, o := range ops {
			times[o.question]++
		}
		mu.Unlock()
		carryOut(ctx, ops)
	})
	const all = 5 * maxBatch
	b.inFlight()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel() // of what was lost
	var wg sync.WaitGroup
	for n := range all {
		wg.Go(func() {
			if got, err := b.do(ctx, fmt.Sprint("r", n%(2*maxBatch)), n, pause.Grace); got != n || err != nil {
				t.Errorf("%d got %d, %v", n, got, err)
			}
		})
	}
	b.arrived(all)
	b.end(0)
	testkit.Eventually(t, "the end of the last statement", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return !b.busy && len(b.waiting) == 0
	})
	b.close()
	for n := range all {
		if times[n] != 1 {
			t.Errorf("operation %d was sent %d times", n, times[n])
			break
		}
	}
	cancel()
	wg.Wait()
}

// TestTogether: operations that arrive while a statement is in flight are sent
// together, one per resource, in the order of the resources; an operation that
// arrives while none is in flight is sent alone. A slow statement delays nobody.
func TestTogether(t *testing.T) {
	var mu sync.Mutex
	var sent []string
	gate := make(chan struct{})
	b := batching(func(ctx context.Context, ops []*operation[int, int]) {
		var resources []string
		for _, o := range ops {
			resources = append(resources, o.resource)
		}
		mu.Lock()
		sent = append(sent, strings.Join(resources, " "))
		mu.Unlock()
		if resources[0] == "slow" {
			<-gate
		}
		carryOut(ctx, ops)
	})
	var wg sync.WaitGroup
	ask := func(resource string, n int) {
		wg.Go(func() {
			if got, err := b.do(context.Background(), resource, n, pause.Grace); got != n || err != nil {
				t.Errorf("%s got %d, %v", resource, got, err)
			}
		})
	}
	b.inFlight()
	for n, resource := range []string{"b", "c", "a", "b"} {
		ask(resource, n)
		b.arrived(n + 1)
	}
	b.end(0)
	wg.Wait()
	ask("slow", 1)
	for slow := false; !slow; time.Sleep(time.Millisecond) {
		mu.Lock()
		slow = sent[len(sent)-1] == "slow"
		mu.Unlock()
	}
	if _, err := b.do(context.Background(), "d", 5, pause.Grace); err != nil {
		t.Error(err)
	}
	close(gate)
	wg.Wait()
	b.close()
	slices.Sort(sent)
	if want := []string{"a b c", "b", "d", "slow"}; !slices.Equal(sent, want) {
		t.Errorf("sent %q, want %q", sent, want)
	}
}

// TestSlowStatement: a statement that is stuck holds up nobody for longer than
// slowAfter.
func TestSlowStatement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := make(chan struct{})
		b := batching(func(ctx context.Context, ops []*operation[int, int]) {
			if ops[0].resource == "stuck" {
				<-gate
			}
			carryOut(ctx, ops)
		})
		began := time.Now()
		var stuck sync.WaitGroup
		stuck.Go(func() { b.do(context.Background(), "stuck", 1, pause.Grace) })
		synctest.Wait()
		if _, err := b.do(context.Background(), "held up", 2, pause.Grace); err != nil || time.Since(began) != slowAfter {
			t.Errorf("held up for %v, %v", time.Since(began), err)
		}
		if _, err := b.do(context.Background(), "later", 3, pause.Grace); err != nil || time.Since(began) != slowAfter {
			t.Errorf("held up for %v, %v", time.Since(began), err)
		}
		close(gate)
		stuck.Wait()
		b.close()
	})
}

// TestCloseEndsNoStatement: an operation that is in flight with others when its
// batcher is closed is answered, and so is one that waits for its turn; ending
// the statement would leave the outcome of a release unknown, and the lease in
// place.
func TestCloseEndsNoStatement(t *testing.T) {
	sending, gate := make(chan struct{}, 2), make(chan struct{})
	b := batching(func(ctx context.Context, ops []*operation[int, int]) {
		sending <- struct{}{}
		select {
		case <-gate:
		case <-ctx.Done():
		}
		for _, o := range taken(ops) {
			o.done(o.question, ctx.Err())
		}
	})
	b.inFlight()
	var wg sync.WaitGroup
	for n, resource := range []string{"a", "b", "b"} {
		wg.Go(func() {
			if got, err := b.do(context.Background(), resource, n, pause.Grace); got != n || err != nil {
				t.Errorf("%s got %d, %v", resource, got, err)
			}
		})
	}
	b.arrived(3)
	b.end(0)
	<-sending
	closed := make(chan struct{})
	go func() { b.close(); close(closed) }()
	for refused := false; !refused; time.Sleep(time.Millisecond) {
		b.mu.Lock()
		refused = b.closed
		b.mu.Unlock()
	}
	select {
	case <-closed:
		t.Error("close did not wait")
	case <-time.After(3 * pause.Grace): // by which it used to end the statement
	}
	close(gate)
	wg.Wait()
	<-closed
}

// TestGivesUpInFlight: if the statement goes on for longer than twice the grace,
// its outcome is unknown, and the answer that comes later is nobody's.
func TestGivesUpInFlight(t *testing.T) {
	gate, sending := make(chan struct{}), make(chan struct{})
	b := batching(func(_ context.Context, ops []*operation[int, int]) {
		for _, o := range taken(ops) {
			close(sending)
			<-gate
			o.done(o.question, nil)
		}
	})
	b.inFlight()
	ctx, cancel := context.WithCancel(t.Context())
	got := make(chan error, 1)
	go func() { _, err := b.do(ctx, "r", 1, time.Millisecond); got <- err }()
	b.arrived(1)
	b.end(0)
	<-sending
	cancel()
	if err := <-got; !errors.Is(err, context.Canceled) || NothingWritten(err) {
		t.Errorf("got %v", err)
	}
	close(gate)
	b.close()
}

// TestTurnInLine: a process that is not named first looks after the lease has
// been kept for those before it, and is woken if it is still free then and nobody
// has come. The controls are not woken.
func TestTurnInLine(t *testing.T) {
	const me, never = "me", time.Duration(-1)
	r := Topic("r")
	for name, test := range map[string]struct {
		payloads []string
		held     bool
		woken    time.Duration
	}{
		"nobody is named":                        {[]string{r + " "}, false, 0},
		"named first":                            {[]string{r + " " + me + " other"}, false, 0},
		"second":                                 {[]string{r + " dead " + me}, false, keepFor},
		"third":                                  {[]string{r + " dead gone " + me}, false, 2 * keepFor},
		"second, then first":                     {[]string{r + " dead " + me, r + " " + me}, false, 0},
		"released again, and later in the queue": {[]string{r + " dead " + me, r + " one two three four five " + me}, false, 5 * keepFor},
		"control: the lease was taken":           {[]string{r + " dead " + me}, true, never},
		"control: another resource":              {[]string{Topic("s") + " " + me}, false, never},
	} {
		testkit.Bubble(t, name, func(t *testing.T) {
			looked := 0
			l := newListener(&Issuer{process: me}, true)
			l.held = func(context.Context, driver.Watch) (*driver.HeldError, error) {
				looked++
				if test.held {
					return &driver.HeldError{Resource: "r"}, nil
				}
				return nil, nil
			}
			began, woken := time.Now(), never
			s := l.subscribe(t.Context(), "r", "waiter's", func() {
				if woken == never {
					woken = time.Since(began)
				}
			})
			for _, payload := range test.payloads {
				l.heard(payload)
			}
			time.Sleep(time.Minute)
			l.wg.Wait()
			if woken != test.woken || looked > 1 {
				t.Errorf("woken after %v, want %v (-1 is never); it looked %d times", woken, test.woken, looked)
			}
			l.unsubscribe(s)
			l.close()
		})
	}
}

type safeError struct{}

func (safeError) Error() string     { return "safe" }
func (safeError) SafeToRetry() bool { return true }

// TestFailure is the table of what an error proves.
func TestFailure(t *testing.T) {
	pg := func(severity, code string) error {
		return &pgconn.PgError{Severity: severity, SeverityUnlocalized: severity, Code: code}
	}
	_, refused := pgx.Connect(t.Context(), "postgres://127.0.0.1:1/none?sslmode=disable")
	var connect *pgconn.ConnectError
	if !errors.As(refused, &connect) {
		t.Fatal(refused)
	}
	for _, test := range []struct {
		name    string
		err     error
		unknown bool
	}{
		{"serialization failure", pg("ERROR", "40001"), false},
		{"deadlock", pg("ERROR", "40P01"), false},
		{"lock timeout", pg("ERROR", "55P03"), false},
		{"statement timeout", pg("ERROR", "57014"), false},
		{"out of memory", pg("ERROR", "53200"), false},
		{"read-only", pg("ERROR", "25006"), false},
		{"no table", pg("ERROR", "42P01"), false},
		{"no right", pg("ERROR", "42501"), false},
		{"localized", &pgconn.PgError{Severity: "FEHLER", SeverityUnlocalized: "ERROR", Code: "55P03"}, false},
		{"old server", &pgconn.PgError{Severity: "ERROR", Code: "55P03"}, false},
		{"wrapped", fmt.Errorf("x: %w", pg("ERROR", "55P03")), false},
		{"connection refused", refused, false},
		{"nothing sent", safeError{}, false},
		{"waiting for a connection", Harmless(context.DeadlineExceeded), false},
		{"refused and then broken", Harmless(io.ErrUnexpectedEOF), false},

		{"administrator", pg("FATAL", "57P01"), true},
		{"crash", pg("FATAL", "57P02"), true},
		{"administrator, not fatal", pg("ERROR", "57P01"), true},
		{"idle in transaction", pg("FATAL", "25P03"), true},
		{"panic", pg("PANIC", "XX000"), true},
		{"pooler lost its server", pg("ERROR", "08006"), true},
		{"resolution unknown", pg("ERROR", "08007"), true},
		{"completion unknown", pg("ERROR", "40003"), true},
		{"system error", pg("ERROR", "58030"), true},
		{"internal error", pg("ERROR", "XX000"), true},
		{"localized fatal", &pgconn.PgError{Severity: "FATAL", SeverityUnlocalized: "FATAL", Code: "55P03"}, true},
		{"closed", io.ErrUnexpectedEOF, true},
		{"no answer in time", context.DeadlineExceeded, true},
		{"unreadable answer", errors.New("cannot scan"), true},
	} {
		t.Run(test.name, func(t *testing.T) {
			want := guard.ReasonUnavailable
			if test.name == "no table" || test.name == "no right" {
				want = guard.ReasonSetup
			}
			if test.unknown {
				want = guard.ReasonOutcomeUnknown
			}
			claim := guard.Claim{Resource: "r", LeaseID: "id"}
			err := Failure("acquire", claim, test.err)
			var failed *guard.FailedError
			if guard.ReasonOf(err) != want || !errors.Is(err, test.err) || !errors.As(err, &failed) || failed.Claim != claim {
				t.Errorf("got %v", err)
			}
		})
	}
	if Failure("acquire", guard.Claim{}, nil) != nil {
		t.Error("success is a failure")
	}
}

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
