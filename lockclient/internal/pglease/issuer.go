package pglease

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Issuer issues leases from PostgreSQL. Grants run on the caller's pool;
// renewals and releases on a small pool of its own, so that a caller who keeps
// all of his connections cannot starve them. Acquires that come while one is
// under way go out together, and so do releases.
type Issuer struct {
	*Server
	own      *pgxpool.Pool
	process  string // names this issuer in the line of the waiting
	listener *listener
	time     serverTime
	acquires combiner[attempt, driver.Grant]
	releases combiner[guard.Claim, bool]
}

var (
	_ driver.Issuer    = (*Issuer)(nil)
	_ driver.Explainer = (*Issuer)(nil)
)

// keepFor is how long a released lease is kept for who has waited longest.
const keepFor = 100 * time.Millisecond

var errClosed = errors.New("the issuer is closed")

// Config is what an [Issuer] is made of, with every default filled in.
type Config struct {
	Pool                   *pgxpool.Pool
	Owner                  string // of the log lines
	OpTimeout, LockTimeout time.Duration
	Conns                  int // of its own
	Wake                   Wake
	Logger                 *slog.Logger
}

// NewIssuer connects to nothing yet.
func NewIssuer(c Config) (*Issuer, error) {
	config := c.Pool.Config()
	config.MaxConns = int32(c.Conns)
	config.MinConns, config.MinIdleConns = 0, 0 // connects when first needed
	// A ping would cost every renewal a round trip. A dead connection costs the
	// attempt, which is repeated.
	config.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false }
	// A connect that hangs keeps its place in the pool.
	if t := config.ConnConfig.ConnectTimeout; t <= 0 || t > c.OpTimeout {
		config.ConnConfig.ConnectTimeout = c.OpTimeout
	}
	own, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		return nil, guard.Unavailable("new", guard.Claim{}, err)
	}
	i := &Issuer{
		Server:  &Server{Pool: c.Pool, OpTimeout: c.OpTimeout, LockTimeout: c.LockTimeout, Grace: Grace, Logger: c.Logger},
		own:     own,
		process: NewLeaseID()[24:], // its random end
	}
	i.acquires.send, i.releases.send = i.sendAcquires, i.sendReleases
	i.listener = i.newListener(c)
	return i, nil
}

// Limits: a thousand renewals in a statement, metadata of 1,000 bytes.
func (i *Issuer) Limits() driver.Limits { return driver.Limits{Batch: 1000, MetadataBytes: 1000} }

// Close waits for the statements under way.
func (i *Issuer) Close() error {
	i.listener.close()
	i.acquires.close()
	i.releases.close()
	i.own.Close()
	return nil
}

// serverTime is what is known of the server's clock: that it is at most ahead of
// the holder's by so much.
type serverTime struct {
	mu    sync.Mutex
	known bool
	ahead time.Duration // the server's time since 1970 less [driver.Now]
}

// learn takes a time that the server told between sent and now.
func (s *serverTime) learn(at time.Time, sent time.Duration) {
	most, least := time.Duration(at.UnixNano())-sent, time.Duration(at.UnixNano())-driver.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.known || most < s.ahead || least > s.ahead {
		s.known, s.ahead = true, most
	}
}

// at is the server's time at a moment of the holder's clock, or a little later.
func (s *serverTime) at(now time.Duration) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Unix(0, int64(now+s.ahead))
}

func (s *serverTime) isKnown() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.known
}

// Acquire asks for a lease, together with what else is asked at this time.
func (i *Issuer) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if i.Entered() == nil || !i.time.isKnown() { // apart, since it need not fit into the TTL
		if err := i.prepare(ctx); err != nil {
			return driver.Grant{}, Failure("acquire", r.Claim(), err)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, r.Timeout)
	defer cancel()
	g, err := i.acquires.do(ctx, r.Resource, attempt{r, driver.Now()}, i.Grace)
	if errors.Is(err, driver.ErrHeld) || errors.Is(err, driver.ErrSpent) {
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
			if err = conn.QueryRow(ctx, "SELECT clock_timestamp()").Scan(&at); err == nil {
				i.time.learn(at, sent)
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

// shortLock is how long a statement of several operations waits for a row, in
// milliseconds. Then each goes by itself.
const shortLock = "20"

func (i *Issuer) sendAcquires(ops []*operation[attempt, driver.Grant]) {
	ctx, cancel := together(ops)
	defer cancel()
	var timeout time.Duration
	for _, o := range ops {
		timeout = max(timeout, o.question.Timeout)
	}
	sent := ops
	err := i.On(ctx, i.Pool, timeout, func(ctx context.Context, conn *pgx.Conn, lockTimeout string) error {
		in, err := i.Enter(ctx, conn, lockTimeout)
		if err != nil {
			return Harmless(err)
		}
		if sent = taken(ops); len(sent) > 1 {
			lockTimeout = shortLock
		}
		if len(sent) == 0 {
			return nil
		}
		return i.acquire(ctx, conn, in, sent, lockTimeout)
	})
	if pg := Error(err); pg != nil && Passes(pg) && len(sent) > 1 {
		i.acquires.each(sent)
		return
	}
	fail(ops, err)
}

// acquire carries out acquires on a connection. An error is of those that have
// no answer by then.
func (i *Issuer) acquire(ctx context.Context, conn *pgx.Conn, in *Instance, ops []*operation[attempt, driver.Grant], lockTimeout string) error {
	for round := 0; ; round++ {
		from := driver.Now()
		rows, err := conn.Query(ctx, acquireStatement(in), i.acquireArgs(in, ops, lockTimeout)...)
		if err != nil {
			return err
		}
		type granted struct {
			driver.Grant
			resource string
			at       time.Time
		}
		grants, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (g granted, err error) {
			var token int64
			var synced *string
			var reclaimed *bool
			err = row.Scan(&g.resource, &token, &g.AcquiredAt, &g.at, &synced, &reclaimed)
			g.Token, g.Reclaimed, g.From = guard.Token(token), Of(reclaimed), from
			return g, err
		})
		if err != nil {
			return err
		}
		for _, g := range grants {
			i.time.learn(g.at, from)
			n := slices.IndexFunc(ops, func(o *operation[attempt, driver.Grant]) bool { return o.resource == g.resource })
			ops[n].done(g.Grant, nil)
		}
		ops = slices.DeleteFunc(ops, func(o *operation[attempt, driver.Grant]) bool { return o.hasAnswer() })
		if len(ops) == 0 {
			return nil
		}
		// What is left was refused; nothing of it is written.
		again, elsewhere, err := i.refused(ctx, conn, ops)
		if err == nil && elsewhere { // free by now, or not the server that was entered
			_, err = i.Reenter(ctx, conn, Lift{}, lockTimeout)
		}
		if err != nil {
			return Harmless(fmt.Errorf("refused, and the holder could not be read: %w", err))
		}
		for _, o := range ops { // who is not asked again, and not told anything yet
			if !slices.Contains(again, o) || round > 0 {
				o.done(driver.Grant{}, Harmless(&driver.HeldError{Resource: o.resource}))
			}
		}
		if ops = again; len(ops) == 0 || round > 0 {
			return nil
		}
	}
}

func acquireStatement(in *Instance) string {
	if in.Started.IsZero() {
		return AcquireSQL
	}
	return acquireThereSQL
}

func (i *Issuer) acquireArgs(in *Instance, ops []*operation[attempt, driver.Grant], lockTimeout string) []any {
	n := len(ops)
	resources, ids, owners, metadata := make([]string, n), make([]string, n), make([]string, n), make([]string, n)
	ttls, until, waiting := make([]int64, n), make([]time.Time, n), make([]bool, n)
	for k, o := range ops {
		r := o.question
		resources[k], ids[k], owners[k], metadata[k] = r.Resource, r.LeaseID, r.Owner, r.Metadata
		ttls[k], until[k], waiting[k] = r.TTL.Microseconds(), i.time.at(r.began+r.Timeout), r.Waiting
	}
	args := []any{resources, ids, owners, metadata, ttls, until, waiting, i.process, lockTimeout}
	if !in.Started.IsZero() {
		args = append(args, in.Started, int64(in.Leases))
	}
	return args
}

// refused answers those that were refused with the reason. again are those whose
// time had passed by the server's clock alone: it was not known well enough, and
// is now. elsewhere says that one was refused for no reason that is seen.
func (i *Issuer) refused(ctx context.Context, conn *pgx.Conn, ops []*operation[attempt, driver.Grant]) (again []*operation[attempt, driver.Grant], elsewhere bool, err error) {
	resources, ids := make([]string, len(ops)), make([]string, len(ops))
	for k, o := range ops {
		resources[k], ids[k] = o.resource, o.question.LeaseID
	}
	sent := driver.Now()
	rows, err := conn.Query(ctx, refusedSQL, resources, ids, i.process)
	if err != nil {
		return nil, false, err
	}
	defer rows.Close()
	for rows.Next() {
		var n int64
		var isolation string
		var at time.Time
		var spent bool
		var h holder
		if err := rows.Scan(append([]any{&n, &isolation, &at, &spent}, h.columns()...)...); err != nil {
			return nil, false, err
		}
		o := ops[n-1]
		late := !i.time.at(o.question.began + o.question.Timeout).After(at)
		i.time.learn(at, sent)
		switch {
		case isolation != "read committed":
			o.done(driver.Grant{}, Harmless(fmt.Errorf("the connection's isolation level is %q and leases are granted under \"read committed\" alone: "+
				"set default_transaction_isolation in the pool's connection parameters", isolation)))
		case spent:
			o.done(driver.Grant{}, driver.ErrSpent)
		case h.token != nil:
			o.done(driver.Grant{}, h.held(o.resource))
		case late && driver.Now() < o.question.began+o.question.Timeout:
			again = append(again, o)
		case late:
			o.done(driver.Grant{}, Harmless(driver.ErrLate))
		default:
			elsewhere = true
		}
	}
	return again, elsewhere, rows.Err()
}

// holder is holderColumns.
type holder struct {
	token, remaining         *int64
	leaseID, owner, metadata *string
	expiresAt                *time.Time
}

func (h *holder) columns() []any {
	return []any{&h.token, &h.leaseID, &h.owner, &h.metadata, &h.expiresAt, &h.remaining}
}

// held of a lease that is kept for another process has the time for which it is.
func (h *holder) held(resource string) *driver.HeldError {
	e := &driver.HeldError{
		Resource: resource, Owner: Of(h.owner), Metadata: Of(h.metadata), Token: guard.Token(Of(h.token)), LeaseID: Of(h.leaseID),
		ExpiresAt: Of(h.expiresAt), Remaining: time.Duration(Of(h.remaining)) * time.Microsecond,
	}
	if e.LeaseID == "" {
		e.Remaining = max(0, e.Remaining+keepFor)
	}
	return e
}

// Renew extends leases in one statement, and one of them alone in another that
// waits for its row.
func (i *Issuer) Renew(ctx context.Context, renewals []driver.Renewal, results []driver.Renewed) {
	var err error
	if len(renewals) == 1 {
		results[0], err = i.renewOne(ctx, renewals[0])
		results[0].Err = Failure("renew", renewals[0].Claim, err)
		return
	}
	err = i.renewAll(ctx, renewals, results)
	for n := range results {
		if results[n].State == driver.Unknown && results[n].Err == nil {
			results[n].Err = Failure("renew", renewals[n].Claim, err)
		}
	}
}

func (i *Issuer) renewOne(ctx context.Context, r driver.Renewal) (result driver.Renewed, err error) {
	err = i.On(ctx, i.own, i.OpTimeout, func(ctx context.Context, conn *pgx.Conn, lockTimeout string) error {
		var token int64
		var synced *string
		from := driver.Now()
		err := conn.QueryRow(ctx, renewOneSQL, r.Claim.Resource, r.Claim.LeaseID, int64(r.Claim.Token), r.TTL.Microseconds(), lockTimeout).
			Scan(&token, &synced)
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			result = driver.Renewed{State: driver.Over}
			return nil
		case err == nil:
			result = driver.Renewed{State: driver.Extended, From: from}
		}
		return err
	})
	return result, err
}

func (i *Issuer) renewAll(ctx context.Context, renewals []driver.Renewal, results []driver.Renewed) error {
	n := len(renewals)
	resources, ids, tokens, ttls := make([]string, n), make([]string, n), make([]int64, n), make([]int64, n)
	at := make(map[string]int, n)
	for k, r := range renewals {
		resources[k], ids[k], tokens[k], ttls[k] = r.Claim.Resource, r.Claim.LeaseID, int64(r.Claim.Token), r.TTL.Microseconds()
		at[r.Claim.Resource] = k
	}
	return i.On(ctx, i.own, i.OpTimeout, func(ctx context.Context, conn *pgx.Conn, _ string) error {
		from := driver.Now()
		err := each(ctx, conn, renewSQL, []any{resources, ids, tokens, ttls}, func(row pgx.Row) error {
			var resource string
			var synced *string
			err := row.Scan(&resource, &synced)
			results[at[resource]] = driver.Renewed{State: driver.Extended, From: from}
			return err
		})
		if err != nil {
			for k := range results { // rolled back, or not known
				results[k] = driver.Renewed{}
			}
			return err
		}
		left := make(map[string]bool)
		for k, r := range results {
			if r.State != driver.Extended {
				left[resources[k]] = true
			}
		}
		if len(left) == 0 {
			return nil
		}
		// Lost, or locked by somebody: then it runs still.
		busy := map[string]bool{}
		err = each(ctx, conn, stillSQL, []any{resources, ids, tokens}, func(row pgx.Row) error {
			var resource string
			err := row.Scan(&resource)
			busy[resource] = true
			return err
		})
		if err != nil {
			return Harmless(err)
		}
		for resource := range left {
			k := at[resource]
			if results[k].State = driver.Over; busy[resource] {
				results[k] = driver.Renewed{Err: guard.Unavailable("renew", renewals[k].Claim, driver.ErrBusy)}
			}
		}
		return nil
	})
}

// each runs a query and reads its rows.
func each(ctx context.Context, conn *pgx.Conn, sql string, args []any, read func(pgx.Row) error) error {
	rows, err := conn.Query(ctx, sql, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := read(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// Release frees a lease, together with what else is released at this time, and
// wakes who has waited longest. A claim without a token spends its lease ID.
func (i *Issuer) Release(ctx context.Context, claim guard.Claim) (freed bool, err error) {
	if claim.Token == guard.NoToken {
		freed, err = i.spend(ctx, claim)
	} else {
		ctx, cancel := context.WithTimeout(ctx, i.OpTimeout)
		defer cancel()
		freed, err = i.releases.do(ctx, claim.Resource, claim, i.Grace)
	}
	return freed, Failure("release", claim, err)
}

func (i *Issuer) spend(ctx context.Context, claim guard.Claim) (freed bool, err error) {
	err = i.On(ctx, i.own, i.OpTimeout, func(ctx context.Context, conn *pgx.Conn, lockTimeout string) error {
		var synced *string
		var quiet bool
		return conn.QueryRow(ctx, spendSQL, claim.Resource, claim.LeaseID, lockTimeout, Topic(claim.Resource)).Scan(&synced, &freed, &quiet)
	})
	return freed, err
}

func (i *Issuer) sendReleases(ops []*operation[guard.Claim, bool]) {
	ctx, cancel := together(ops)
	defer cancel()
	sent := ops
	err := i.On(ctx, i.own, i.OpTimeout, func(ctx context.Context, conn *pgx.Conn, lockTimeout string) error {
		switch sent = taken(ops); len(sent) {
		case 0:
			return nil
		case 1:
			freed, err := releaseOne(ctx, conn, sent[0].question, lockTimeout)
			if err == nil {
				sent[0].done(freed, nil)
			}
			return err
		}
		return releaseAll(ctx, conn, sent)
	})
	if len(sent) > 1 && (err == nil || Error(err) != nil && SaidNo(Error(err))) {
		// Not the caller's any more, or locked by somebody; or a notification
		// failed them all.
		i.releases.each(slices.DeleteFunc(slices.Clone(sent), func(o *operation[guard.Claim, bool]) bool { return o.hasAnswer() }))
		return
	}
	fail(ops, err)
}

// releaseOne frees one lease. A notification that cannot be sent, since the
// server's queue of them is full or the role may not, must not keep the lease:
// then it is freed without one.
func releaseOne(ctx context.Context, conn *pgx.Conn, claim guard.Claim, lockTimeout string) (bool, error) {
	var resource, synced string
	var quiet bool
	args := []any{claim.Resource, claim.LeaseID, int64(claim.Token), lockTimeout}
	err := conn.QueryRow(ctx, releaseOneSQL, append(args, Topic(claim.Resource))...).Scan(&resource, &synced, &quiet)
	if pg := Error(err); pg != nil && SaidNo(pg) && !Passes(pg) {
		err = conn.QueryRow(ctx, quietReleaseSQL, args...).Scan(&resource, &synced)
	}
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	return err == nil, err
}

// releaseAll answers those that it freed.
func releaseAll(ctx context.Context, conn *pgx.Conn, ops []*operation[guard.Claim, bool]) error {
	n := len(ops)
	resources, ids, tokens, topics := make([]string, n), make([]string, n), make([]int64, n), make([]string, n)
	at := make(map[string]int, n)
	for k, o := range ops {
		c := o.question
		resources[k], ids[k], tokens[k], topics[k], at[c.Resource] = c.Resource, c.LeaseID, int64(c.Token), Topic(c.Resource), k
	}
	var freed []int
	err := each(ctx, conn, releaseSQL, []any{resources, ids, tokens, topics}, func(row pgx.Row) error {
		var resource, synced string
		var quiet bool
		err := row.Scan(&resource, &synced, &quiet)
		freed = append(freed, at[resource])
		return err
	})
	if err != nil {
		return err
	}
	for _, k := range freed {
		ops[k].done(true, nil)
	}
	return nil
}

// forceUnlockedSQL says who ended a lease; no row, or a refusal, if nobody is
// known to have. $1 resource, $2 lease ID, $3 token.
const forceUnlockedSQL = `SELECT o_actor, o_reason, o_at FROM fencepost.force_unlocked($1::text, $2::text, $3::bigint) WHERE o_actor IS NOT NULL`

// Why says who force-unlocked a lease.
func (i *Issuer) Why(ctx context.Context, claim guard.Claim) error {
	var cut driver.ForceUnlockedError
	err := i.On(ctx, i.own, i.OpTimeout, func(ctx context.Context, conn *pgx.Conn, _ string) error {
		return conn.QueryRow(ctx, forceUnlockedSQL, claim.Resource, claim.LeaseID, int64(claim.Token)).Scan(&cut.Actor, &cut.Reason, &cut.At)
	})
	if err != nil {
		return nil // nobody, or it cannot be told
	}
	return &cut
}

// Watch sets the wake mark, and subscribes before.
func (i *Issuer) Watch(ctx context.Context, w driver.Watch, ring func()) (driver.Watching, error) {
	sub := i.listener.subscribe(w.Resource, w.LeaseID != "", ring)
	stop := func() { i.listener.unsubscribe(sub) }
	if w.LeaseID != "" && !i.listener.listening() {
		stop()
		return driver.Watching{}, driver.ErrNoWatch
	}
	var held *driver.HeldError
	var h holder
	marked := false
	err := i.On(ctx, i.Pool, i.OpTimeout, func(ctx context.Context, conn *pgx.Conn, lockTimeout string) (err error) {
		if err = i.CheckSchema(ctx, conn); err != nil {
			return Harmless(err)
		}
		if w.LeaseID == "" {
			err = conn.QueryRow(ctx, onlookSQL, w.Resource).Scan(h.columns()...)
			marked = true
		} else {
			err = conn.QueryRow(ctx, watchSQL, w.Resource, w.LeaseID, i.process, lockTimeout).Scan(append(h.columns(), &marked)...)
		}
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			return nil
		case err == nil && marked:
			held = h.held(w.Resource)
		}
		return err
	})
	if err != nil {
		stop()
		return driver.Watching{}, Failure("watch", guard.Claim{Resource: w.Resource, LeaseID: w.LeaseID}, err)
	}
	return driver.Watching{Held: held, Stop: stop}, nil
}
