package lockhttp

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
)

// Issuer is the lock server as a [driver.Issuer], for lockclient.New. Make
// one with [NewIssuer]. It is safe for concurrent use.
type Issuer struct {
	base   string
	client http.Client
	owned  bool // an http.Transport, which does not repeat what may have arrived
	proofs proofs

	mu    sync.Mutex
	known bool
	ahead time.Duration // the server's time since 1970 less driver.Now, at most
}

var (
	_ driver.Issuer    = (*Issuer)(nil)
	_ driver.Explainer = (*Issuer)(nil)
)

// NewIssuer returns the issuer behind the lock server at baseURL, such as
// "https://locks.example.com" or with a path that the server is mounted under.
// It sends nothing. httpClient adds the credentials, in its Transport; nil means
// [http.DefaultClient]. Redirects are not followed. A Transport that retries
// requests by itself is safe, since a lease ID is granted once, but costs time. Each
// renewal is a request, up to a hundred at once: a process with hundreds of leases needs
// HTTP/2, or a Transport whose MaxIdleConnsPerHost is above its default of two.
//
// The error is a [*guard.InvalidError].
func NewIssuer(baseURL string, httpClient *http.Client) (*Issuer, error) {
	u, err := url.Parse(baseURL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.Fragment != "" || u.User != nil {
		return nil, guard.Invalid("baseURL", baseURL, "must be an http or https URL with a host, without credentials, query and fragment")
	}
	if httpClient == nil {
		httpClient = http.DefaultClient
	}
	i := &Issuer{base: strings.TrimRight(baseURL, "/"), client: *httpClient}
	i.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	i.client.Timeout = 0 // contexts bound requests, and a stream is long-lived
	transport := i.client.Transport
	if transport == nil {
		transport = http.DefaultTransport
	}
	_, i.owned = transport.(*http.Transport)
	return i, nil
}

// Limits: what a [Server] itself accepts. Its issuer and its limits for an
// identity may allow less; the error is guard.ErrInvalid then.
func (i *Issuer) Limits() driver.Limits {
	return driver.Limits{Batch: 100, Poll: 15 * time.Second, MetadataBytes: 1000}
}

// Close closes idle connections.
func (i *Issuer) Close() error {
	i.client.CloseIdleConnections()
	return nil
}

// learn records the server's time, read between sent and now. The response took
// some time, so what is computed from it is early rather than late.
func (i *Issuer) learn(at time.Time, sent time.Duration) {
	if at.IsZero() {
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	now := driver.Now()
	most, least := time.Duration(at.UnixNano())-sent, time.Duration(at.UnixNano())-now
	if !i.known || most < i.ahead || least > i.ahead {
		i.known, i.ahead = true, least
	}
}

func (i *Issuer) serverTime(at time.Duration) (time.Time, bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return time.Unix(0, int64(at+i.ahead)).UTC(), i.known
}

// responseMost bounds the size of a response.
const responseMost = 1 << 20

// send sends one request. The caller closes the body of the response.
func (i *Issuer) send(ctx context.Context, op string, claim guard.Claim, method, path string, in any) (*http.Response, error) {
	var body io.Reader
	if in != nil {
		text, err := json.Marshal(in)
		if err != nil {
			return nil, guard.Unavailable(op, claim, err)
		}
		body = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, method, i.base+path, body)
	if err != nil {
		return nil, guard.Unavailable(op, claim, err)
	}
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := i.client.Do(req)
	var dial *net.OpError
	switch {
	case err == nil:
		return resp, nil
	case i.owned && errors.As(err, &dial) && dial.Op == "dial":
		// A connection that could not be made has carried nothing, if nothing in
		// between retries.
		return nil, guard.Unavailable(op, claim, err)
	}
	return nil, guard.OutcomeUnknown(op, claim, err)
}

// do sends one request and reads its response into out. Anything other than a
// response of the server is an error with an unknown outcome.
func (i *Issuer) do(ctx context.Context, op string, claim guard.Claim, method, path string, in, out any) error {
	sent := driver.Now()
	resp, err := i.send(ctx, op, claim, method, path, in)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, responseMost))
	if err != nil {
		return guard.OutcomeUnknown(op, claim, err)
	}
	var p problem
	_ = json.Unmarshal(text, &p) // another response has no type, and the same serverTime
	if refused := op == "acquire" && resp.StatusCode == http.StatusConflict; p.Type != "" || resp.StatusCode != http.StatusOK && !refused {
		return i.refusal(op, claim, resp, p, sent)
	}
	if err := json.Unmarshal(text, out); err != nil {
		return guard.OutcomeUnknown(op, claim, fmt.Errorf("the response is not this server's: %w", err))
	}
	i.learn(p.ServerTime, sent)
	return nil
}

// refusal is the error of a problem: an [httpError] of a lease that is over, and of
// nothing else.
func (i *Issuer) refusal(op string, claim guard.Claim, resp *http.Response, p problem, sent time.Duration) error {
	name, ours := strings.CutPrefix(p.Type, problemPrefix)
	if !ours { // a proxy's
		return guard.OutcomeUnknown(op, claim, fmt.Errorf("the response is %s, and not this server's", resp.Status))
	}
	i.learn(p.ServerTime, sent)
	k := kindNamed(name)
	if k.status != resp.StatusCode {
		k = &kindInternal
	}
	said := &refusedError{k, fmt.Sprintf("the lock server says %s: %q", resp.Status, p.Detail)}
	if k == &kindOver {
		return &httpError{kind: k, err: said, cut: p.Cut}
	}
	return k.refused(op, claim, p.Field, said)
}

// Acquire asks once; the server does not wait.
func (i *Issuer) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if _, known := i.serverTime(0); !known {
		// Separate, since without the server's time a request has no end.
		if err := i.do(ctx, "acquire", r.Claim(), http.MethodGet, "/v1/time", nil, &timeBody{}); err != nil {
			return driver.Grant{}, readOnly(err) // only the time was requested
		}
	}
	from := driver.Now()
	ctx, cancel := context.WithTimeout(ctx, r.Timeout)
	defer cancel()
	for attempt := 0; ; attempt++ {
		notAfter, _ := i.serverTime(from + r.Timeout)
		var g grantBody
		err := i.do(ctx, "acquire", r.Claim(), http.MethodPost, "/v1/locks/acquire", map[string]any{
			"resource": r.Resource, "leaseId": r.LeaseID, "ownerId": r.Owner, "metadata": r.Metadata,
			"ttlSeconds": seconds(r.TTL), "notAfter": notAfter.Format(time.RFC3339Nano), "waiting": r.Waiting,
		}, &g)
		switch {
		case errors.Is(err, driver.ErrLate) && attempt == 0 && driver.Now() < from+r.Timeout && ctx.Err() == nil:
			// The server's clock may have stepped, which its response has shown.
			continue
		case err != nil:
			return driver.Grant{}, err
		case g.Acquired && g.LeaseID == r.LeaseID && g.Resource == r.Resource && g.Token.Valid() && int64(g.TTL) > 0:
			ttl := min(r.TTL, time.Duration(g.TTL))
			i.proofs.keep(guard.Claim{Resource: r.Resource, Token: g.Token, LeaseID: r.LeaseID}, g.Proof, from+ttl)
			// Dated back as by the issuer: a shorter TTL would be asked for in each
			// renewal, and the server may refuse it.
			return driver.Grant{Token: g.Token, AcquiredAt: g.CreatedAt, From: from + ttl - r.TTL, TTL: r.TTL, Reclaimed: g.Reclaimed}, nil
		case !g.Acquired && g.Holder != nil && g.Resource == r.Resource:
			return driver.Grant{}, g.Holder.held(r.Resource)
		}
		return driver.Grant{}, foreign("acquire", r.Claim())
	}
}

// fieldsOf are those of a claim in a request.
func fieldsOf(claim guard.Claim) map[string]any {
	in := map[string]any{"resource": claim.Resource, "leaseId": claim.LeaseID}
	if claim.Token != guard.NoToken {
		in["fencingToken"] = claim.Token
	}
	return in
}

// foreign is the error of a response that is not that of the request.
func foreign(op string, claim guard.Claim) error {
	return guard.OutcomeUnknown(op, claim, errors.New("the response belongs to another request, or is not this server's"))
}

// Renew sends a request for each renewal, all at once.
func (i *Issuer) Renew(ctx context.Context, renewals []driver.Renewal, results []driver.Renewed) {
	var all sync.WaitGroup
	for n, r := range renewals {
		all.Go(func() { results[n] = i.renew(ctx, r) })
	}
	all.Wait()
}

func (i *Issuer) renew(ctx context.Context, r driver.Renewal) driver.Renewed {
	from := driver.Now()
	in := fieldsOf(r.Claim)
	in["ttlSeconds"] = seconds(r.TTL)
	var got renewedBody
	err := i.do(ctx, "renew", r.Claim, http.MethodPost, "/v1/locks/renew", in, &got)
	over, is := errors.AsType[*httpError](err) // see refusal
	switch {
	case is:
		i.proofs.end(r.Claim, over.cut)
		return driver.Renewed{State: driver.Over}
	case errors.Is(err, guard.ErrInvalid):
		err = guard.Unavailable("renew", r.Claim, err) // the lease may run
	case err == nil && (got.Resource != r.Claim.Resource || got.LeaseID != r.Claim.LeaseID || got.Token != r.Claim.Token || got.TTL <= 0):
		err = foreign("renew", r.Claim)
	}
	if err != nil {
		return driver.Renewed{Err: err}
	}
	ttl := min(r.TTL, time.Duration(got.TTL))
	i.proofs.keep(r.Claim, got.Proof, from+ttl)
	return driver.Renewed{State: driver.Extended, From: from + ttl - r.TTL, TTL: r.TTL}
}

// Release frees the claim's lease; without a token it invalidates the lease ID.
func (i *Issuer) Release(ctx context.Context, claim guard.Claim) (freed bool, err error) {
	var answer releasedBody
	err = i.do(ctx, "release", claim, http.MethodPost, "/v1/locks/release", fieldsOf(claim), &answer)
	if over, is := errors.AsType[*httpError](err); is { // see refusal
		i.proofs.end(claim, over.cut)
		return false, nil
	}
	i.proofs.end(claim, nil) // a claim without a token has none
	if err == nil && (!answer.Released || answer.Resource != claim.Resource || answer.LeaseID != claim.LeaseID) {
		err = foreign("release", claim)
	}
	return err == nil, err
}

// Why returns who force-unlocked a lease, as the server said when a renewal or a release
// found that it is over. It sends nothing.
func (i *Issuer) Why(_ context.Context, claim guard.Claim) error {
	released := guard.Claim{Resource: claim.Resource, LeaseID: claim.LeaseID} // without its token
	if by := cmp.Or(i.proofs.get(claim).cut, i.proofs.get(released).cut); by != nil {
		return &driver.ForceUnlockedError{Actor: by.Actor, Reason: by.Reason, At: by.At}
	}
	return nil
}

// Watch reads a stream of events until the lease is released or the stream
// ends. In the latter case it is not known who has the lease, and Watch calls
// wake too.
func (i *Issuer) Watch(ctx context.Context, w driver.Watch, wake func()) (driver.Watching, error) {
	claim := guard.Claim{Resource: w.Resource, LeaseID: w.LeaseID}
	// The watch goes on after the call; ctx ends it only while it begins.
	watching, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel)
	q := url.Values{"resource": {w.Resource}}
	if w.LeaseID != "" {
		q.Set("leaseId", w.LeaseID)
	}
	fail := func(err error) (driver.Watching, error) {
		stop()
		cancel()
		return driver.Watching{}, readOnly(err)
	}
	sent := driver.Now()
	resp, err := i.send(watching, "watch", claim, http.MethodGet, "/v1/watch?"+q.Encode(), nil)
	if err != nil {
		return fail(err)
	}
	if resp.StatusCode != http.StatusOK {
		defer resp.Body.Close()
		var p problem
		_ = json.NewDecoder(io.LimitReader(resp.Body, responseMost)).Decode(&p) // else it is a proxy's
		if err = readOnly(i.refusal("watch", claim, resp, p, sent)); errors.Is(err, guard.ErrUnavailable) {
			err = fmt.Errorf("%w: %w", driver.ErrNoWatch, err) // for now
		}
		return fail(err)
	}
	events := bufio.NewScanner(io.LimitReader(resp.Body, responseMost))
	name, data, err := nextEvent(events)
	var first holderEvent
	if err == nil && (name != "holder" || json.Unmarshal([]byte(data), &first) != nil || first.Resource != w.Resource) {
		err = fmt.Errorf("the stream begins with %q", name)
	}
	if err != nil {
		resp.Body.Close()
		return fail(guard.Unavailable("watch", claim, err))
	}
	if !stop() { // ctx has ended by now
		resp.Body.Close()
		return fail(guard.Unavailable("watch", claim, context.Cause(ctx)))
	}
	i.learn(first.ServerTime, sent)
	go func() {
		defer cancel()
		defer resp.Body.Close()
		for {
			if name, _, err := nextEvent(events); name == "wake" || err != nil {
				break
			}
		}
		if watching.Err() == nil {
			wake()
		}
	}()
	return driver.Watching{Held: first.Holder.held(w.Resource), Stop: cancel}, nil
}

// nextEvent reads one server-sent event of a line of data; a comment has no name.
func nextEvent(lines *bufio.Scanner) (name, data string, err error) {
	for lines.Scan() {
		switch field, value, _ := strings.Cut(lines.Text(), ": "); field {
		case "event":
			name = value
		case "data":
			data = value
		default: // the end of an event, or of a comment
			if name != "" {
				return name, data, nil
			}
		}
	}
	return "", "", cmp.Or(lines.Err(), io.EOF)
}
