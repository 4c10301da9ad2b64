package pglease

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgerr"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/internal/input"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgtype/zeronull"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Issuer issues leases from PostgreSQL. Grants run on the caller's pool;
// renewals on a small pool of its own, so that a caller that uses up all
// connections of its pool cannot starve them, and releases on either. Acquires
// that arrive while one is in flight are sent together, and so are releases.
type Issuer struct {
	*Server
	own      *pgxpool.Pool
	slots    chan struct{} // has room for what uses own
	others   chan struct{} // has room for what uses own besides renewals
	grants   chan struct{} // has room for grants on own
	process  string        // names this issuer in the queue of waiters
	listener *listener
	time     serverTime
	acquires batcher[attempt, driver.Grant]
	releases batcher[guard.Claim, bool]
}

var (
	_ driver.Issuer    = (*Issuer)(nil)
	_ driver.Explainer = (*Issuer)(nil)
)

// keepFor is how long a released lease is kept for the longest-waiting process.
const keepFor = 100 * time.Millisecond

var (
	errClosed     = errors.New("the issuer is closed")
	errUnanswered = errors.New("the server sent no response for it")
)

// NewIssuer returns an issuer on a server that uses at most conns connections of its own
// at once, and does not listen if waiters are to poll. It opens no connection yet.
func NewIssuer(s *Server, conns int, poll bool) (*Issuer, error) {
	config := s.Pool.Config()
	// More than are used at once: pgx takes up to 15 seconds to give up a connection
	// that the network has dropped silently, and that counts until then.
	config.MaxConns = 4 * int32(conns)
	config.MinConns, config.MinIdleConns = 0, 0 // connects when first needed
	// A ping would cost every renewal a round trip. A dead connection costs the
	// attempt, which is repeated.
	config.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false }
	// A connection attempt that hangs occupies a place in the pool.
	if t := config.ConnConfig.ConnectTimeout; t <= 0 || t > s.OpTimeout {
		config.ConnConfig.ConnectTimeout = s.OpTimeout
	}
	watched(config)
	own, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		return nil, guard.Unavailable("new", guard.Claim{}, err)
	}
	i := &Issuer{Server: s, own: own, slots: make(chan struct{}, conns), others: make(chan struct{}, max(1, conns/2)), grants: make(chan struct{}, conns), process: input.NewLeaseID()[24:]} // its random end
	i.acquires.send, i.releases.send = i.sendAcquires, i.sendReleases
	i.listener = newListener(i, poll)
	return i, nil
}

// Limits: a thousand renewals in a statement, metadata of 1,000 bytes.
func (i *Issuer) Limits() driver.Limits { return driver.Limits{Batch: 1000, MetadataBytes: 1000} }

// Close waits for the statements in flight, each of which ends by its timeout.
func (i *Issuer) Close() error {
	i.listener.close()
	i.acquires.close()
	i.releases.close()
	i.own.Close()
	reporting, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	i.reports.Drain(reporting) // as long as no logger blocks
	return nil
}

// serverTime is what is known of the server's clock: a lower bound on how far it is
// ahead of the holder's. A moment of the holder's clock is then early on the
// server's, and a request that was delayed past its timeout is not granted (P8).
type serverTime struct {
	mu    sync.Mutex
	known bool
	ahead time.Duration // the server's time since 1970 less [driver.Now]
}

// learn takes a time that the server read between the request and the response.
func (s *serverTime) learn(at time.Time, sent, answered time.Duration) {
	most, least := time.Duration(at.UnixNano())-sent, time.Duration(at.UnixNano())-answered
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.known || least > s.ahead || most < s.ahead {
		s.known, s.ahead = true, least
	}
}

// at is the server's time at a moment of the holder's clock, or a little earlier.
func (s *serverTime) at(now time.Duration) (at time.Time, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Unix(0, int64(now+s.ahead)), s.known
}

// Acquire asks for a lease, together with other acquires made at the same time.
func (i *Issuer) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if _, known := i.time.at(0); i.Entered() == nil || !known {
		began := driver.Now()
		preparing, cancel := context.WithTimeout(ctx, r.Timeout+i.Grace)
		err := i.prepare(preparing)
		cancel()
		if r.Timeout -= driver.Now() - began; err == nil && r.Timeout <= 0 {
			err = Harmless(driver.ErrLate)
		}
		if err != nil {
			return driver.Grant{}, Failure("acquire", r.Claim(), err)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, r.Timeout)
	defer cancel()
	g, err := i.acquires.do(ctx, r.Resource, attempt{r, driver.Now()}, i.Grace)
	if err == nil {
		i.listener.granted(r.Resource)
	}
	if errors.Is(err, driver.ErrHeld) || errors.Is(err, driver.ErrLeaseIDSpent) || errors.Is(err, guard.ErrInvalid) {
		return driver.Grant{}, err
	}
	return g, Failure("acquire", r.Claim(), err)
}

// prepare enters the server and learns its time.
func (i *Issuer) prepare(ctx context.Context) error {
	return i.On(ctx, i.Pool, i.OpTimeout, func(ctx context.Context, conn *pgx.Conn, lockTimeout string) error {
		_, err := i.Enter(ctx, conn, lockTimeout)
		if err == nil {
			var at time.Time
			sent := driver.Now()
			var standby bool
			if err = conn.QueryRow(ctx, timeSQL).Scan(&at, &standby); err == nil {
				i.time.learn(at, sent, driver.Now())
				i.standby.Store(standby)
			}
		}
		return Harmless(err)
	})
}

// attempt is one request with the moment at which it was made.
type attempt struct {
	driver.Request
	began time.Duration
}

// stateLate is the SQLSTATE of fencepost.late.
const stateLate = "FL001"

// shortLock is how long a statement of several operations waits for a row, in
// milliseconds. After that each is sent by itself.
const shortLock = "20"

func (i *Issuer) sendAcquires(ctx context.Context, ops []*operation[attempt, driver.Grant]) {
	var timeout time.Duration
	for _, o := range ops {
		timeout = max(timeout, o.question.Timeout)
	}
	var asked []*operation[attempt, driver.Grant]
	err := i.grant(ctx, timeout, func(ctx context.Context, conn *pgx.Conn, lockTimeout string) error {
		in, err := i.Enter(ctx, conn, lockTimeout)
		if err != nil {
			return Harmless(err)
		}
		if asked = taken(ops); len(asked) > 1 {
			lockTimeout = shortLock
		}
		again := asked
		for round := 0; round < 2 && len(again) > 0 && err == nil; round++ {
			again, err = i.acquire(ctx, conn, in, again, lockTimeout)
		}
		fail(again, Harmless(driver.ErrLate))
		return err
	})
	pg := Error(err)
	if pg != nil && NothingWritten(pg) && len(asked) > 1 {
		i.acquires.each(asked)
		return
	}
	if pg != nil && pg.Code == stateLate {
		err = Harmless(fmt.Errorf("%w: %w", driver.ErrLate, pg))
	}
	fail(ops, cmp.Or(err, errUnanswered))
}

// A row that acquireSQL returns.
type answer struct {
	resource       string
	granted, spent bool
	reclaimed      *bool
	acquiredAt     pgtype.Timestamptz // infinite, if somebody has written that
	now            time.Time
	holder
	standby bool
}

// acquire carries out acquires on a connection. An error goes to those without
// a response. again are those that were late by the server's clock only: it was
// not known well enough, and is now.
func (i *Issuer) acquire(ctx context.Context, conn *pgx.Conn, in *Instance, ops []*operation[attempt, driver.Grant], lockTimeout string) (again []*operation[attempt, driver.Grant], err error) {
	from := driver.Now()
	rows, _ := conn.Query(ctx, acquireSQL, i.acquireArgs(in, ops, lockTimeout)...) // CollectRows has its error
	answers, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (a answer, err error) {
		err = row.Scan(&a.resource, &a.granted, &a.token, &a.acquiredAt, &a.now, &a.reclaimed,
			&a.spent, &a.leaseID, &a.owner, &a.metadata, &a.expiresAt, &a.remaining, &a.standby)
		return a, err
	})
	if err != nil {
		return nil, err
	}
	answered := driver.Now()
	if len(answers) == 0 { // not the server that was entered
		if _, err = i.Reenter(ctx, conn, Raise{}, lockTimeout); err != nil {
			return nil, Harmless(err)
		}
		for _, o := range ops {
			o.done(driver.Grant{}, &driver.HeldError{Resource: o.resource})
		}
		return nil, nil
	}
	i.standby.Store(answers[0].standby)
	if err := cmp.Or(doubt(conn), unseen(conn, answers[0].standby)); err != nil {
		return nil, err
	}
	at := make(map[string]*operation[attempt, driver.Grant], len(ops))
	for _, o := range ops {
		at[o.resource] = o
	}
	for _, a := range answers { // those that were granted come first
		o := at[a.resource]
		end := o.question.began + o.question.Timeout
		until, _ := i.time.at(end)
		switch late := !until.After(a.now); {
		case a.granted:
			o.done(driver.Grant{Token: guard.Token(Of(a.token)), AcquiredAt: a.acquiredAt.Time, Reclaimed: Of(a.reclaimed), From: from}, nil)
		case a.spent:
			o.done(driver.Grant{}, driver.ErrLeaseIDSpent)
		case a.token != nil && Of(a.leaseID) == o.question.LeaseID:
			o.done(driver.Grant{}, driver.LeaseIDInUse(o.question.LeaseID, Of(a.owner)))
		case a.token != nil:
			o.done(driver.Grant{}, a.held(a.resource))
		case late && driver.Now() < end:
			again = append(again, o)
		case late:
			o.done(driver.Grant{}, Harmless(driver.ErrLate))
		default: // free by now
			o.done(driver.Grant{}, &driver.HeldError{Resource: a.resource})
		}
	}
	i.time.learn(answers[0].now, from, answered)
	return again, nil
}

func (i *Issuer) acquireArgs(in *Instance, ops []*operation[attempt, driver.Grant], lockTimeout string) []any {
	n := len(ops)
	resources, ids, owners, metadata := make([]string, n), make([]string, n), make([]string, n), make([]string, n)
	ttls, until, waiting := make([]int64, n), make([]time.Time, n), make([]bool, n)
	for k, o := range ops {
		r := o.question
		resources[k], ids[k], owners[k], metadata[k] = r.Resource, r.LeaseID, r.Owner, r.Metadata
		ttls[k], waiting[k] = r.TTL.Microseconds(), r.Waiting
		until[k], _ = i.time.at(r.began + r.Timeout)
	}
	return []any{resources, ids, owners, metadata, ttls, until, waiting, i.process, lockTimeout, zeronull.Timestamptz(in.Started), int64(in.Leases)}
}

// holder is who has a lease, or for whom it is kept.
type holder struct {
	token, remaining         *int64
	leaseID, owner, metadata *string
	expiresAt                *time.Time
}

// held is the refusal; a kept lease's Remaining is how long it is kept.
func (h *holder) held(resource string) *driver.HeldError {
	if Of(h.leaseID) == "" {
		kept := max(0, time.Duration(Of(h.remaining))*time.Microsecond+keepFor)
		return &driver.HeldError{Resource: resource, ExpiresAt: Of(h.expiresAt).Add(keepFor), Remaining: kept}
	}
	return &driver.HeldError{
		Resource: resource, Owner: Of(h.owner), Metadata: Of(h.metadata), Token: guard.Token(Of(h.token)), LeaseID: Of(h.leaseID),
		ExpiresAt: Of(h.expiresAt), Remaining: time.Duration(Of(h.remaining)) * time.Microsecond,
	}
}

// Renew extends leases in one statement. Only a single renewal waits for its
// row.
func (i *Issuer) Renew(ctx context.Context, renewals []driver.Renewal, results []driver.Renewed) {
	n := len(renewals)
	resources, ids, tokens, ttls := make([]string, n), make([]string, n), make([]int64, n), make([]int64, n)
	at := make(map[guard.Claim]int, n)
	for k, r := range renewals {
		resources[k], ids[k], tokens[k], ttls[k] = r.Claim.Resource, r.Claim.LeaseID, int64(r.Claim.Token), r.TTL.Microseconds()
		at[r.Claim] = k
	}
	err := i.onOwn(ctx, func(ctx context.Context, conn *pgx.Conn, lockTimeout string) error {
		for k := range results {
			results[k] = driver.Renewed{State: driver.Over} // unless there is a row of it
		}
		from := driver.Now()
		rows, _ := conn.Query(ctx, renewSQL, resources, ids, tokens, ttls, lockTimeout) // ForEachRow has its error
		var row guard.Claim
		var extended, standby bool
		_, err := pgx.ForEachRow(rows, []any{&row.Resource, &row.LeaseID, (*int64)(&row.Token), &extended, &standby}, func() error {
			switch k := at[row]; {
			case extended:
				results[k] = driver.Renewed{State: driver.Extended, From: from}
			case results[k].State == driver.Over:
				results[k] = driver.Renewed{Err: guard.Unavailable("renew", renewals[k].Claim, driver.ErrBusy)}
			}
			return nil
		})
		return cmp.Or(err, unseen(conn, standby))
	})
	if err != nil {
		if !NothingWritten(err) && (ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded)) {
			i.own.Reset() // no response: the others may be as dead, and the next attempt opens one
		}
		for k, r := range renewals { // rolled back, or not known
			results[k] = driver.Renewed{Err: Failure("renew", r.Claim, err)}
		}
	}
}

// Release frees a lease, together with other releases made at the same time,
// and wakes the process that has waited longest. The release of a claim
// without a token invalidates its lease ID.
func (i *Issuer) Release(ctx context.Context, claim guard.Claim) (freed bool, err error) {
	if claim.Token != guard.NoToken {
		if freed, err = i.releases.do(ctx, claim.Resource, claim, i.Grace); errors.Is(err, errClosed) {
			freed, err = i.releaseLate(ctx, claim)
		}
	} else {
		err = i.aside(ctx, func(ctx context.Context, conn *pgx.Conn, lockTimeout string) error {
			return withoutTopic(func(topic func(string) string) error {
				var standby bool
				err := conn.QueryRow(ctx, spendSQL, claim.Resource, claim.LeaseID, topic(claim.Resource), lockTimeout).Scan(&freed, &standby)
				return cmp.Or(err, unseen(conn, standby))
			})
		})
	}
	return freed, Failure("release", claim, err)
}

// releaseLate releases after Close, on the caller's pool, which stays open: a release
// that is called while Close runs would otherwise leave the lease for its TTL.
func (i *Issuer) releaseLate(ctx context.Context, claim guard.Claim) (freed bool, err error) {
	op := &operation[guard.Claim, bool]{ctx: ctx, resource: claim.Resource, question: claim, answered: make(chan struct{})}
	err = i.On(ctx, i.Pool, i.OpTimeout, func(ctx context.Context, conn *pgx.Conn, lockTimeout string) error {
		return withoutTopic(func(topic func(string) string) error {
			return i.release(ctx, conn, []*operation[guard.Claim, bool]{op}, lockTimeout, topic)
		})
	})
	return op.answer, err
}

func (i *Issuer) sendReleases(ctx context.Context, ops []*operation[guard.Claim, bool]) {
	var asked []*operation[guard.Claim, bool]
	err := i.aside(ctx, func(ctx context.Context, conn *pgx.Conn, lockTimeout string) error {
		if asked = taken(ops); len(asked) > 1 {
			lockTimeout = shortLock
		}
		if len(asked) == 0 {
			return nil
		}
		send := func(topic func(string) string) error { return i.release(ctx, conn, asked, lockTimeout, topic) }
		if len(asked) > 1 {
			return send(Topic)
		}
		return withoutTopic(send)
	})
	if pg := Error(err); pg != nil && NothingWritten(pg) && len(asked) > 1 {
		i.releases.each(asked)
		return
	}
	fail(ops, cmp.Or(err, errUnanswered))
}

// withoutTopic repeats a refused release without a notification: one that cannot be
// sent, since the server's queue is full, the role may not notify or somebody has
// spoilt the line of waiters, must not block the release.
func withoutTopic(release func(topic func(resource string) string) error) error {
	err := release(Topic)
	if pg := Error(err); pg != nil && NothingWritten(pg) && !pgerr.Contention(pg) {
		err = release(func(string) string { return "" })
	}
	return err
}

// release carries out releases on a connection.
func (i *Issuer) release(ctx context.Context, conn *pgx.Conn, ops []*operation[guard.Claim, bool], lockTimeout string, topic func(resource string) string) error {
	n := len(ops)
	resources, ids, tokens, topics := make([]string, n), make([]string, n), make([]int64, n), make([]string, n)
	for k, o := range ops {
		c := o.question
		resources[k], ids[k], tokens[k], topics[k] = c.Resource, c.LeaseID, int64(c.Token), topic(c.Resource)
	}
	rows, _ := conn.Query(ctx, releaseSQL, resources, ids, tokens, topics, lockTimeout) // ForEachRow has its error
	freed := make(map[string]bool, n)
	var resource string
	var told bool
	_, err := pgx.ForEachRow(rows, []any{&resource, &told}, func() error {
		freed[resource] = true
		return nil
	})
	if err == nil {
		for _, o := range ops {
			o.done(freed[o.resource], nil)
		}
	}
	return err
}

// Why returns who force-unlocked a lease.
func (i *Issuer) Why(ctx context.Context, claim guard.Claim) error {
	var cut driver.ForceUnlockedError
	err := i.aside(ctx, func(ctx context.Context, conn *pgx.Conn, _ string) error {
		return conn.QueryRow(ctx, forceUnlockedSQL, claim.Resource, claim.LeaseID, int64(claim.Token)).Scan(&cut.Actor, &cut.Reason, &cut.At, new(bool))
	})
	if err != nil {
		return nil // nobody, or it is unknown
	}
	return &cut
}

// errNotListening passes: the plain error would say that there is nothing to wait for.
var errNotListening = fmt.Errorf("%w: the connection that listens is not open", driver.ErrNoWatch)

// Watch subscribes and then sets the wake mark. Without a lease ID it only looks.
func (i *Issuer) Watch(ctx context.Context, w driver.Watch, wake func()) (watching driver.Watching, err error) {
	stop := func() {}
	if w.LeaseID != "" {
		sub := i.listener.subscribe(ctx, w.Resource, w.LeaseID, wake)
		stop = func() { i.listener.unsubscribe(sub) }
		if !i.listener.listening(ctx, w.Wait) {
			stop()
			return driver.Watching{}, errNotListening
		}
		i.listener.join(sub, true)
		defer func() { // there is no place in a full queue
			if errors.Is(err, driver.ErrNoWatch) {
				i.listener.join(sub, false)
				stop()
			}
		}()
	}
	var held *driver.HeldError
	err = i.On(ctx, i.Pool, i.OpTimeout, func(ctx context.Context, conn *pgx.Conn, lockTimeout string) (err error) {
		if err = i.CheckSchema(ctx, conn); err != nil {
			return Harmless(err)
		}
		if held, err = i.watch(ctx, conn, w, lockTimeout); w.LeaseID == "" {
			err = Harmless(err) // it only looked
		}
		return err
	})
	if err != nil {
		if !errors.Is(err, driver.ErrNoWatch) {
			stop()
		}
		return driver.Watching{}, Failure("watch", guard.Claim{Resource: w.Resource, LeaseID: w.LeaseID}, err)
	}
	return driver.Watching{Held: held, Stop: stop}, nil
}

// watch is the last step of Watch.
func (i *Issuer) watch(ctx context.Context, q interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}, w driver.Watch, lockTimeout string) (*driver.HeldError, error) {
	var h holder
	var marked *bool // nil: the queue is full
	err := q.QueryRow(ctx, watchSQL, w.Resource, w.LeaseID, i.process, lockTimeout).
		Scan(&h.token, &h.leaseID, &h.owner, &h.metadata, &h.expiresAt, &h.remaining, &marked, new(bool))
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil, nil
	case err != nil:
		return nil, err
	case marked == nil:
		return nil, Harmless(driver.ErrNoWatch)
	case !*marked && w.LeaseID != "":
		return nil, nil
	}
	return h.held(w.Resource), nil
}
