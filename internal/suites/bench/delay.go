package main

import (
	"net"
	"time"
)

// delayed listens on loopback and forwards everything to the address after the
// delay, each way, so that a round trip takes twice the delay longer. It is a
// delay, not a bandwidth limit: data that arrives meanwhile is not held up.
func delayed(to string, delay time.Duration) (addr string, stop func(), err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", to)
			if err != nil {
				in.Close()
				continue
			}
			go pass(out, in, delay)
			go pass(in, out, delay)
		}
	}()
	return l.Addr().String(), func() { l.Close() }, nil
}

type piece struct {
	due  time.Time
	data []byte
}

func pass(to, from net.Conn, delay time.Duration) {
	pieces := make(chan piece, 1024)
	go func() {
		defer to.Close()
		for p := range pieces {
			time.Sleep(time.Until(p.due))
			if _, err := to.Write(p.data); err != nil {
				break
			}
		}
		from.Close() // ends the reader, which may be waiting for the channel
		for range pieces {
		}
	}()
	defer close(pieces)
	for {
		buf := make([]byte, 16<<10)
		n, err := from.Read(buf)
		if n > 0 {
			pieces <- piece{time.Now().Add(delay), buf[:n]}
		}
		if err != nil {
			return
		}
	}
}
