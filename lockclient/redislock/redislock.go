// Package redislock issues leases from Redis: a single server, one behind
// Sentinel, or Redis Cluster.
//
// # What it guarantees
//
// The token is a hybrid clock: the resource's counter plus one, or the server's
// time in milliseconds times 1024 if that is more. So tokens grow across
// release, expiry, a restart without persistence, FLUSHALL and a failover that
// lost the last grant, as long as the clock of the server that takes over is not
// further behind than the outage was long. They do not grow if the data is lost
// while the clock is set back: an issuer that has seen a later time then refuses
// (guard.ErrMarkAhead), a new process cannot know. Nor do they grow after a loss
// of data if [Issuer.Advance], or a clock that was ahead, raised a resource
// above the clock: only the counter has such a token. If the counter is lost
// with the data, call Advance once more with the resource's mark.
//
// In Redis Cluster each node has its own clock. The issuer compares times within
// a slot only, so the clocks of nodes may differ. When a slot moves to a node
// whose clock is behind, its counters move along and their tokens grow; resources
// of the slot that have none are refused (guard.ErrMarkAhead) until that clock
// has caught up.
//
// # What it does not
//
// Residual risk: Redis replicates asynchronously, so that a failover, lost data
// or a clock that steps forward can give a lease to a second holder while the
// first still believes in its own. The second has the higher token, so a fence
// refuses the first. Redlock does not help: its servers agree on no order and
// therefore on no token.
//
// # Use
//
//	client := redis.NewClient(&redis.Options{Addr: "localhost:6379", MaxRetries: -1})
//	issuer, err := redislock.New(func(ctx context.Context, args ...any) (any, error) {
//		return client.Do(ctx, args...).Result()
//	}, nil)
//	if err != nil {
//		return err
//	}
//	locks, err := lockclient.New(issuer, "worker-7", nil)
//
// [Do] works with any client. The client must not retry a command by itself
// (go-redis: MaxRetries: -1), because an error that says that nothing was
// written would then be about only the last attempt. With rueidis it is
// client.Do(ctx, client.B().Arbitrary(...).Build()).ToAny(), with redigo
// redis.DoContext(conn, ctx, name, args...).
//
// # Keys
//
// For a resource "r" and the default prefix: fencepost:{r}:lease (a hash),
// :counter, :spent:LEASE, :kept, :queue, :until, :watched and, of a force unlock, :cut:REQUEST
// (a hash, for 30 days). "{", "}" and "%" in a name
// are percent-encoded, so that a resource's keys share one slot in Redis Cluster. A
// counter is kept for six days or more after its last grant: by then the clock is above
// it. No purge is needed. Redis 6.0 or later.
//
// # Failure by failure
//
//   - The server is down, or its response was lost: guard.ErrOutcomeUnknown. The
//     same lease ID finds its own grant.
//   - A replica, a server that cannot save, has too few replicas, no memory or no time
//     for a command: guard.ErrUnavailable with the server's words. Nothing was written.
//   - A wrong password, a foreign value under a key: guard.ErrSetup. Nothing was written.
//   - A maxmemory-policy other than noeviction: guard.ErrSetup, before the first
//     acquire; see Options.InsecureEviction. In Redis Cluster one node is asked.
//   - No right to a command that a script needs: guard.ErrSetup with the server's words.
//     No lease was granted, extended or freed. A counter may be higher, a place in the
//     queue lost, or a lease ID spent.
//   - A counter at the highest token: guard.ErrSetup; nothing is granted on that
//     resource any more.
//
// A lease lasts by the server's wall clock, in whole milliseconds. Reclaimed is
// never reported: Redis stores nothing about a lease that ran out.
//
// # Where to read on
//
// redislock.go has the issuer, scripts.go the programs that decide, clocks.go what is known
// of a server's clock and of its memory policy, errors.go what an error means. operate.go has
// operators' calls.
package redislock

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin"
)

// Do sends one command and returns its response: strings, int64 and slices of
// them. It sends it at most once, and is safe for concurrent use. It need not
// return when ctx ends: the issuer stops waiting for it, at the cost of a goroutine a
// command.
type Do func(ctx context.Context, args ...any) (any, error)

// Options configures [New]. The zero value is the default.
type Options struct {
	// Prefix begins every key and channel; empty means "fencepost". It may not
	// have "{" or "}".
	Prefix string
	// Subscribe listens on a channel and calls message with every payload until
	// stop is called, even if ctx has ended. Like Do it need not return when ctx
	// ends. message does not block. nil means that waiters poll.
	Subscribe func(ctx context.Context, channel string, message func(payload string)) (stop func(), err error)
	// InsecureEviction skips the check of maxmemory-policy at the first acquire.
	// Only with noeviction does Redis keep leases and spent lease IDs until they run
	// out: with every other policy it may drop them while it is healthy, and grant a
	// lease that somebody has (P7), or under a lease ID that was abandoned (P8). Set it
	// also for a user who may not call INFO, if the policy is known to be noeviction.
	InsecureEviction bool
	// Cluster says that keys are on several servers: one command cannot renew the
	// leases of several resources, and the clock of each slot is read with one
	// more command at first.
	Cluster bool
}

// Issuer issues leases from Redis. It is safe for concurrent use; call [New].
type Issuer struct {
	do          Do
	opts        Options
	process     string
	subscribing chan struct{} // has an element while somebody subscribes

	mu     sync.Mutex
	clocks map[uint16]clock // by server
	closed bool
	keeps  bool   // the server evicts nothing
	stop   func() // ends the subscription; nil before there is one
	wakes  map[string]map[*func()]struct{}
}

var _ driver.Issuer = (*Issuer)(nil)

// New returns an issuer on the server that do talks to. It sends nothing. opts
// may be nil. The error is a [*guard.InvalidError].
func New(do Do, opts *Options) (*Issuer, error) {
	i := &Issuer{process: rand.Text(), subscribing: make(chan struct{}, 1),
		clocks: map[uint16]clock{}, wakes: map[string]map[*func()]struct{}{}}
	if opts != nil {
		i.opts = *opts
	}
	if i.opts.Prefix == "" {
		i.opts.Prefix = "fencepost"
	}
	if do == nil {
		return nil, guard.Invalid("Do", "", "must not be nil")
	}
	i.do = func(ctx context.Context, args ...any) (any, error) {
		return within(ctx, func() (any, error) { return do(ctx, args...) }, func(any) {})
	}
	if strings.ContainsAny(i.opts.Prefix, "{}") {
		return nil, guard.Invalid("Options.Prefix", i.opts.Prefix, "must not contain braces")
	}
	return i, nil
}

// within is f, but returns when ctx ends: few Redis clients notice that a
// context is cancelled while they wait for a response. What f brings after that is
// given to late.
func within[T any](ctx context.Context, f func() (T, error), late func(T)) (v T, err error) {
	type result struct {
		v   T
		err error
	}
	done := make(chan result)
	go func() {
		v, err := f()
		select {
		case done <- result{v, err}:
		case <-ctx.Done(): // the caller gives up
			if err == nil {
				late(v)
			}
		}
	}()
	select {
	case r := <-done:
		return r.v, r.err
	case <-ctx.Done():
		return v, context.Cause(ctx)
	}
}

// Limits: TTLs in whole milliseconds.
func (i *Issuer) Limits() driver.Limits {
	return driver.Limits{MinTTL: 10 * time.Millisecond, TTLStep: time.Millisecond, Batch: 500, MetadataBytes: 1000}
}

// Close ends the subscription. It does not close the connection.
func (i *Issuer) Close() error {
	i.mu.Lock()
	stop := i.stop
	i.closed, i.stop = true, nil
	i.mu.Unlock()
	if stop != nil {
		stop()
	}
	return nil
}

var escapeName = strings.NewReplacer("%", "%25", "{", "%7B", "}", "%7D")

func (i *Issuer) key(resource, kind string) string {
	return i.opts.Prefix + ":{" + escapeName.Replace(resource) + "}:" + kind
}

func (i *Issuer) changes(resource string) string { return i.key(resource, "changes") }

func (i *Issuer) wakeups() string { return i.opts.Prefix + ":wake:" }

// Acquire grants or refuses.
func (i *Issuer) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	from := driver.Now()
	ctx, cancel := context.WithTimeout(ctx, r.Timeout)
	defer cancel()
	if err := i.learn(ctx, r.Resource); err != nil {
		return driver.Grant{}, unsent("acquire", r.Claim(), err) // only the time was requested
	}
	for attempt := 0; ; attempt++ {
		notAfter, seen := i.notAfter(r.Resource, from+r.Timeout)
		response, err := i.call(ctx, "acquire", r.Claim(), acquireScript,
			[]string{i.key(r.Resource, "lease"), i.key(r.Resource, "counter"), i.key(r.Resource, "spent:"+r.LeaseID),
				i.key(r.Resource, "kept"), i.key(r.Resource, "queue"), i.key(r.Resource, "until"), i.key(r.Resource, "watched")},
			r.LeaseID, r.Owner, r.Metadata, r.TTL.Milliseconds(), notAfter, seen, flag(r.Waiting), i.process, i.changes(r.Resource))
		if err != nil {
			return driver.Grant{}, err
		}
		switch response[0] {
		case "granted":
			token, err := guard.ParseToken(response[2])
			if err != nil {
				return driver.Grant{}, guard.OutcomeUnknown("acquire", r.Claim(), fmt.Errorf("the lease has a malformed token: %w", err))
			}
			return driver.Grant{Token: token, AcquiredAt: milliseconds(response[3]), From: from}, nil
		case "held":
			return driver.Grant{}, heldBy(r.Resource, response)
		case "kept":
			return driver.Grant{}, &driver.HeldError{Resource: r.Resource, ExpiresAt: milliseconds(response[1])}
		case "spent":
			return driver.Grant{}, driver.ErrLeaseIDSpent
		case "in use":
			return driver.Grant{}, driver.LeaseIDInUse(r.LeaseID, response[2])
		case "late":
			// The server's clock may have stepped since it was read; call has
			// corrected it. Nothing was written, so one more try is safe.
			if attempt == 0 && driver.Now() < from+r.Timeout {
				continue
			}
			return driver.Grant{}, guard.Unavailable("acquire", r.Claim(), driver.ErrLate)
		case "back":
			return driver.Grant{}, wentBack("acquire", r.Resource, response, seen)
		default: // full
			return driver.Grant{}, exhausted("acquire", r.Claim(), response)
		}
	}
}

// wentBack says that the server's clock would make a token below an earlier one.
func wentBack(op, resource string, response []string, seen int64) error {
	return fmt.Errorf("fencepost: %s: %w: the server has no counter for %q, and its clock says %s, which is %v earlier than a time reported before; correct the clock or wait as long, and if the counter was lost call Advance with the resource's mark",
		op, guard.ErrMarkAhead, resource, milliseconds(response[1]).Format(time.RFC3339), time.Duration(seen-number(response[1]))*time.Millisecond)
}

func exhausted(op string, claim guard.Claim, response []string) error {
	return guard.Setup(op, claim, fmt.Errorf("the counter is at %s, the token space is exhausted: use another resource name", response[2]))
}

func heldBy(resource string, response []string) *driver.HeldError {
	now, remaining := milliseconds(response[1]), time.Duration(number(response[6]))*time.Millisecond
	token, _ := guard.ParseToken(response[2]) // a malformed one is reported as NoToken
	return &driver.HeldError{Resource: resource, Token: token, LeaseID: response[3], Owner: response[4], Metadata: response[5],
		ExpiresAt: now.Add(remaining), Remaining: max(remaining, time.Millisecond)}
}

// Renew extends running leases in one command, or in Redis Cluster one for
// each.
func (i *Issuer) Renew(ctx context.Context, renewals []driver.Renewal, results []driver.Renewed) {
	if !i.opts.Cluster {
		i.renew(ctx, renewals, results)
		return
	}
	var wg sync.WaitGroup
	slots := make(chan struct{}, 16)
	for n := range renewals {
		slots <- struct{}{}
		wg.Go(func() {
			i.renew(ctx, renewals[n:n+1], results[n:n+1])
			<-slots
		})
	}
	wg.Wait()
}

func (i *Issuer) renew(ctx context.Context, renewals []driver.Renewal, results []driver.Renewed) {
	from := driver.Now()
	keys, args := make([]string, len(renewals)), make([]any, 0, 3*len(renewals))
	for n, r := range renewals {
		keys[n] = i.key(r.Claim.Resource, "lease")
		args = append(args, r.Claim.LeaseID, r.Claim.Token.String(), r.TTL.Milliseconds())
	}
	raw, err := renewScript.run(ctx, i.do, keys, args...)
	response, ok := texts(raw)
	if err == nil && (!ok || len(response) != len(renewals)) {
		err = fmt.Errorf("the response is %v", raw)
	}
	for n, r := range renewals {
		switch {
		case err != nil:
			results[n] = driver.Renewed{Err: failed("renew", r.Claim, err)}
		case response[n] == "extended":
			results[n] = driver.Renewed{State: driver.Extended, From: from}
		case response[n] == "over":
			results[n] = driver.Renewed{State: driver.Over}
		default:
			results[n] = driver.Renewed{Err: guard.Unavailable("renew", r.Claim, errors.New(response[n]))}
		}
	}
}

// Release frees the claim's lease; without a token it also invalidates the lease ID.
func (i *Issuer) Release(ctx context.Context, claim guard.Claim) (freed bool, err error) {
	token := ""
	if claim.Token != guard.NoToken {
		token = claim.Token.String()
	}
	raw, err := releaseScript.run(ctx, i.do,
		[]string{i.key(claim.Resource, "lease"), i.key(claim.Resource, "spent:"+claim.LeaseID), i.key(claim.Resource, "kept"),
			i.key(claim.Resource, "queue"), i.key(claim.Resource, "until"), i.key(claim.Resource, "watched")},
		claim.LeaseID, token, i.wakeups(), i.changes(claim.Resource), claim.Resource)
	if err != nil {
		return false, failed("release", claim, err)
	}
	n, ok := raw.(int64)
	if !ok {
		return false, guard.OutcomeUnknown("release", claim, fmt.Errorf("the response is %v", raw))
	}
	return n == 1, nil
}

// Watch returns who has the lease, puts a waiter in the queue, and calls wake at the
// release. Without Options.Subscribe it is [driver.ErrNoWatch].
func (i *Issuer) Watch(ctx context.Context, w driver.Watch, wake func()) (driver.Watching, error) {
	if i.opts.Subscribe == nil {
		return driver.Watching{}, driver.ErrNoWatch
	}
	stop, err := i.listen(ctx, w, wake)
	if err != nil {
		return driver.Watching{}, fmt.Errorf("%w: %w", driver.ErrNoWatch, err)
	}
	claim := guard.Claim{Resource: w.Resource, LeaseID: w.LeaseID}
	response, err := i.call(ctx, "watch", claim, watchScript,
		[]string{i.key(w.Resource, "lease"), i.key(w.Resource, "kept"), i.key(w.Resource, "queue"), i.key(w.Resource, "until"), i.key(w.Resource, "watched")},
		w.LeaseID, i.process)
	if err != nil {
		stop()
		return driver.Watching{}, err
	}
	watching := driver.Watching{Stop: stop}
	switch response[0] {
	case "held":
		watching.Held = heldBy(w.Resource, response)
	case "kept":
		remaining := max(time.Duration(number(response[2])), 1) * time.Millisecond
		watching.Held = &driver.HeldError{Resource: w.Resource, ExpiresAt: milliseconds(response[1]).Add(remaining), Remaining: remaining}
	}
	return watching, nil
}

// listen arranges one call of wake: a waiter's through this process's own
// channel, on which a release names the resource, a watcher's through the
// resource's.
func (i *Issuer) listen(ctx context.Context, w driver.Watch, wake func()) (stop func(), err error) {
	var once sync.Once
	if w.LeaseID == "" {
		return i.subscription(ctx, i.changes(w.Resource), func(string) { once.Do(wake) })
	}
	f := func() { once.Do(wake) }
	if err := i.subscribe(ctx); err != nil {
		return nil, err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.wakes[w.Resource] == nil {
		i.wakes[w.Resource] = map[*func()]struct{}{}
	}
	i.wakes[w.Resource][&f] = struct{}{}
	return func() {
		i.mu.Lock()
		defer i.mu.Unlock()
		delete(i.wakes[w.Resource], &f)
		if len(i.wakes[w.Resource]) == 0 {
			delete(i.wakes, w.Resource)
		}
	}, nil
}

// subscribe listens on the process's own channel, unless it does already.
func (i *Issuer) subscribe(ctx context.Context) error {
	select {
	case i.subscribing <- struct{}{}:
		defer func() { <-i.subscribing }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	i.mu.Lock()
	listens := i.stop != nil
	i.mu.Unlock()
	if listens {
		return nil
	}
	stop, err := i.subscription(ctx, i.wakeups()+i.process, i.wake)
	if err != nil {
		return err
	}
	i.mu.Lock()
	closed := i.closed
	if !closed {
		i.stop = stop
	}
	i.mu.Unlock()
	if closed {
		stop()
		return errors.New("the issuer is closed")
	}
	return nil
}

// subscription is Options.Subscribe, but returns when ctx ends. A subscription
// that is confirmed later is ended.
func (i *Issuer) subscription(ctx context.Context, channel string, message func(string)) (stop func(), err error) {
	return within(ctx, func() (func(), error) { return i.opts.Subscribe(ctx, channel, message) }, func(stop func()) { stop() })
}

func (i *Issuer) wake(resource string) {
	i.mu.Lock()
	wakes := i.wakes[resource]
	delete(i.wakes, resource)
	i.mu.Unlock()
	for f := range wakes {
		go (*f)()
	}
}

// Advance raises the resource's counter to at least above. The counter is lost
// with the server's data: repeat Advance after that, unless the clock is above it.
func (i *Issuer) Advance(ctx context.Context, resource string, above guard.Token) (guard.Token, error) {
	claim := guard.Claim{Resource: resource}
	if err := cmp.Or(guard.ValidateResource(resource), above.Validate()); err != nil {
		return guard.NoToken, err
	}
	if above > lockadmin.MaxAdvance {
		return guard.NoToken, guard.Invalid("token", above.String(), "must be at most "+lockadmin.MaxAdvance.String())
	}
	response, err := i.call(ctx, "advance", claim, advanceScript, []string{i.key(resource, "lease"), i.key(resource, "counter")}, above.String())
	if err != nil {
		return guard.NoToken, err
	}
	if response[0] == "held" {
		return guard.NoToken, heldBy(resource, response)
	}
	return guard.ParseToken(response[2])
}

// call runs a script whose response is a list of texts: a word, the server's
// time, and facts.
func (i *Issuer) call(ctx context.Context, op string, claim guard.Claim, s script, keys []string, args ...any) ([]string, error) {
	raw, err := s.run(ctx, i.do, keys, args...)
	if err != nil {
		return nil, failed(op, claim, err)
	}
	response, ok := texts(raw)
	if !ok || len(response) < 2 {
		return nil, guard.OutcomeUnknown(op, claim, fmt.Errorf("the response is %v", raw))
	}
	i.heard(claim.Resource, number(response[1]))
	return response, nil
}

// texts turns a response into strings: clients return strings, bytes or numbers.
func texts(raw any) ([]string, bool) {
	list, ok := raw.([]any)
	if !ok {
		return nil, false
	}
	out := make([]string, len(list))
	for n, v := range list {
		switch v := v.(type) {
		case string:
			out[n] = v
		case []byte:
			out[n] = string(v)
		case int64:
			out[n] = strconv.FormatInt(v, 10)
		case nil:
		default:
			return nil, false
		}
	}
	return out, true
}

func number(s string) int64 { n, _ := strconv.ParseInt(s, 10, 64); return n }

func milliseconds(s string) time.Time { return time.UnixMilli(number(s)) }

func flag(b bool) string {
	if b {
		return "1"
	}
	return "0"
}
