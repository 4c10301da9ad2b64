package sqlfence

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"io"
	"net"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// proxy stands between a DB and the server and reads what the client sends,
// message by message (PostgreSQL documentation, 55.7).
type proxy struct {
	t        testing.TB
	listener net.Listener
	network  string
	address  string

	mu      sync.Mutex
	rule    func(message string) fate
	rewrite func(message []byte) []byte
	conns   []net.Conn
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
	if err != nil {
		e.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		e.Fatal(err)
	}
	p := &proxy{t: e, listener: listener}
	p.network, p.address = pgconn.NetworkAddress(config.Host, config.Port)
	var done sync.WaitGroup
	done.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			done.Go(func() { p.serve(client) })
		}
	})
	e.Cleanup(func() {
		listener.Close()
		p.cut()
		done.Wait()
	})
	return p, func(c *pgx.ConnConfig) {
		c.Host, c.Port = "127.0.0.1", uint16(listener.Addr().(*net.TCPAddr).Port)
		c.TLSConfig, c.Fallbacks = nil, nil
		c.LookupFunc = func(context.Context, string) ([]string, error) { return []string{"127.0.0.1"}, nil }
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

// cut closes every connection.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		c.Close()
	}
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

func (p *proxy) decide(message string) fate {
	p.mu.Lock()
	rule := p.rule
	p.mu.Unlock()
	if rule == nil {
		return forward
	}
	return rule(message)
}

func (p *proxy) serve(client net.Conn) {
	defer client.Close()
	server, err := net.Dial(p.network, p.address)
	if err != nil {
		return
	}
	defer server.Close()
	p.mu.Lock()
	p.conns = append(p.conns, client, server)
	p.mu.Unlock()
	answers := &answers{client: client}
	go func() {
		if io.Copy(answers, server); answers.held() != mute {
			client.Close()
		}
	}()
	for first := true; ; first = false {
		message, err := readMessage(client, first)
		if err != nil {
			return
		}
		p.mu.Lock()
		if p.rewrite != nil {
			message = p.rewrite(message)
		}
		p.mu.Unlock()
		what := p.decide(string(message))
		if what == cutBefore {
			return
		}
		answers.hold(what)
		if _, err := server.Write(message); err != nil {
			return
		}
		if what != forward {
			io.Copy(io.Discard, client) // until either side gives up
			return
		}
	}
}

// answers passes the server's bytes on until told otherwise.
type answers struct {
	client net.Conn
	mu     sync.Mutex
	what   fate
}

func (a *answers) hold(what fate) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.what = what
}

func (a *answers) held() fate {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.what
}

func (a *answers) Write(b []byte) (int, error) {
	switch a.held() {
	case cutAfter:
		a.client.Close()
		return 0, net.ErrClosed
	case mute:
		return len(b), nil
	}
	return a.client.Write(b)
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
