package sqlfence

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"io"
	"net"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost-go/fencepost/internal/faultproxy"
)

// proxy stands between a DB and the server and reads what the client sends,
// message by message (PostgreSQL documentation, 55.7).
type proxy struct {
	*faultproxy.Proxy

	mu      sync.Mutex
	rule    func(message string) fate
	rewrite func(message []byte) []byte
	fates   map[*faultproxy.Conn]fate // those of connections whose client is not heard any more
}

// fate is what happens to a message of the client.
type fate int

const (
	forward   fate = iota
	cutBefore      // the message is not forwarded, the connection is cut
	cutAfter       // it is forwarded, and cut as soon as the server answers
	mute           // it is forwarded, and the answer never comes
)

// newProxy returns a proxy and the configuration that makes a DB use it.
func (e *env) newProxy() (*proxy, func(*pgx.ConnConfig)) {
	e.Helper()
	config, err := pgconn.ParseConfig(e.url)
	must(e, err)
	network, address := pgconn.NetworkAddress(config.Host, config.Port)
	through, err := faultproxy.New(network, address, &faultproxy.Options{Split: readMessage})
	must(e, err)
	e.Cleanup(through.Close)
	p := &proxy{Proxy: through, fates: map[*faultproxy.Conn]fate{}}
	through.Set(p.decide)
	host, port, _ := net.SplitHostPort(through.Addr())
	number, _ := strconv.ParseUint(port, 10, 16)
	return p, func(c *pgx.ConnConfig) {
		c.Host, c.Port = host, uint16(number)
		c.TLSConfig, c.Fallbacks = nil, nil
		c.LookupFunc = func(context.Context, string) ([]string, error) { return []string{host}, nil }
	}
}

// set makes rule decide about messages from now on.
func (p *proxy) set(rule func(message string) fate) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rule = rule
}

// change makes rewrite replace messages from now on.
func (p *proxy) change(rewrite func(message []byte) []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rewrite = rewrite
}

func (p *proxy) decide(m *faultproxy.Message) {
	p.mu.Lock()
	rule, rewrite, what := p.rule, p.rewrite, p.fates[m.Conn]
	p.mu.Unlock()
	switch {
	case what == mute, what != forward && !m.Answer:
		m.Fate = faultproxy.Drop
		return
	case what == cutAfter:
		m.Fate = faultproxy.Cut
		return
	case m.Answer:
		return
	}
	if rewrite != nil {
		m.Data = rewrite(m.Data)
	}
	if rule != nil {
		what = rule(string(m.Data))
	}
	if what == cutBefore {
		m.Fate = faultproxy.Cut
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fates[m.Conn] = what
}

var commitWord = regexp.MustCompile(`(?i)\bcommit\b`)

// rolledBack replaces the COMMIT in a query or a statement to be prepared with
// ROLLBACK, so that the server answers a COMMIT as if the transaction had failed.
func rolledBack(message []byte) []byte {
	if message[0] != 'Q' && message[0] != 'P' {
		return message
	}
	message = commitWord.ReplaceAll(message, []byte("ROLLBACK"))
	binary.BigEndian.PutUint32(message[1:5], uint32(len(message)-1))
	return message
}

// on applies what to the messages that contain text, whatever its case.
func on(text string, what fate) func(string) fate {
	return func(message string) fate {
		if strings.Contains(strings.ToLower(message), text) {
			return what
		}
		return forward
	}
}

// onCommit applies what to the COMMIT of a transaction: a simple query, or the
// prepared statement of a pipeline, which the server answers at its Sync.
func onCommit(what fate) func(string) fate {
	digest := sha256.Sum256([]byte("COMMIT"))
	name := "\x00stmtcache_" + hex.EncodeToString(digest[:24]) + "\x00"
	var bound atomic.Bool
	return func(message string) fate {
		switch {
		case message[0] == 'Q':
			return on("commit\x00", what)(message)
		case message[0] == 'B' && strings.Contains(message, name):
			bound.Store(what != cutBefore)
			if what == cutBefore {
				return what
			}
		case message[0] == 'S' && bound.CompareAndSwap(true, false):
			return what
		}
		return forward
	}
}

// readMessage reads one message: a type, absent in the first, a length that
// counts itself, and the rest.
func readMessage(r io.Reader, first bool) ([]byte, error) {
	head := make([]byte, 5)
	if first {
		head = head[:4]
	}
	if _, err := io.ReadFull(r, head); err != nil {
		return nil, err
	}
	rest := make([]byte, int(binary.BigEndian.Uint32(head[len(head)-4:]))-4)
	_, err := io.ReadFull(r, rest)
	return append(head, rest...), err
}
