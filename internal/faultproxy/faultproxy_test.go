package faultproxy

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/internal/testkit"
)

// echo is a backend that answers each line with the same in capitals. It reports
// each line, and "end" when a client has sent everything.
func echo(t *testing.T) (addr string, heard chan string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	heard = make(chan string, 1000)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				lines := bufio.NewScanner(conn)
				for lines.Scan() {
					heard <- lines.Text()
					conn.Write([]byte(strings.ToUpper(lines.Text()) + "\n"))
				}
				heard <- "end"
			}()
		}
	}()
	return l.Addr().String(), heard
}

func start(t *testing.T, backend string, opts *Options) *Proxy {
	t.Helper()
	p, err := New("tcp", backend, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// client is a connection through the proxy.
type client struct {
	*testing.T
	*net.TCPConn
	answers *bufio.Reader
}

func dial(t *testing.T, p *Proxy) *client {
	t.Helper()
	conn, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(testkit.Patience)) // so that a fault fails the test
	return &client{t, conn.(*net.TCPConn), bufio.NewReader(conn)}
}

func (c *client) ask(line string) (string, error) {
	if _, err := io.WriteString(c.TCPConn, line+"\n"); err != nil {
		return "", err
	}
	answer, err := c.answers.ReadString('\n')
	return strings.TrimSpace(answer), err
}

func (c *client) want(line, answer string) {
	c.Helper()
	if got, err := c.ask(line); got != answer || err != nil {
		c.Errorf("%q was answered %q, %v; want %q", line, got, err, answer)
	}
}

// awaitHeld waits until the proxy holds something of n connections.
func awaitHeld(t *testing.T, p *Proxy, n int) {
	t.Helper()
	testkit.Eventually(t, fmt.Sprintf("%d messages that are held", n), func() bool { return p.Held() == n })
}

// oneLine is an Options.Split.
func oneLine(r io.Reader, first bool) ([]byte, error) {
	var line []byte
	for b := make([]byte, 1); !bytes.HasSuffix(line, []byte("\n")); line = append(line, b[0]) {
		if _, err := io.ReadFull(r, b); err != nil {
			return line, err
		}
	}
	if first {
		line = append([]byte("1st "), line...)
	}
	return line, nil
}

// TestForward: without faults all passes, the end of one direction too while the
// other goes on.
func TestForward(t *testing.T) {
	addr, heard := echo(t)
	c := dial(t, start(t, addr, nil))
	c.want("a", "A")
	c.want("b", "B")
	io.WriteString(c.TCPConn, "c\n")
	c.CloseWrite()
	rest, err := io.ReadAll(c.answers)
	if string(rest) != "C\n" || err != nil {
		t.Errorf("after the end of the requests: %q, %v", rest, err)
	}
	for _, want := range []string{"a", "b", "c", "end"} {
		if got := <-heard; got != want {
			t.Errorf("the backend heard %q, want %q", got, want)
		}
	}
}

// TestFates: a rule sees messages, changes, counts and loses them.
func TestFates(t *testing.T) {
	addr, heard := echo(t)
	p := start(t, addr, &Options{Split: oneLine})
	var seen atomic.Int32
	p.Set(func(m *Message) {
		switch text := string(m.Data); {
		case m.Answer:
			m.Data = bytes.ReplaceAll(m.Data, []byte("A"), []byte("Å"))
		case strings.HasPrefix(text, "drop"):
			m.Fate = Drop
		case strings.HasPrefix(text, "cut"):
			m.Fate = Cut
		case strings.HasPrefix(text, "reset"):
			m.Fate = Reset
		default:
			seen.Add(1)
		}
	})
	c := dial(t, p)
	c.want("a", "1ST Å")
	io.WriteString(c.TCPConn, "drop this\nb\ncut this\nc\n")
	if rest, err := io.ReadAll(c.answers); err != nil && !errors.Is(err, syscall.ECONNRESET) || strings.Contains(string(rest), "THIS") {
		t.Errorf("cut: %q, %v", rest, err)
	}
	for _, want := range []string{"1st a", "b", "end"} {
		if got := <-heard; got != want {
			t.Errorf("the backend heard %q, want %q", got, want)
		}
	}
	if seen.Load() != 2 {
		t.Errorf("%d messages were counted, want 2", seen.Load())
	}
	c = dial(t, p)
	c.want("a", "1ST Å")
	if got, err := c.ask("reset"); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("reset: %q, %v", got, err)
	}
	p.Set(nil)
	dial(t, p).want("drop", "1ST DROP")
}

// TestHold: what is held passes at the release, after its sender has closed the
// connection too; that end comes after the answer.
func TestHold(t *testing.T) {
	addr, heard := echo(t)
	p := start(t, addr, nil)
	stays, leaves := dial(t, p), dial(t, p)
	stays.want("a", "A")
	leaves.want("b", "B")
	<-heard
	<-heard
	p.Hold()
	io.WriteString(leaves.TCPConn, "c\n")
	awaitHeld(t, p, 1)
	leaves.Close()
	answer := make(chan string, 1)
	go func() { got, _ := stays.ask("d"); answer <- got }()
	awaitHeld(t, p, 2)
	if len(heard)+len(answer) > 0 {
		t.Fatal("something passed")
	}
	p.Release()
	if len(heard) < 2 || p.Held() != 0 {
		t.Errorf("after the release the backend has heard %d lines, and %d are held", len(heard), p.Held())
	}
	if got := <-answer; got != "D" {
		t.Errorf("the answer is %q", got)
	}
	stays.want("e", "E")
	for want := map[string]bool{"c": true, "d": true, "e": true, "end": true}; len(want) > 0; {
		got := <-heard
		if !want[got] || got == "end" && want["c"] {
			t.Errorf("the backend heard %q", got)
		}
		delete(want, got)
	}
}

// TestReleaseWithoutAnAnswer: a release returns although what was held is never
// answered, because the backend has closed the connection before or the rule
// drops the message.
func TestReleaseWithoutAnAnswer(t *testing.T) {
	backend, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer backend.Close()
	for _, dropped := range []bool{false, true} {
		p := start(t, backend.Addr().String(), nil)
		if dropped {
			p.Set(func(m *Message) { m.Fate = Drop })
		}
		p.Hold()
		c := dial(t, p)
		server, err := backend.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer server.Close()
		io.WriteString(c.TCPConn, "a\n")
		awaitHeld(t, p, 1)
		if !dropped {
			server.Close()
			if rest, err := io.ReadAll(c.answers); err != nil || len(rest) > 0 {
				t.Fatalf("the backend's end arrived as %q, %v", rest, err)
			}
		}
		c.Close()
		released := make(chan struct{})
		go func() { defer close(released); p.Release() }()
		testkit.Receive(t, fmt.Sprintf("Release, though no answer comes (dropped: %v)", dropped), released)
	}
}

// TestDelay: a delay is of every message, in both directions, and those behind
// it do not add theirs.
func TestDelay(t *testing.T) {
	t.Parallel()
	const delay = time.Second // one after the other, they would take 400
	addr, _ := echo(t)
	p := start(t, addr, &Options{Split: oneLine})
	p.Set(func(m *Message) { m.Delay = delay })
	c := dial(t, p)
	began := time.Now()
	io.WriteString(c.TCPConn, strings.Repeat("x\n", 200))
	for range 200 {
		if _, err := c.answers.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
	}
	if took := time.Since(began); took < 2*delay || took > 100*delay {
		t.Errorf("200 lines took %v, want little more than %v", took, 2*delay)
	}
}

// TestConnections: they are refused, kept waiting, cut, and sent elsewhere; the
// address stays.
func TestConnections(t *testing.T) {
	addr, _ := echo(t)
	p := start(t, addr, nil)
	c := dial(t, p)
	c.want("a", "A")
	p.CutAll()
	if got, err := c.ask("a"); err == nil {
		t.Errorf("after the cut: %q", got)
	}
	c = dial(t, p)
	c.want("b", "B")
	p.Down()
	if got, err := c.ask("b"); err == nil {
		t.Errorf("while it is down: %q", got)
	}
	if conn, err := net.Dial("tcp", p.Addr()); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a connection while it is down: %v, %v", conn, err)
	}
	if err := p.Up(); err != nil {
		t.Fatal(err)
	}
	p.OnConnect(func() bool { return false })
	if got, err := dial(t, p).ask("c"); err == nil {
		t.Errorf("refused, and answered %q", got)
	}
	p.OnConnect(nil)
	p.Backend("tcp", "127.0.0.1:1")
	if got, err := dial(t, p).ask("d"); err == nil {
		t.Errorf("without a backend: %q", got)
	}
	p.Backend("tcp", addr)
	dial(t, p).want("e", "E")
}

// TestClose: what waits in OnConnect or in the hold ends.
func TestClose(t *testing.T) {
	addr, _ := echo(t)
	p, err := New("tcp", addr, nil)
	if err != nil {
		t.Fatal(err)
	}
	held, opening := dial(t, p), make(chan bool)
	held.want("a", "A")
	p.Hold()
	io.WriteString(held.TCPConn, "c\n")
	awaitHeld(t, p, 1)
	p.OnConnect(func() bool { close(opening); <-p.Done(); return true })
	dial(t, p)
	<-opening
	p.Close()
}
